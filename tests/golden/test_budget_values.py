"""Parameter counts and FLOPs against published model sizes and a formula used elsewhere."""

from __future__ import annotations

import pytest

from depthscale.budget import ModelShape, count_parameters, flops_per_token, kv_cache_bytes_per_token, match_width
from depthscale.plan import DepthPlan

# DeepLoop, arXiv 2607.13491: 12 layers x 768 and 24 x 1024 with GPT-2's tokenizer; heads of 128 and SwiGLU of
# floor(8d/3) from the sibling paper's recipe for the same data.
SMALL = ModelShape(DepthPlan.stacked(12), 50257, 768, 6, 6, 128, 8 * 768 // 3)
MEDIUM = ModelShape(DepthPlan.stacked(24), 50257, 1024, 8, 8, 128, 8 * 1024 // 3)


@pytest.mark.parametrize(
    ("shape", "published", "exact"),
    [
        # GPT-2 is published as 124M and 355M (350M in GPT-3's table 2.1, arXiv 2005.14165). It has learned
        # positions and biases and an MLP of two 4d matrices, 8 d^2 as three of floor(8d/3): within 1.5 %.
        (SMALL, 124e6, 123_551_232),
        (MEDIUM, 355e6, 353_454_080),
    ],
)
def test_tied_totals_are_the_gpt2_sizes(shape: ModelShape, published: float, exact: int) -> None:
    count = count_parameters(shape)
    assert count.total == pytest.approx(published, rel=0.015)
    # By hand: V d + L (4 d^2 + 3 d f + 2 d) + d, the last d being the embedding norm.
    assert count.total == exact


def test_looping_costs_no_parameter() -> None:
    looped = ModelShape(DepthPlan.looped(12, 7), 50257, 768, 6, 6, 128, 2048)
    assert count_parameters(looped) == count_parameters(SMALL)


@pytest.mark.parametrize("shape", [SMALL, MEDIUM])
def test_training_flops_are_six_per_weight_plus_attention(shape: ModelShape) -> None:
    # PaLM, arXiv 2204.02311, appendix B: 6 N + 12 L H Q T per token, N without the embedding table; the head is
    # a matrix of it here, as the tied table is used once as a matrix. Only norm gains (no matrices) are apart.
    context, layers = 1024, shape.plan.unrolled_depth
    count = count_parameters(shape)
    weights = count.non_embedding + count.embedding
    palm = 6 * weights + 12 * layers * shape.num_attention_heads * shape.head_dim * context
    assert flops_per_token(shape, context).training == pytest.approx(palm, rel=1e-3)


def test_chinchilla_attention_flops() -> None:
    # Hoffmann et al., arXiv 2203.15556, appendix F: per sequence, key @ query logits 2 T^2 h e and softmax @
    # value reductions 2 T^2 h e a layer; QKV 2 * 3 T d h e, output 2 T h e d; final logits 2 T d V.
    context, d, he, layers = 2048, 768, 768, 12
    flops = flops_per_token(SMALL, context)
    assert flops.attention_scores * context == layers * (2 + 2) * context**2 * he
    assert flops.attention_projections * context == layers * (2 * 3 * context * d * he + 2 * context * he * d)
    assert flops.head * context == 2 * context * d * 50257


def test_kv_cache_of_gpt2_small_in_half_precision() -> None:
    # 2 (keys, values) * 12 layers * 768 * 2 bytes = 36 KiB a token; three rounds keep three times that.
    assert kv_cache_bytes_per_token(SMALL) == 36 * 1024
    looped = ModelShape(DepthPlan.looped(12, 3), 50257, 768, 6, 6, 128, 2048)
    assert kv_cache_bytes_per_token(looped) == 3 * 36 * 1024


def test_a_looped_plan_at_equal_flops_is_narrower_by_the_root_of_its_rounds() -> None:
    # Without head and scores, FLOPs are visits * d^2: three rounds call for d / sqrt(3) = 443. The head and the
    # scores shrink with d only, which asks for a little less; the step of 12 answers 444 within 2 %.
    match = match_width(SMALL, DepthPlan.looped(12, 3), budgets=["flops"], context_length=1024)
    assert match.shape.hidden_size == 444
    assert match.worst < 0.02
    reference, found = flops_per_token(SMALL, 1024), flops_per_token(match.shape, 1024)
    assert match.mismatches["flops"] == pytest.approx(found.forward / reference.forward - 1)
