"""What to build for a budget, as plain data: shape, intervals, near optima, prediction, what would help most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depthscale.errors import ConfigError
from depthscale.laws.allocation import EXTRAPOLATION, Allocation, Form, allocate, most_useful_run, predict_all
from depthscale.laws.analysis import bootstrap_interval
from depthscale.laws.buildable import (
    CONVENTIONAL_ASPECT,
    Spending,
    center_of,
    closed_optimum,
    grid,
    joined,
    limits_of,
    require_known,
    shapes_around,
)
from depthscale.laws.candidates import WIDTH_STEP, Candidates, Limits, ShapeTemplate, enumerate_candidates
from depthscale.laws.frontier import WIDTH_DEPTH_PARAMETERS, Budget, frontier_exponent
from depthscale.laws.law import AdditiveLaw
from depthscale.laws.profiling import profile
from depthscale.laws.quantities import Quantity, ratio
from depthscale.laws.spending import closed_budget, spent

Array = NDArray[np.float64]

_REACH = 5.0
_WIDER = 3.0
_ROUNDS = (1, 2, 3, 4, 6, 8)
_SHOWN_SHAPES = 12
_MAP_LINES = 48
_RUN_LINES = 24
_A_LITTLE_BEYOND = 2.0  # how far from the rows a proposed run may lie
_RUN_COSTS = (1 / 30, 1 / 10, 1 / 3, 1.0, 3.0)  # of the rows' largest budget


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
    budget = closed_budget(law, fit.data)
    if budget is None:
        raise ConfigError(f"law '{law.name}' has no budget over {', '.join(law.columns)}; no shape can be chosen")
    compute, optimum = closed_optimum(law, fit.parameters, budget, wish.spending)
    limits = limits_of(wish.spending, optimum, wish.unique_tokens)
    notes = []
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
        candidates = _deep_enough(shapes_around(wish.template, limits, center, reach, rounds, aspect), offset)
        found = allocate(candidates, forms, wish.level, wish.seed)
        edges = _at_edge(found, candidates)
        if not edges:
            break
    if edges and reads_shape:
        notes.append(f"the interval of {' and '.join(edges)} reaches the edge of the shapes that were tried")
    result = _as_data(found, candidates, forms, wish)
    largest = float(spent(budget, fit.data.columns).max())
    cost = float(spent(budget, {name: np.array([value]) for name, value in found.best.items()} | _held(budget))[0])
    result["beyond_data"]["flops"] = max(1.0, cost / largest)
    result["is_extrapolation"] = max(result["beyond_data"].values()) > EXTRAPOLATION
    result["map"] = _map(candidates, forms[0], found.loss) if reads_shape else None
    result["closed_form"] = closed_form(forms[0], budget, wish.level)
    result["closed_optimum"] = {"flops": compute, **optimum}
    result["most_useful_run"] = _useful_run(forms[0], found, candidates, budget, wish, aspect, rounds, offset)
    result["title"] = _title(result)
    result["notes"] = notes
    return result, candidates


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
        interval = bootstrap_interval(form.draws, quantity, level)
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


def _held(budget: Budget) -> dict[str, Array]:
    return {name: np.array([value]) for name, value in budget.held.items()}


def _map(candidates: Candidates, form: Form, least: float) -> dict[str, Any]:
    """Share of loss above the least over width and visits, thinned to a grid for a figure; None where nothing fits."""
    losses = predict_all(form, candidates, _estimate(form))[0] / least - 1
    widths, depths = _thinned(candidates.width), _thinned(candidates.blocks * candidates.rounds)
    visits = candidates.blocks * candidates.rounds
    table: list[list[float | None]] = []
    for depth in depths:
        row: list[float | None] = []
        for width in widths:
            here = losses[(visits == depth) & (candidates.width == width)]
            row.append(float(here.min()) if len(here) else None)
        table.append(row)
    return {"widths": widths, "depths": depths, "above_best": table}


def _thinned(values: NDArray[Any], most: int = _MAP_LINES) -> list[float]:
    unique = np.unique(values)
    picked = np.unique(np.linspace(0, len(unique) - 1, min(most, len(unique))).round().astype(int))
    result: list[float] = unique[picked].tolist()
    return result


def _estimate(form: Form) -> Array:
    values = form.fit.parameters
    return np.array([[values[name] for name in form.fit.law.parameters]])


def _deep_enough(candidates: Candidates, offset: float) -> Candidates:
    """Shapes whose depth is positive under every form's convention."""
    keep = candidates.blocks * candidates.rounds > offset
    if not keep.any():
        raise ConfigError(f"every shape that fits has at most {offset:g} layers; expected a larger budget")
    return candidates.take(keep)


def _at_edge(found: Allocation, candidates: Candidates) -> list[str]:
    names = []
    for name in ("width", "blocks"):
        values = getattr(candidates, name)
        low, high = found.intervals[name]
        if high >= values.max() or (low <= values.min() and values.min() > (WIDTH_STEP if name == "width" else 1)):
            names.append(name)
    return names


def _as_data(found: Allocation, candidates: Candidates, forms: Sequence[Form], wish: Wish) -> dict[str, Any]:
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
            "memory": float(candidates.take(_same(candidates, best)).memory[0]),
        },
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


def _same(candidates: Candidates, best: dict[str, float]) -> NDArray[np.bool_]:
    result: NDArray[np.bool_] = (
        (candidates.width == best["width"])
        & (candidates.blocks == best["blocks"])
        & (candidates.rounds == best["rounds"])
    )
    return result


def _spread(near: Candidates, least: float, form: Form) -> list[dict[str, float]]:
    """Some of the shapes within 1 %, evenly over their depths: the shallowest, the deepest and what lies between."""
    losses = predict_all(form, near, _estimate(form))[0]
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


def _useful_run(
    form: Form,
    found: Allocation,
    candidates: Candidates,
    budget: Budget,
    wish: Wish,
    aspect: float | None,
    rounds: Sequence[int],
    offset: float,
) -> dict[str, float] | None:
    """The run, at most three times as dear as the rows' dearest and near their range, that would help most."""
    data = form.fit.data
    largest = float(spent(budget, data.columns).max())
    goal = found.best["flops_per_token"] * found.best["tokens"]
    parts = []
    low_width, high_width, low_depth, high_depth = _run_range(data.columns, wish.aspect)
    heads = wish.template.num_key_value_heads or wish.template.queries_per_key_value
    step = math.lcm(WIDTH_STEP, wish.template.head_dim * heads)
    widths = _thinned(np.array(grid(low_width, high_width, step, math.sqrt(low_width * high_width))), _RUN_LINES)
    depths = _thinned(np.array(grid(low_depth, high_depth, 1, math.sqrt(low_depth * high_depth))), _RUN_LINES)
    for share in _RUN_COSTS:
        cost = min(largest * share, goal)
        try:
            limits = Limits(flops=cost, unique_tokens=wish.unique_tokens)
            part = enumerate_candidates(wish.template, limits, [*map(int, widths)], [*map(int, depths)], rounds)
            parts.append(_near_rows(_deep_enough(part, offset), form, aspect))
        except ConfigError:
            continue
    runs = joined(parts) if parts else None
    if runs is None or not len(runs.width):
        return None
    best, removed = most_useful_run(form, candidates.take(_same(candidates, found.best)), runs)
    names = ("width", "blocks", "rounds", "tokens", "parameters")
    chosen = {name: float(runs.columns[name][best]) for name in names}
    return {**chosen, "flops": float(runs.flops[best]), "variance_removed": removed}


def _run_range(columns: Any, aspect: float) -> tuple[float, float, float, float]:
    if "width" in columns and ("depth" in columns or "blocks" in columns):
        width, depth = columns["width"], columns.get("depth", columns.get("blocks"))
    else:
        size = columns.get("parameters", columns.get("unrolled_parameters"))
        depth = (size / (12 * aspect**2)) ** (1 / 3)
        width = aspect * depth
    reach = _A_LITTLE_BEYOND
    return width.min() / reach, width.max() * reach, max(depth.min() / reach, 1.0), depth.max() * reach


def _near_rows(runs: Candidates, form: Form, aspect: float | None) -> Candidates:
    keep = np.ones(len(runs.width), dtype=np.bool_)
    columns = form.columns(runs)
    for name in form.fit.law.columns:
        values = form.fit.data.column(name)
        keep &= (columns[name] >= values.min() / _A_LITTLE_BEYOND) & (columns[name] <= values.max() * _A_LITTLE_BEYOND)
    if aspect is not None:
        visits = runs.blocks * runs.rounds
        keep &= (runs.width > visits * aspect / 2) & (runs.width < visits * aspect * 2)
    return runs.take(keep)


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
        f" {run['variance_removed']:.0%} of the prediction's variance"
    )
