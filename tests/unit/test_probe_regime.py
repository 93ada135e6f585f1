"""The verdict: right on teachers of known regimes, silent where the evidence does not decide."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from depthscale.probing.errors import ProbingError
from depthscale.probing.evidence import evidence_plan, gather, verdict_of
from depthscale.probing.geometry import geometry
from depthscale.probing.intervals import Measured, mean_of_rows, resampled
from depthscale.probing.intervention_run import prepare
from depthscale.probing.ledger import Ledger
from depthscale.probing.regime import RegimeFigures, Thresholds, Verdict, judge, third_points
from depthscale.toy.config import TeacherConfig
from depthscale.toy.regime_teachers import Stopping, teacher_passage, teacher_subject


def exactly(value: float, half_width: float = 0.01) -> Measured:
    return Measured(value, value - half_width, value + half_width)


AVERAGING = RegimeFigures(
    update_cosine=exactly(0.01),
    random_cosine=exactly(0.0),
    drop_exponent=exactly(1.0),
    rescaling_ratio=exactly(0.95),
    later_change=exactly(0.02),
    stop_spread=exactly(0.02),
    even_spread=0.02,
    contribution=exactly(0.5),
    untrained_contribution=exactly(0.0),
)
SMOOTH = dataclasses.replace(
    AVERAGING, update_cosine=exactly(0.95), drop_exponent=exactly(2.0), rescaling_ratio=exactly(0.02)
)
COMPOSITIONAL = dataclasses.replace(AVERAGING, stop_spread=exactly(0.3))


@pytest.mark.parametrize(
    ("figures", "regime"), [(AVERAGING, "averaging"), (SMOOTH, "smooth"), (COMPOSITIONAL, "compositional")]
)
def test_clear_figures_give_their_regime(figures: RegimeFigures, regime: str) -> None:
    found = judge(figures)
    assert found.regime == regime
    assert all(condition.holds for condition in found.conditions[found.regime])


@pytest.mark.parametrize(
    "change",
    [
        {"untrained_contribution": None},
        {"untrained_contribution": exactly(0.5)},
        {"contribution": exactly(-0.1)},
        {"update_cosine": Measured(0.2, -0.1, 0.5)},
        {"update_cosine": Measured(0.0, math.nan, math.nan)},
        {"update_cosine": exactly(0.5)},
        {"update_cosine": exactly(-0.6)},
        {"random_cosine": exactly(-0.6)},
        {"drop_exponent": exactly(1.5)},
        {"rescaling_ratio": exactly(0.4)},
        {"later_change": exactly(0.5)},
        {"stop_spread": exactly(0.12)},
    ],
    ids=str,
)
def test_each_missing_piece_leaves_it_undecided(change: dict[str, Measured | None]) -> None:
    found = judge(dataclasses.replace(AVERAGING, **change))
    assert found.regime is None
    assert found.sentence.startswith("The evidence does not decide")


def test_an_orthogonal_angle_alone_proves_nothing() -> None:
    # Updates as orthogonal as random ones, of layers that do nothing for the loss.
    found = judge(dataclasses.replace(AVERAGING, contribution=exactly(0.0)))
    assert found.regime is None
    assert "no more than layers that were never trained" in found.sentence


def teacher_verdict(rho: float, stopping: Stopping = "none", seed: int = 7) -> Verdict:
    config = TeacherConfig(rho=rho, blocks=48, width=24, hidden=96)
    subject = teacher_subject(config, seed, stopping)
    passage = teacher_passage(subject, config, seed, stopping, rows=6, tokens=24)
    texts = prepare(subject, [passage])
    found = gather(subject, texts, Ledger(None, {}), 2, seed, 4)
    at_random = geometry([texts[0].clean.states], [passage.counted], at_random=True)
    other = teacher_subject(config, seed + 1, stopping)
    untrained = gather(other, prepare(other, [passage]), Ledger(None, {}), 2, seed, 1)
    return verdict_of(found, at_random, untrained)


@pytest.mark.parametrize(
    ("rho", "stopping", "regime"),
    [(0.0, "none", "averaging"), (1.0, "none", "smooth"), (0.0, "uniform", "compositional"), (0.8, "none", None)],
)
def test_teachers_of_another_size_are_told_apart(rho: float, stopping: Stopping, regime: str | None) -> None:
    assert teacher_verdict(rho, stopping).regime == regime


def test_thresholds_lie_at_thirds_and_refuse_overlap() -> None:
    def row(cosine: float, spread: float) -> dict[str, float]:
        return {
            "update_cosine": cosine,
            "drop_exponent": 1 + cosine,
            "rescaling_ratio": 2 * (1 - cosine),
            "stop_spread": spread,
        }

    teachers = {"averaging": [row(0.1, 0.0)], "smooth": [row(1.0, 0.03)], "compositional": [row(0.1, 0.3)]}
    found = third_points(teachers)
    assert found.uncorrelated == pytest.approx(0.4)
    assert found.aligned == pytest.approx(0.7)
    assert found.made_up == pytest.approx(0.6)
    assert found.not_made_up == pytest.approx(1.2)
    assert (found.even, found.uneven) == (pytest.approx(0.12), pytest.approx(0.21))
    with pytest.raises(ProbingError, match="overlap in stop_spread"):
        third_points({**teachers, "compositional": [row(0.1, 0.01)]})


def test_the_thresholds_leave_room_between_regimes() -> None:
    limits = Thresholds()
    assert 0 < limits.uncorrelated < limits.aligned < 1
    assert 1 < limits.averaging_exponent < limits.smooth_exponent < 2
    assert limits.made_up < limits.not_made_up < 2
    assert limits.even < limits.uneven


def test_geometry_is_its_formulas() -> None:
    generator = torch.Generator().manual_seed(0)
    states = [torch.randn(2, 5, 16, generator=generator) for _ in range(7)]
    counted = torch.ones(2, 5, dtype=torch.bool)
    counted[1, 3:] = False
    found = geometry([states], [counted])
    picked = torch.stack([state[counted] for state in states]).double()
    updates = picked[1:] - picked[:-1]
    cosines = torch.nn.functional.cosine_similarity(updates[:-1], updates[1:], dim=-1)
    # Six layers: the bulk is 1 to 4, its pairs (1, 2), (2, 3), (3, 4); rows of 5 and 3 tokens weigh the same.
    per_token = cosines[1:4].mean(dim=0)
    assert found.update_cosine.value == pytest.approx(float(per_token[:5].mean() + per_token[5:].mean()) / 2, abs=1e-6)
    assert found.update_cosine_profile == pytest.approx(cosines.mean(dim=1).tolist(), abs=1e-6)
    straight = (picked[5] - picked[1]).norm(dim=-1) / updates[1:5].norm(dim=-1).sum(dim=0)
    assert found.straightness.value == pytest.approx(float(straight[:5].mean() + straight[5:].mean()) / 2, abs=1e-6)


def test_random_directions_have_no_update_cosine() -> None:
    states = [torch.ones(4, 50, 64) * layer**2 for layer in range(1, 9)]
    counted = torch.ones(4, 50, dtype=torch.bool)
    assert geometry([states], [counted]).update_cosine.value == pytest.approx(1, abs=1e-5)
    found = geometry([states], [counted], at_random=True)
    # 200 tokens, 5 pairs, standard deviation 1/8 of one cosine: a standard error of 0.004.
    assert abs(found.update_cosine.value) < 4 * 0.004


def test_tokens_that_never_move_count_nowhere() -> None:
    states = [torch.randn(3, 4, 8) for _ in range(6)]
    for state in states:
        state[:, 0] = 1.0
    found = geometry([states], [torch.ones(3, 4, dtype=torch.bool)])
    assert math.isfinite(found.update_cosine.value)
    assert math.isfinite(found.stop_spread.value)


def test_intervals_cover_and_refuse_too_few_rows() -> None:
    draw = np.random.default_rng(0)
    hits = sum(
        found.low <= 0 <= found.high
        for found in (mean_of_rows(draw.normal(size=40).tolist(), seed=i) for i in range(200))
    )
    # A percentile bootstrap of 40 rows covers somewhat under 95 %: 93 %, give or take 1.8 of binomial error.
    assert 0.87 < hits / 200 <= 1
    two = mean_of_rows([1.0, 2.0])
    assert (two.value, two.has_interval) == (1.5, False)
    assert not two.above(0)
    assert math.isnan(mean_of_rows([float("nan")]).value)
    assert not resampled(lambda rows: float("nan"), 10).has_interval


def test_the_plan_removes_ends_and_bulk_and_drops_only_bulk() -> None:
    plan = evidence_plan(12, 2, 0, 3)
    assert {p.visits[0] for p in plan if p.kind == "remove"} == {0, 1, 6, 10, 11} or {
        p.visits[0] for p in plan if p.kind == "remove"
    } == {0, 1, 5, 10, 11}
    assert all(0 < visit < 11 for p in plan if p.kind.startswith("drop") for visit in p.visits)
