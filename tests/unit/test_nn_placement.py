"""The three placements: what multiplies what, and the first-order lemma that the rules rest on."""

from __future__ import annotations

import math

import pytest
import torch

from depthscale.nn.placement import PostNormResidual, PreNormResidual, SandwichNormResidual, build_residual

torch.set_num_threads(1)

WIDTH, EPS = 64, 1e-5


def stream(seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randn(3, 5, WIDTH, dtype=torch.float64)


def unit_rms(x: torch.Tensor) -> torch.Tensor:
    return x / x.pow(2).mean(-1, keepdim=True).sqrt()


def norm(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * gain


def random_gains(module: torch.nn.Module) -> None:
    with torch.no_grad():
        for gain in module.parameters():
            gain.uniform_(0.5, 1.5)


def test_each_placement_is_its_formula() -> None:
    x = stream()

    def sublayer(value: torch.Tensor) -> torch.Tensor:
        return torch.sin(2 * value) + 0.3

    post = PostNormResidual(WIDTH, EPS, 1.7).double()
    random_gains(post)
    torch.testing.assert_close(post(x, sublayer), norm(1.7 * x + sublayer(x), post.norm.weight))
    sandwich = SandwichNormResidual(WIDTH, EPS, 1.7).double()
    random_gains(sandwich)
    branch = sublayer(norm(x, sandwich.inner_norm.weight))
    torch.testing.assert_close(sandwich(x, sublayer), norm(1.7 * x + branch, sandwich.norm.weight))
    pre = PreNormResidual(WIDTH, EPS, 0.3).double()
    random_gains(pre)
    torch.testing.assert_close(pre(x, sublayer), x + 0.3 * sublayer(norm(x, pre.norm.weight)))


@pytest.mark.parametrize("alpha", [1.0, 4.899, 18.33])
def test_without_a_branch_only_the_skip_is_left(alpha: float) -> None:
    x = stream()
    for module in (PostNormResidual(WIDTH, EPS, alpha).double(), SandwichNormResidual(WIDTH, EPS, alpha).double()):
        random_gains(module)
        assert torch.equal(module(x, torch.zeros_like), module.norm(alpha * x))
    assert torch.equal(PreNormResidual(WIDTH, EPS, 0.3).double()(x, torch.zeros_like), x)


def test_a_post_norm_exposes_the_branch_at_one_over_alpha() -> None:
    """Norm(alpha x + z) = x + (z - <x, z> x) / alpha + O(alpha^-2) on a stream of RMS 1.

    <x, z> is the mean of the products over the width. Source: DeepLoop, arXiv 2607.13491.
    """
    x, z = unit_rms(stream(1)), stream(2)
    tangent = z - (x * z).mean(-1, keepdim=True) * x
    alphas = [2.0**power for power in range(3, 11)]
    errors, first_order = [], []
    for alpha in alphas:
        moved = PostNormResidual(WIDTH, EPS, alpha).double()(x, lambda _: z) - x
        first_order.append(moved.abs().max().item())
        errors.append((moved - tangent / alpha).abs().max().item())
    doublings = math.log2(alphas[-1] / alphas[0])
    assert math.log2(errors[-1] / errors[0]) / doublings == pytest.approx(-2, abs=0.1)
    # Without the tangent term the same difference falls only as 1 / alpha.
    assert math.log2(first_order[-1] / first_order[0]) / doublings == pytest.approx(-1, abs=0.1)


def test_scales_are_plain_numbers_outside_the_state() -> None:
    for module in (PostNormResidual(8, EPS, 3), SandwichNormResidual(8, EPS, 3), PreNormResidual(8, EPS, 3)):
        assert all(key.endswith("norm.weight") for key in module.state_dict())
        assert not list(module.buffers())
        assert float in {type(value) for value in vars(module).values()}


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("pre", 8, EPS, 2.0, 1.0), "skip scale came as 2.0"),
        (("post", 8, EPS, 1.0, 0.5), "branch scale came as 0.5"),
        (("sandwich", 8, EPS, 1.0, 0.5), "branch scale came as 0.5"),
        (("peri", 8, EPS, 1.0, 1.0), "unknown norm placement 'peri'"),
    ],
)
def test_a_scale_that_would_be_ignored_is_refused(arguments: tuple, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        build_residual(*arguments)
