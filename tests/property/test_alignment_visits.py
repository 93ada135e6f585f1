"""Any order of calls, any nesting, any checkpointing: visits are counted and their gradients add up."""

from __future__ import annotations

import gc
import warnings

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from depthscale.alignment.errors import AlignmentError
from depthscale.alignment.gradients import per_visit_gradients
from depthscale.alignment.kappa import visit_alignment
from depthscale.alignment.measure import ForwardPass, measure_alignment
from depthscale.alignment.recording import VisitKey, VisitRecorder
from depthscale.alignment.sublayers import Sublayer
from depthscale.alignment.sums import VisitSumsReceiver

WIDTH = 4
MODES = ("plain", "plain", "detach", "no_grad", "checkpoint", "reentrant")


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.gain = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gain * torch.tanh(self.linear(x))


class Program(nn.Module):
    """Runs a list of steps; a nested list is a group that runs as one call under its own mode."""

    def __init__(self, steps: list[object]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cells = nn.ModuleList(Cell() for _ in range(3))
        self.steps = steps

    def run(self, steps: list[object], x: Tensor) -> Tensor:
        for step in steps:
            mode, body = step  # type: ignore[misc]

            def once(y: Tensor, body: object = body) -> Tensor:
                if isinstance(body, list):
                    return self.run(body, y)
                result: Tensor = self.cells[body](y)  # type: ignore[index]
                return result

            if mode == "no_grad":
                with torch.no_grad():
                    update = once(x)
                x = x + update
            elif mode == "detach":
                x = x + once(x.detach())
            elif mode in ("checkpoint", "reentrant"):
                x = checkpoint(once, x, use_reentrant=mode == "reentrant")  # type: ignore[assignment]
            else:
                x = once(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self.steps, x)


calls = st.tuples(st.sampled_from(MODES), st.integers(0, 2))
groups = st.tuples(st.sampled_from(MODES), st.lists(calls, min_size=1, max_size=3))
programs = st.lists(st.one_of(calls, groups), min_size=1, max_size=5)


def count_calls(steps: list[object], cell: int) -> int:
    return sum(
        count_calls(body, cell) if isinstance(body, list) else int(body == cell)
        for _, body in steps  # type: ignore[misc]
    )


@settings(max_examples=60)
@given(programs)
@example([("checkpoint", [("plain", 0), ("reentrant", 0)])])
@example([("reentrant", [("plain", 0), ("checkpoint", 0)]), ("plain", 0)])
def test_sums_over_visits_are_autograds_gradient(steps: list[object]) -> None:
    module = Program(steps).double()
    x = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)

    def objective() -> Tensor:
        # The input takes part too, so that there is always something to send gradient to.
        return module(x).square().sum() + 0 * x.sum()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # reentrant checkpoints under no_grad
        found = per_visit_gradients(module, objective)
        module.zero_grad()
        objective().backward()
    assert not found.outside
    for name, parameter in module.named_parameters():
        assert len(found.visits[name]) == count_calls(steps, int(name.split(".")[1]))
        total = found.total(name)
        if parameter.grad is None:
            assert total is None
        else:
            assert total is not None
            torch.testing.assert_close(total, parameter.grad, rtol=1e-9, atol=1e-12)


@settings(max_examples=60)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 1000))
def test_kappa_lies_between_zero_and_the_number_of_visits(visits: int, size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    maps = torch.randn(visits, size, generator=generator, dtype=torch.float64)
    gradients = torch.randn(visits, size, generator=generator, dtype=torch.float64)
    norms = [(v.sum(dim=0).norm().item(), v.norm(dim=1).tolist()) for v in (maps, gradients)]
    kappa = visit_alignment(norms[0][0], norms[0][1], norms[1][0], norms[1][1])
    assert 0 <= kappa <= visits + 1e-9
    assert visits > 1 or kappa == 1.0
    # The sizes of U and of G do not matter, nor the order of the visits.
    scaled = visit_alignment(3 * norms[0][0], [3 * n for n in reversed(norms[0][1])], norms[1][0], norms[1][1])
    assert scaled == pytest.approx(kappa)


def test_kappa_of_nothing_is_refused() -> None:
    for maps, gradients in (([], []), ([1.0], [1.0, 2.0]), ([0.0, 0.0], [1.0, 1.0])):
        with pytest.raises(AlignmentError):
            visit_alignment(1.0, maps, 1.0, gradients)


class Meter(VisitSumsReceiver):
    """Counts, whenever a gradient arrives, how many tensors of the parameter's odd shape are alive."""

    most = 0

    def __call__(self, name: str, visit: VisitKey, gradient: Tensor) -> None:
        super().__call__(name, visit, gradient)
        alive = {t.data_ptr() for t in gc.get_objects() if issubclass(type(t), Tensor) and t.shape == (37, 37)}
        self.most = max(self.most, len(alive))


@pytest.mark.parametrize("visits", [2, 12])
def test_streaming_holds_two_copies_whatever_the_number_of_visits(visits: int) -> None:
    gc.collect()
    module = nn.Linear(37, 37, bias=False)
    x = torch.randn(3, 37)
    with VisitRecorder(module) as recorder:
        states = x
        for _ in range(visits):
            states = torch.tanh(module(states))
        meter = Meter(recorder, (Sublayer("all", "other", (("weight",),)),))
        recorder.backward(states.sum(), meter)
    # The parameter itself, the running sum, and the gradient that has just arrived.
    assert meter.most <= 3


def test_scale_of_the_loss_does_not_matter_down_to_where_squares_underflow() -> None:
    module = nn.Linear(8, 8, bias=False)
    x = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    sublayers = (Sublayer("all", "other", (("weight",),)),)

    def kappa(scale: float) -> float:
        def forward() -> ForwardPass:
            states = torch.tanh(module(torch.tanh(module(x))))
            return ForwardPass(states, scale * states.square().sum())

        return measure_alignment(module, forward, sublayers).kappa

    for scale in (1e-25, 1e25):
        assert kappa(scale) == pytest.approx(kappa(1.0), rel=1e-5)
