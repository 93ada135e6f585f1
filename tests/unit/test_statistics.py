import math

import pytest
import torch
from jaxtyping import TypeCheckError

from depthscale.statistics.angles import cosine
from depthscale.statistics.norms import root_mean_square


@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e25])
def test_cosine_of_parallel_opposite_and_orthogonal_vectors_at_any_size(scale: float) -> None:
    x = torch.tensor([[1.0, 2.0, -3.0]]) * scale
    assert cosine(x, 2 * x).item() == pytest.approx(1.0, abs=1e-6)
    assert cosine(x, -x).item() == pytest.approx(-1.0, abs=1e-6)
    assert cosine(x, torch.tensor([[3.0, 0.0, 1.0]])).item() == pytest.approx(0.0, abs=1e-6)


def test_cosine_never_leaves_its_range() -> None:
    x = torch.randn(10_000, 7, generator=torch.Generator().manual_seed(0))
    assert cosine(x, x).max() <= 1.0


def test_half_precision_is_reduced_in_float32() -> None:
    """Public fault: cosines in bfloat16 come out as a handful of distinct angles."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1000, 64, generator=generator).bfloat16()
    y = x + 0.1 * torch.randn(1000, 64, generator=generator).bfloat16()
    assert cosine(x, y).dtype == torch.float32
    assert cosine(x, y).unique().numel() > 900
    torch.testing.assert_close(cosine(x, y), cosine(x.double(), y.double()).float(), atol=1e-6, rtol=0)
    assert root_mean_square(torch.full((3,), 300.0, dtype=torch.float16)).item() == 300.0  # 300^2 overflows float16


def test_a_zero_vector_has_no_direction() -> None:
    assert math.isnan(cosine(torch.zeros(3), torch.ones(3)).item())


def test_shapes_are_checked_under_pytest() -> None:
    with pytest.raises(TypeCheckError):
        cosine(torch.zeros(3), torch.zeros(4))
