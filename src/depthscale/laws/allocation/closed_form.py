"""The optimum's closed form: how its columns grow with each other and with compute."""

from __future__ import annotations

from typing import Any

from depthscale.laws.allocation.allocate import Form
from depthscale.laws.frontier import WIDTH_DEPTH_PARAMETERS, Budget, frontier_exponent
from depthscale.laws.law import AdditiveLaw
from depthscale.laws.profiling import profile
from depthscale.laws.quantities import Quantity, ratio
from depthscale.laws.resampling import finite_interval


def closed_form(form: Form, budget: Budget, level: float) -> list[dict[str, Any]]:
    """How the optimum's columns grow with each other and with compute, and whether a theory's exponent is allowed.

    At the optimum a_j c_j x_j^-a_j / k_j is the same for every column j: x_i ~ x_j^(a_j / a_i).
    """
    law = form.fit.law
    assert isinstance(law, AdditiveLaw), "fit files hold additive laws"
    exponent = {column: law.factor_of(column)[1].exponent for column in budget.powers}
    asked: list[tuple[str, Quantity, float | None]] = []
    deep = next((name for name in ("depth", "blocks") if name in exponent), None)
    if deep is not None and "width" in exponent:
        asked.append((f"width ~ {deep}^e", ratio(exponent[deep], exponent["width"]), 1.0))
        if deep == "depth":
            by_size = Quantity("e", lambda p: frontier_exponent(law, p, WIDTH_DEPTH_PARAMETERS))
            asked.append(("size terms of the loss ~ parameters^-e", by_size, 1 / 3))
    if set(exponent) == {"parameters", "tokens"}:
        asked.append(("tokens ~ parameters^e", ratio(exponent["parameters"], exponent["tokens"]), 1.0))
    for column, name in exponent.items():
        growth = Quantity("e", lambda p, name=name: frontier_exponent(law, p, budget) / p[name])  # type: ignore[misc]
        asked.append((f"{column} ~ FLOPs^e", growth, None))
    intervals = profile(form.fit, [quantity for _, quantity, _ in asked], level)
    rows = []
    for (words, quantity, theory), profiled in zip(asked, intervals, strict=True):
        interval = finite_interval(form.draws, quantity, level)
        inside = None if theory is None or interval is None else interval[0] <= theory <= interval[1]
        rows.append(
            {
                "law": words,
                "exponent": profiled.estimate,
                "interval": interval,
                "profile": [profiled.lower, profiled.upper],
                "theory": theory,
                "theory_inside": inside,
            }
        )
    return rows
