"""Which regime do the middle layers work in? A verdict from measured figures, or that they do not decide.

    averaging       updates uncorrelated; dropping layers costs as averaging predicts; later updates hardly notice
    smooth          updates aligned; rescaling the kept layers makes up for the dropped ones
    compositional   tokens stop at different depths, more than layers that vary independently would make it seem

Two things are asked of every verdict beside its own figures. The layers must work: dropping most of them must cost more
loss than it costs the same configuration untrained. And every figure must lie beyond its threshold with its whole
interval. Update angles near pi/2 are never enough, since random directions give them too.

Source: the regimes are arXiv 2602.05970's. The tests in output space, the thresholds and their validation are
depthscale's: ``benchmarks/probe_regime.py`` on teachers whose regime is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from depthscale.probing.errors import ProbingError
from depthscale.probing.intervals import Measured

Regime = Literal["averaging", "smooth", "compositional"]


@dataclass(frozen=True)
class RegimeFigures:
    """What the verdict reads, of the bulk layers.

    Attributes:
        update_cosine: mean cosine of neighboring updates.
        random_cosine: the same with random directions.
        drop_exponent: of divergence ~ k^exponent for k dropped layers.
        rescaling_ratio: divergence with half of the layers dropped and the kept ones rescaled, over without rescaling,
            in units of the n / (n - k) that averaging predicts: 1 under averaging, 0 under a smooth flow.
        later_change: mean relative change of later updates when one layer is removed.
        stop_spread: standard deviation over tokens of the stop depth.
        even_spread: the same without any token's own depth.
        contribution: excess loss with three quarters of the layers dropped, nats.
        untrained_contribution: the same of the untrained configuration; None where it was not measured.
    """

    update_cosine: Measured
    random_cosine: Measured
    drop_exponent: Measured
    rescaling_ratio: Measured
    later_change: Measured
    stop_spread: Measured
    even_spread: float
    contribution: Measured
    untrained_contribution: Measured | None


@dataclass(frozen=True)
class Thresholds:
    """Between what the teachers of one regime show and what those of another do: at a third and at two thirds of it.

    The values are those of ``benchmarks/probe_regime.py calibrate``, rounded; ``unnoticed`` alone is set by hand, since
    in none of the teachers do later layers depend on one earlier layer.

    Attributes:
        uncorrelated, aligned: update cosine below, above.
        averaging_exponent, smooth_exponent: drop exponent below, above.
        not_made_up, made_up: rescaling ratio above, below.
        unnoticed: later change below.
        even, uneven: stop spread beyond the even one, below, above.
    """

    uncorrelated: float = 0.34
    aligned: float = 0.67
    averaging_exponent: float = 1.36
    smooth_exponent: float = 1.70
    not_made_up: float = 0.62
    made_up: float = 0.31
    unnoticed: float = 0.2
    even: float = 0.079
    uneven: float = 0.123


@dataclass(frozen=True)
class Condition:
    """One thing that a regime asks for.

    Attributes:
        what: in words.
        holds: yes, no, or None where the interval includes the threshold or is missing.
    """

    what: str
    holds: bool | None


@dataclass(frozen=True)
class Verdict:
    """The answer.

    Attributes:
        regime: None where the evidence does not decide.
        sentence: the answer in words.
        works: whether the layers do more than untrained ones.
        conditions: what each regime asks for, and whether it holds.
        thresholds: that were applied.
    """

    regime: Regime | None
    sentence: str
    works: Condition
    conditions: dict[Regime, tuple[Condition, ...]]
    thresholds: Thresholds

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def third_points(by_truth: Mapping[str, Sequence[Mapping[str, float]]]) -> Thresholds:
    """Thresholds at a third and at two thirds between what teachers of different regimes show.

    Args:
        by_truth: {regime: figures of each of its teachers}, with the figures' names of ``benchmarks/probe_regime.py``.

    Raises:
        ProbingError: two regimes overlap in a figure that is to tell them apart.
    """

    def between(name: str, low: tuple[str, ...], high: tuple[str, ...]) -> tuple[float, float]:
        top = max(row[name] for truth in low for row in by_truth[truth])
        bottom = min(row[name] for truth in high for row in by_truth[truth])
        if top >= bottom:
            raise ProbingError(f"teachers overlap in {name}: {top:.3g} of {', '.join(low)} is not below {bottom:.3g}")
        return top + (bottom - top) / 3, top + 2 * (bottom - top) / 3

    uncorrelated, aligned = between("update_cosine", ("averaging",), ("smooth",))
    averaging_exponent, smooth_exponent = between("drop_exponent", ("averaging",), ("smooth",))
    made_up, not_made_up = between("rescaling_ratio", ("smooth",), ("averaging",))
    even, uneven = between("stop_spread", ("averaging", "smooth"), ("compositional",))
    return Thresholds(
        uncorrelated=uncorrelated,
        aligned=aligned,
        averaging_exponent=averaging_exponent,
        smooth_exponent=smooth_exponent,
        not_made_up=not_made_up,
        made_up=made_up,
        even=even,
        uneven=uneven,
    )


def judge(figures: RegimeFigures, thresholds: Thresholds | None = None) -> Verdict:
    """The regime whose conditions all hold, if there is exactly one and the layers work.

    Args:
        figures: measured, with intervals.
        thresholds: None takes those fixed on teachers.
    """
    limits = Thresholds() if thresholds is None else thresholds
    works = _works(figures)
    spread = _less(figures.stop_spread, figures.even_spread)
    beyond_random = _less(figures.update_cosine, figures.random_cosine.value)
    even = _below("tokens stop at one depth: spread of stop depths beyond the even one", spread, limits.even)
    conditions: dict[Regime, tuple[Condition, ...]] = {
        "averaging": (
            _between(
                "neighboring updates uncorrelated: cosine beyond random directions", beyond_random, limits.uncorrelated
            ),
            _below(
                "k dropped layers cost like k errors that add as squares: exponent",
                figures.drop_exponent,
                limits.averaging_exponent,
            ),
            _above("rescaling does not make up for dropped layers: ratio", figures.rescaling_ratio, limits.not_made_up),
            _below(
                "later updates hardly notice a missing layer: relative change", figures.later_change, limits.unnoticed
            ),
            even,
        ),
        "smooth": (
            _above("neighboring updates aligned: cosine beyond random directions", beyond_random, limits.aligned),
            _above(
                "k dropped layers cost like one step k times as long: exponent",
                figures.drop_exponent,
                limits.smooth_exponent,
            ),
            _below("rescaling makes up for dropped layers: ratio", figures.rescaling_ratio, limits.made_up),
            even,
        ),
        "compositional": (
            _above("tokens stop at different depths: spread of stop depths beyond the even one", spread, limits.uneven),
        ),
    }
    found = [regime for regime, asked in conditions.items() if all(condition.holds for condition in asked)]
    if works.holds is not True:
        return Verdict(None, f"The evidence does not decide: {works.what}.", works, conditions, limits)
    if len(found) != 1:
        return Verdict(None, _undecided(conditions), works, conditions, limits)
    reasons = "; ".join(condition.what for condition in conditions[found[0]])
    return Verdict(found[0], f"{_NAMES[found[0]]}: {reasons}.", works, conditions, limits)


_NAMES: dict[Regime, str] = {
    "averaging": "Ensemble averaging",
    "smooth": "A smooth flow (procedural assembly)",
    "compositional": "Compositional assembly",
}


def _works(figures: RegimeFigures) -> Condition:
    trained, null = figures.contribution, figures.untrained_contribution
    if null is None:
        return Condition(
            "the untrained configuration was not measured, so that nothing shows that the layers work", None
        )
    words = f"dropping most layers costs {_words(trained)} nats, untrained {_words(null)}"
    if not (trained.has_interval and null.has_interval):
        return Condition(f"{words}, without intervals", None)
    if trained.low > max(null.high, 0.0):
        return Condition(words, True)
    return Condition(f"{words}: no more than layers that were never trained", False)


def _less(measured: Measured, amount: float) -> Measured:
    return Measured(measured.value - amount, measured.low - amount, measured.high - amount, measured.unit)


def _above(what: str, measured: Measured, threshold: float) -> Condition:
    holds = True if measured.above(threshold) else False if measured.below(threshold) else None
    return Condition(f"{what} {_words(measured)}, asked: above {threshold:g}", holds)


def _below(what: str, measured: Measured, threshold: float) -> Condition:
    holds = True if measured.below(threshold) else False if measured.above(threshold) else None
    return Condition(f"{what} {_words(measured)}, asked: below {threshold:g}", holds)


def _between(what: str, measured: Measured, threshold: float) -> Condition:
    inside = measured.above(-threshold) and measured.below(threshold)
    outside = measured.above(threshold) or measured.below(-threshold)
    holds = True if inside else False if outside else None
    return Condition(f"{what} {_words(measured)}, asked: between -{threshold:g} and {threshold:g}", holds)


def _undecided(conditions: dict[Regime, tuple[Condition, ...]]) -> str:
    parts = []
    for regime, asked in conditions.items():
        failing = [condition for condition in asked if not condition.holds]
        first = failing[0] if failing else None
        if first is not None:
            parts.append(f"for {regime}, {'against: ' if first.holds is False else 'open: '}{first.what}")
    return f"The evidence does not decide: {'; '.join(parts) or 'two regimes fit'}."


def _words(measured: Measured) -> str:
    if math.isnan(measured.value):
        return "not to be had from so few layers or documents"
    if not measured.has_interval:
        return f"{measured.value:.3g} (no interval)"
    return f"{measured.value:.3g} [{measured.low:.3g}, {measured.high:.3g}]"
