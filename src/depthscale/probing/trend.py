"""How mean angles and mean updates fall with depth over a family of models: value = c * L^slope.

Source: arXiv 2602.05970 reports a log-log slope of about -1 for the mean angle over language models. Widths, data and
training differ between the models of a family, and the slope is of all of that together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from depthscale.laws import LAWS, Objective, Observations, parameter, profile, search
from depthscale.laws.certificate import FitError
from depthscale.probing.errors import ProbingError

#: Different depths that a slope needs.
FEWEST_DEPTHS = 3
#: Log residuals below this are rounding of float32 measurements: no spread to make an interval of.
ROUNDING = 1e-6


@dataclass(frozen=True)
class ModelProfile:
    """Of one model, what its layers do on average.

    Attributes:
        name: of the model.
        layers: {quantity: mean of each layer}, for example ``{"angle": [...], "relative_update": [...]}``.
    """

    name: str
    layers: Mapping[str, Sequence[float]]

    @property
    def depth(self) -> int:
        """L, the longest of the profiles."""
        return max(len(values) for values in self.layers.values())


@dataclass(frozen=True)
class Trend:
    """One fitted slope.

    Attributes:
        quantity: whose layer mean was fitted.
        ends: whether first and last layer are among the layers.
        points: (model, depth, mean over layers), by depth.
        slope, lower, upper: of ln value against ln depth, with the profile-likelihood interval; None without a fit.
        coefficient: the fitted value at L = 1.
        level: of the interval.
        reason: why there is no fit, in words.
    """

    quantity: str
    ends: bool
    points: tuple[tuple[str, int, float], ...]
    slope: float | None
    lower: float | None
    upper: float | None
    coefficient: float | None
    level: float
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a result file; an open end of the interval is null."""
        return asdict(self)


def family_trends(models: Sequence[ModelProfile], level: float = 0.95) -> tuple[Trend, ...]:
    """The trend of every quantity, with the first and the last layer and without them.

    Args:
        models: two with equal depth are two points.
        level: of the intervals.

    Raises:
        ProbingError: the models do not have the same quantities.
    """
    if not models:
        raise ProbingError("no model came to fit a trend to; expected at least three of different depths")
    quantities = tuple(models[0].layers)
    for model in models:
        if set(model.layers) != set(quantities):
            raise ProbingError(
                f"'{model.name}' was measured for {', '.join(model.layers)} and '{models[0].name}' for"
                f" {', '.join(quantities)}; expected the same quantities of every model"
            )
    return tuple(_trend(models, quantity, ends, level) for quantity in quantities for ends in (True, False))


def _trend(models: Sequence[ModelProfile], quantity: str, ends: bool, level: float) -> Trend:
    points, left_out = [], []
    for model in sorted(models, key=lambda m: (m.depth, m.name)):
        values = np.asarray(model.layers[quantity], dtype=np.float64)
        values = values if ends else values[1:-1]
        mean = float(values.mean()) if len(values) else math.nan
        if math.isfinite(mean) and mean > 0:
            points.append((model.name, model.depth, mean))
        else:
            left_out.append(model.name)

    def answer(reason: str | None, slope: float | None = None, *rest: float) -> Trend:
        lower, upper, coefficient = rest or (None, None, None)
        return Trend(quantity, ends, tuple(points), slope, lower, upper, coefficient, level, reason)

    if len({depth for _, depth, _ in points}) < FEWEST_DEPTHS:
        missing = f" ({', '.join(left_out)} left out: no positive mean)" if left_out else ""
        return answer(f"a slope needs models of at least {FEWEST_DEPTHS} different depths{missing}")
    rows = Observations({"x": np.array([float(depth) for _, depth, _ in points])}, np.array([m for *_, m in points]))
    found = search(LAWS["growth"], rows, Objective("log_squares"))
    free = found.uncertified_parameters
    if np.abs(found.residuals).max() <= ROUNDING:
        return answer(None, free["a"], free["a"], free["a"], free["c"])
    try:
        interval = profile(found, [parameter(found, "a")], level)[0]
    except FitError as error:
        return answer(str(error))
    return answer(None, interval.estimate, interval.lower, interval.upper, free["c"])
