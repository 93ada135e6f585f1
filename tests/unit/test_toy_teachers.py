"""Teachers: their signatures against the fact sheet, and the dial between independent and tied."""

from __future__ import annotations

import math

import pytest
import torch

from depthscale.toy.config import TeacherConfig
from depthscale.toy.job import teacher_states
from depthscale.toy.randomness import correlated_uniform, normal_inputs
from depthscale.toy.residual_pass import rms_norm
from depthscale.toy.signatures import removed, signatures, swapped, tolerance
from depthscale.toy.teachers import make_teachers


def teacher_signatures(rho: float, seeds: tuple[int, ...] = (0, 1, 2), count: int = 2048) -> list[dict[str, float]]:
    teachers = make_teachers(TeacherConfig(rho=rho, seeds=seeds), fixed_head=False)
    inputs = normal_inputs(0, "signatures", 0, count, 32)
    return signatures(teacher_states(teachers, rms_norm(inputs)[None]))


def test_independent_teachers_have_the_fact_sheets_signature() -> None:
    # Recomputed independently for the project, 2,048 inputs: |h_0| 5.66, |h_L| 5.8, 1.57, 0.23.
    for found in teacher_signatures(0.0):
        assert found["norm_start"] == pytest.approx(5.66, abs=0.005)
        assert found["norm_end"] == pytest.approx(5.8, abs=0.1)
        assert found["update_angle"] == pytest.approx(1.57, abs=0.02)
        assert found["whole_turn"] == pytest.approx(0.23, abs=0.02)


def test_tied_teachers_have_the_fact_sheets_signature() -> None:
    # Recomputed independently for the project: |h_L| 13.5 to 16.6, 0.011, 1.14 to 1.20; margins for seeds.
    for found in teacher_signatures(1.0):
        assert 12.5 < found["norm_end"] < 17.5
        assert found["update_angle"] == pytest.approx(0.011, abs=0.002)
        assert 1.05 < found["whole_turn"] < 1.3


def test_the_dial_lies_between_its_ends() -> None:
    angles = [teacher_signatures(rho, (0,), 256)[0]["update_angle"] for rho in (0.0, 0.5, 0.9, 1.0)]
    assert angles == sorted(angles, reverse=True)
    assert angles[0] - angles[1] > 0.1
    assert angles[2] - angles[3] > 0.1


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_neighbors_have_the_correlation_and_the_margin_of_the_default_linear(rho: float) -> None:
    bound, count = 0.25, 200_000
    draws = correlated_uniform(torch.Generator().manual_seed(0), bound, 3, (count,), rho).double()
    for each in draws:
        assert float(each.abs().max()) <= bound
        assert float(each.mean()) == pytest.approx(0.0, abs=4 * bound / math.sqrt(3 * count))
        assert float(each.var()) == pytest.approx(bound**2 / 3, rel=0.01)
        # Uniform, not merely of its variance: the fourth moment is bound^4 / 5.
        assert float((each**4).mean()) == pytest.approx(bound**4 / 5, rel=0.02)
    measured = torch.corrcoef(draws)
    assert float(measured[0, 1]) == pytest.approx(rho, abs=0.01)
    assert float(measured[1, 2]) == pytest.approx(rho, abs=0.01)


def test_tied_blocks_are_one_and_the_same() -> None:
    draws = correlated_uniform(torch.Generator().manual_seed(0), 1.0, 5, (7,), 1.0)
    assert torch.equal(draws, draws[:1].expand_as(draws))


def test_signatures_by_hand() -> None:
    states = [torch.tensor(point, dtype=torch.float64)[None, None] for point in ([3.0, 0.0], [3.0, 3.0], [0.0, 3.0])]
    (found,) = signatures(states)
    assert found["norm_start"] == pytest.approx(3.0)
    assert found["step_norm"] == pytest.approx(3.0)
    assert found["turn"] == pytest.approx(math.pi / 4)
    assert found["update_angle"] == pytest.approx(math.pi / 2)
    assert found["whole_turn"] == pytest.approx(math.pi / 2)


def test_tolerance_is_the_geometric_mean_over_places() -> None:
    assert swapped((0, 1, 2)) == [(1, 0, 2), (0, 2, 1)]
    assert removed((0, 1, 2)) == [(1, 2), (0, 2), (0, 1)]
    values = {(0, 1, 2): 2.0, (1, 0, 2): 4.0, (0, 2, 1): 16.0, (1, 2): 2.0, (0, 2): 2.0, (0, 1): 16.0}
    (found,) = tolerance(lambda schedule: torch.tensor([values[tuple(schedule)]]), (0, 1, 2))
    assert found["swap"] == pytest.approx(4.0)
    assert found["removal"] == pytest.approx(2.0)
