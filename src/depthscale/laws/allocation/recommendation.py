"""What to build for a budget, as plain data: shape, intervals, near optima, prediction, what would help most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depthscale.errors import ConfigError
from depthscale.laws.allocation.allocate import EXTRAPOLATION, Allocation, Form, Redrawn, allocate, predict_all
from depthscale.laws.allocation.buildable import (
    CONVENTIONAL_ASPECT,
    Spending,
    center_of,
    closed_optima,
    closed_optimum,
    deep_enough,
    limits_of,
    require_known,
    shapes_around,
    thinned,
)
from depthscale.laws.allocation.candidates import WIDTH_STEP, Candidates, Limits, ShapeTemplate
from depthscale.laws.allocation.closed_form import closed_form
from depthscale.laws.allocation.useful_run import Workshop, propose_run
from depthscale.laws.frontier import Budget
from depthscale.laws.law import AdditiveLaw
from depthscale.laws.spending import closed_budget, open_exponents

Array = NDArray[np.float64]

_REACH = 5.0
_WIDER = 3.0
_ROUNDS = (1, 2, 3, 4, 6, 8)
_SHOWN_SHAPES = 12
_MAP_LINES = 48


@dataclass(frozen=True)
class Wish:
    """What to build with.

    Attributes:
        spending: the budget.
        template: what stays the same.
        unique_tokens: tokens that exist.
        rounds: numbers of rounds to try, for laws that read them; None takes a default.
        aspect: width over visits, for laws that do not read shape.
        level: of intervals.
        seed: of the noise draws.
    """

    spending: Spending
    template: ShapeTemplate
    unique_tokens: float | None = None
    rounds: tuple[int, ...] | None = None
    aspect: float = CONVENTIONAL_ASPECT
    level: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.aspect < math.inf:
            raise ConfigError(f"aspect came as {self.aspect!r}; expected a positive number such as 128")
        if self.unique_tokens is not None and not 0 < self.unique_tokens < math.inf:
            raise ConfigError(f"unique tokens came as {self.unique_tokens!r}; expected a positive number")


def recommend(forms: Sequence[Form], wish: Wish) -> tuple[dict[str, Any], Candidates]:
    """Answer a wish.

    Returns:
        Plain data for a result file, and the candidates among which it was chosen, for a map.

    Raises:
        ConfigError: the law cannot choose shapes, or nothing fits the budget.
    """
    law, fit = forms[0].fit.law, forms[0].fit
    assert isinstance(law, AdditiveLaw), "fit files hold additive laws"
    require_known(law)
    budget = closed_budget(law, fit.data, forms[0].depth_offset)
    if budget is None:
        raise ConfigError(f"law '{law.name}' has no budget over {', '.join(law.columns)}; no shape can be chosen")
    negative = open_exponents(fit, budget)
    if negative:
        raise ConfigError(f"loss does not fall in {', '.join(negative)} here, so no budget has a best shape")
    compute, optimum = closed_optimum(law, fit.parameters, budget, wish.spending)
    held_rounds = budget.held.get("rounds", 1.0)
    limits = limits_of(wish.spending, optimum, wish.unique_tokens, held_rounds)
    each = _limits_of_draws(law, forms[0], budget, wish)
    notes: list[str] = []
    growth = 1.0
    if wish.unique_tokens is not None and wish.unique_tokens < optimum["tokens"]:
        growth = optimum["tokens"] / wish.unique_tokens if wish.spending.kind == "flops" else 1.0
        notes.append(
            f"unique tokens bind: {wish.unique_tokens:.3g} of the {optimum['tokens']:.3g} that the frontier asks for;"
            " repeated tokens are described by no law here"
        )
    reads_shape = "width" in law.columns
    reads_rounds = bool({"rounds", "unrolled_parameters"} & set(law.columns))
    rounds = wish.rounds or (_ROUNDS if reads_rounds else (1,))
    if not reads_rounds and rounds != (1,):
        raise ConfigError(f"law '{law.name}' does not read rounds; leave --rounds out")
    aspect = None if reads_shape else wish.aspect
    if aspect is not None:
        notes.append(f"law '{law.name}' does not read shape: width is kept near {aspect:g} x depth (--aspect)")
    center = center_of(law, optimum, growth, wish.aspect)
    offset = max(form.depth_offset for form in forms)
    for reach in (_REACH, _REACH * _WIDER):
        candidates = deep_enough(shapes_around(wish.template, limits, center, reach, rounds, aspect), offset)
        redrawn = None
        if each is not None:
            widest = _widest(each, limits)
            wide = deep_enough(shapes_around(wish.template, widest, center, reach, rounds, aspect), offset)
            redrawn = Redrawn(wide, each)
        found = allocate(candidates, forms, wish.level, wish.seed, redrawn)
        edges = _at_edge(found, candidates if redrawn is None else redrawn.candidates)
        if not edges:
            break
    if edges and reads_shape:
        notes.append(f"the interval of {' and '.join(edges)} reaches the edge of the shapes that were tried")
    chosen = [candidates.columns[name] == found.best[name] for name in ("width", "blocks", "rounds")]
    here = candidates.take(np.logical_and.reduce(chosen))
    result = _as_data(found, candidates, here, forms, wish)
    spent = budget.spent(fit.data.columns)
    cost = float(budget.spent({name: value[0] for name, value in forms[0].columns(here).items()}))
    result["beyond_data"]["flops"] = max(1.0, cost / float(spent.max()), float(spent.min()) / cost)
    result["is_extrapolation"] = max(result["beyond_data"].values()) > EXTRAPOLATION
    result["map"] = _map(candidates, forms[0], found.loss) if reads_shape else None
    result["closed_form"] = closed_form(forms[0], budget, wish.level)
    result["closed_optimum"] = {"flops": compute, **optimum}
    result["most_useful_run"] = propose_run(
        forms[0],
        here,
        budget,
        Workshop(wish.template, wish.unique_tokens, rounds, wish.aspect, reads_shape),
        offset,
    )
    result["title"] = _title(result)
    result["notes"] = notes
    return result, candidates


def _limits_of_draws(law: AdditiveLaw, form: Form, budget: Budget, wish: Wish) -> list[Limits | None] | None:
    """What each draw's own frontier makes of the budget; None where the budget leaves nothing to a frontier."""
    if wish.spending.kind == "flops":
        return None
    parameters = {name: form.draws.column(name) for name in form.draws.names}
    # A draw with a negative exponent has no frontier, whatever the formula says of it.
    falls = np.all([parameters[law.factor_of(name)[1].exponent] > 0 for name in budget.powers], axis=0)
    optima = closed_optima(law, parameters, budget, wish.spending)[1]
    usable = falls & np.all([np.isfinite(values) & (values > 0) for values in optima.values()], axis=0)
    rounds = budget.held.get("rounds", 1.0)
    return [
        limits_of(
            wish.spending, {name: float(values[i]) for name, values in optima.items()}, wish.unique_tokens, rounds
        )
        if good
        else None
        for i, good in enumerate(usable)
    ]


def _widest(each: Sequence[Limits | None], own: Limits) -> Limits:
    """Limits that allow every shape which some draw allows; tokens are the draws' own."""
    sizes = [limits.unrolled_parameters for limits in each if limits is not None and limits.unrolled_parameters]
    return replace(own, unrolled_parameters=max(sizes)) if sizes else own


def _map(candidates: Candidates, form: Form, least: float) -> dict[str, Any]:
    """Share of loss above the least over width and visits, thinned to a grid for a figure; None where nothing fits."""
    losses = predict_all(form, candidates, form.estimate)[0] / least - 1
    widths, depths = thinned(candidates.width, _MAP_LINES), thinned(candidates.blocks * candidates.rounds, _MAP_LINES)
    visits = candidates.blocks * candidates.rounds
    table: list[list[float | None]] = []
    for depth in depths:
        row: list[float | None] = []
        for width in widths:
            here = losses[(visits == depth) & (candidates.width == width)]
            row.append(float(here.min()) if len(here) else None)
        table.append(row)
    return {"widths": widths, "depths": depths, "above_best": table}


def _at_edge(found: Allocation, candidates: Candidates) -> list[str]:
    names = []
    for name in ("width", "blocks"):
        values = getattr(candidates, name)
        low, high = found.intervals[name]
        if high >= values.max() or (low <= values.min() and values.min() > (WIDTH_STEP if name == "width" else 1)):
            names.append(name)
    return names


def _as_data(
    found: Allocation, candidates: Candidates, here: Candidates, forms: Sequence[Form], wish: Wish
) -> dict[str, Any]:
    best, template = found.best, wish.template
    width = int(best["width"])
    shape = template.shape(width, int(best["blocks"]), int(best["rounds"]))
    near = found.near_optimum
    order = _spread(near, found.loss, forms[0])
    return {
        "asked": {
            "kind": wish.spending.kind,
            "value": wish.spending.value,
            "unique_tokens": wish.unique_tokens,
            "template": asdict(template),
        },
        "best": {
            **best,
            "heads": shape.num_attention_heads,
            "key_value_heads": shape.num_key_value_heads,
            "intermediate_size": shape.intermediate_size,
            "flops": best["flops_per_token"] * best["tokens"],
            "memory": float(here.memory[0]),
        },
        "first_form": forms[0].name,
        "loss": found.loss,
        "level": found.level,
        "intervals": {name: list(ends) for name, ends in found.intervals.items()},
        "interval_kind": f"{'cluster' if forms[0].draws.kind == 'clusters' else 'row'} bootstrap, optimum of each draw",
        "prediction": list(found.prediction),
        "form_losses": found.form_losses,
        "beyond_data": found.beyond_data,
        "is_extrapolation": found.is_extrapolation,
        "near_optimum": {
            "count": len(near.width),
            "of": len(candidates.width),
            "ranges": {
                name: [float(near.columns[name].min()), float(near.columns[name].max())]
                for name in ("width", "blocks", "rounds", "tokens", "parameters")
            },
            "shapes": order,
        },
    }


def _spread(near: Candidates, least: float, form: Form) -> list[dict[str, float]]:
    """Some of the shapes within 1 %, evenly over their depths: the shallowest, the deepest and what lies between."""
    losses = predict_all(form, near, form.estimate)[0]
    visits = near.blocks * near.rounds
    # Of each depth the best width.
    order = np.lexsort((losses, visits))
    firsts = order[np.unique(visits[order], return_index=True)[1]]
    picked = firsts[np.unique(np.linspace(0, len(firsts) - 1, min(_SHOWN_SHAPES, len(firsts))).round().astype(int))]
    return [
        {
            "width": float(near.width[i]),
            "blocks": float(near.blocks[i]),
            "rounds": float(near.rounds[i]),
            "parameters": float(near.parameters[i]),
            "tokens": float(near.tokens[i]),
            "loss": float(losses[i]),
            "above_best": float(losses[i] / least - 1),
        }
        for i in picked
    ]


def _title(result: dict[str, Any]) -> str:
    beyond = {name: factor for name, factor in result["beyond_data"].items() if factor > EXTRAPOLATION}
    kind, value = result["asked"]["kind"], result["asked"]["value"]
    title = f"Allocation for {kind} = {value:.3g}"
    if not beyond:
        return title
    far = ", ".join(f"{name} {factor:.0f} x" for name, factor in beyond.items())
    run = result["most_useful_run"]
    if run is None:
        return f"EXTRAPOLATION ({far} beyond the rows): {title}"
    looped = f" x {run['rounds']:.0f} rounds" if run["rounds"] > 1 else ""
    return (
        f"EXTRAPOLATION ({far} beyond the rows): {title}. Most useful next run: width {run['width']:.0f},"
        f" {run['blocks']:.0f} blocks{looped}, {run['tokens']:.3g} tokens ({run['flops']:.2g} FLOPs), which removes"
        f" {run['variance_removed']:.0%} of the variance that the parameters of '{result['first_form']}' leave"
    )
