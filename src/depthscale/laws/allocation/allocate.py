"""The shape to build for a budget, with what is not known about it.

The optimum is taken over buildable candidates with exact FLOPs; resampled parameters give its intervals, several forms
of law and the rows' noise give the prediction's, and rows far outside the data are named as extrapolation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from depthscale.errors import ConfigError
from depthscale.laws.allocation.candidates import Candidates, Limits, within
from depthscale.laws.fitting import Fit
from depthscale.laws.observations import Observations
from depthscale.laws.resampling import Bootstrap
from depthscale.laws.standard_errors import relative_noise, relative_residuals, robust_covariance
from depthscale.laws.validation import predict_with_slopes

Array = NDArray[np.float64]

#: Beyond this factor outside the data a prediction is called extrapolation.
EXTRAPOLATION = 10.0
NEAR_OPTIMUM = 0.01
FEWEST_FORMS = 3
_DRAWS_AT_ONCE = 50
_CHOSEN = ("width", "blocks", "rounds", "tokens", "parameters")


@dataclass(frozen=True)
class Form:
    """One form of law with its resamples.

    Attributes:
        name: how reports name it.
        fit: certified.
        draws: its bootstrap.
        depth_offset: layers that the law's depth leaves out.
    """

    name: str
    fit: Fit
    draws: Bootstrap
    depth_offset: float = 0.0

    @property
    def estimate(self) -> Array:
        """The fit's own parameters [1, P], natural units."""
        values = self.fit.parameters
        return np.array([[values[name] for name in self.fit.law.parameters]])

    def columns(self, candidates: Candidates) -> dict[str, Array]:
        """The candidates as this form reads them."""
        columns = candidates.columns
        return {**columns, "depth": columns["depth"] - self.depth_offset}


@dataclass(frozen=True)
class Allocation:
    """A recommended shape.

    Attributes:
        best: the candidate of least predicted loss under the first form, as one row.
        loss: its predicted loss.
        intervals: of the optimum's width, blocks, rounds, tokens and parameters over the first form's resamples.
        near_optimum: candidates within 1 % of the least loss.
        prediction: interval of a run's loss at ``best`` over parameters, run noise and forms.
        form_losses: predicted loss at ``best`` under each form.
        beyond_data: column to the factor by which ``best`` lies outside the rows; 1 inside.
        is_extrapolation: some factor is above 10.
        level: of the intervals.
    """

    best: dict[str, float]
    loss: float
    intervals: dict[str, tuple[float, float]]
    near_optimum: Candidates
    prediction: tuple[float, float]
    form_losses: dict[str, float]
    beyond_data: dict[str, float]
    is_extrapolation: bool
    level: float


@dataclass(frozen=True)
class Redrawn:
    """What each draw of the first form may choose from, where its budget leaves more open than shape.

    Attributes:
        candidates: every shape that some draw may have.
        limits: one per draw; None where that draw has no frontier, and then no say in the intervals.
    """

    candidates: Candidates
    limits: Sequence[Limits | None]


def allocate(
    candidates: Candidates,
    forms: Sequence[Form],
    level: float = 0.95,
    seed: int = 0,
    redrawn: Redrawn | None = None,
) -> Allocation:
    """Choose among candidates.

    Args:
        candidates: from :func:`depthscale.laws.candidates.enumerate_candidates`.
        forms: at least three, the recommended one first.
        level: of the intervals.
        seed: of the noise draws.
        redrawn: what each draw may choose from; None lets all choose from ``candidates`` as they are.

    Raises:
        ConfigError: fewer than three forms.
    """
    if len(forms) < FEWEST_FORMS:
        raise ConfigError(f"{len(forms)} forms of law came; expected at least {FEWEST_FORMS}, the chosen one first")
    first = forms[0]
    losses = predict_all(first, candidates, first.estimate)[0]
    best = int(np.argmin(losses))
    columns = candidates.columns
    optima = _optima(first, candidates) if redrawn is None else _redrawn_optima(first, redrawn)
    tails = [(1 - level) / 2, (1 + level) / 2]
    intervals = {}
    for name in _CHOSEN:
        low, high = np.quantile(optima[name], tails)
        intervals[name] = (float(low), float(high))
    here = candidates.take(np.arange(len(losses)) == best)
    pooled = [_simulated_runs(form, here, seed + i) for i, form in enumerate(forms)]
    # Every form weighs the same, however many resamples it has.
    size = max(len(p) for p in pooled)
    mixed = np.concatenate([np.resize(p, size) for p in pooled])
    low, high = np.quantile(mixed, tails)
    beyond = distance_beyond(first.fit.data, {k: float(v[0]) for k, v in first.columns(here).items()})
    return Allocation(
        {name: float(columns[name][best]) for name in columns},
        float(losses[best]),
        intervals,
        candidates.take(losses <= losses[best] * (1 + NEAR_OPTIMUM)),
        (float(low), float(high)),
        {form.name: float(predict_all(form, here, form.estimate)[0, 0]) for form in forms},
        beyond,
        max(beyond.values()) > EXTRAPOLATION,
        level,
    )


def distance_beyond(data: Observations, point: Mapping[str, float]) -> dict[str, float]:
    """Factor by which each column of a point lies outside the rows' range; 1 inside it."""
    factors = {}
    for name, values in data.columns.items():
        if name in point and (values > 0).all() and point[name] > 0:
            factors[name] = max(1.0, point[name] / float(values.max()), float(values.min()) / point[name])
    return factors


def most_useful_run(form: Form, target: Candidates, runs: Candidates) -> tuple[int, float]:
    """Which of ``runs`` would narrow the prediction at ``target`` most, and the share of its variance it removes.

    Linear in the parameters: with S their covariance, t and s the slopes of ln loss at target and run, and the rows'
    noise v, one row more removes (t S s)^2 / (v + s S s) of the variance t S t.

    Args:
        form: whose uncertainty counts; uncertainty between forms is not in it.
        target: one candidate.
        runs: affordable candidates inside the data's range, or a little beyond: far outside, the answer leans on
            the form that the run should test.
    """
    covariance = robust_covariance(form.fit).matrix
    at_target, at_runs = (_slopes(form, c) for c in (target, runs))
    noise = relative_noise(form.fit)
    shared = (at_runs @ covariance @ at_target[0]) ** 2
    own = np.einsum("np,pq,nq->n", at_runs, covariance, at_runs)
    removed = shared / (noise + own) / float(at_target[0] @ covariance @ at_target[0])
    best = int(np.argmax(removed))
    return best, float(removed[best])


def predict_all(form: Form, candidates: Candidates, parameters: Array) -> Array:
    """Loss [B, n] of every candidate under every parameter vector [B, P], natural units."""
    columns = form.columns(candidates)
    bound = form.fit.law.bind(columns, np.full(len(candidates.width), 1.0))
    mask = bound.coefficient_mask
    working = np.where(mask, np.log(np.where(mask, parameters, 1.0)), parameters)
    back = np.asarray(np.linalg.inv(bound.transform), dtype=np.float64)
    return bound.predict((working - bound.offset) @ back.T) * bound.loss_scale


def _optima(form: Form, candidates: Candidates) -> dict[str, Array]:
    """Columns [B] of each draw's best candidate."""
    # In parts: a table of every draw and candidate would not fit the memory of a laptop.
    parts = np.array_split(form.draws.parameters, max(len(form.draws.parameters) // _DRAWS_AT_ONCE, 1))
    chosen = np.concatenate([np.argmin(predict_all(form, candidates, part), axis=1) for part in parts])
    return {name: candidates.columns[name][chosen] for name in _CHOSEN}


def _redrawn_optima(form: Form, redrawn: Redrawn) -> dict[str, Array]:
    """Columns [B'] of each draw's best candidate, within what that draw's own frontier leaves it."""
    found = []
    for limits, parameters in zip(redrawn.limits, form.draws.parameters, strict=True):
        try:
            allowed = None if limits is None else within(redrawn.candidates, limits)
        except ConfigError:
            allowed = None
        if allowed is None:
            continue
        best = int(np.argmin(predict_all(form, allowed, parameters[None])[0]))
        found.append([float(allowed.columns[name][best]) for name in _CHOSEN])
    if not found:
        raise ConfigError("no replicate has a frontier that fits the budget; give it as --flops")
    return dict(zip(_CHOSEN, np.array(found).T, strict=True))


def _slopes(form: Form, candidates: Candidates) -> Array:
    rows = Observations(form.columns(candidates), np.full(len(candidates.width), 1.0))
    return predict_with_slopes(form.fit, rows)[1]


def _simulated_runs(form: Form, here: Candidates, seed: int) -> Array:
    """Losses of runs at one candidate: each resample's prediction times a drawn residual."""
    generator = np.random.default_rng(seed)
    predicted = predict_all(form, here, form.draws.parameters)[:, 0]
    weights = form.fit.data.row_weights
    residual = generator.choice(-relative_residuals(form.fit), size=len(predicted), p=weights / weights.sum())
    drawn: Array = predicted * np.exp(residual)
    return drawn
