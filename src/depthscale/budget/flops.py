"""Floating-point operations and cache bytes per token: paid once per *visit*, not per block.

Counted are matrix products, a multiply and an add each, as torch's FlopCounterMode counts them: projections,
attention scores and their product with the values, MLP, head. Norms, rotary positions, softmax, activations,
residual additions and the embedding look-up are not counted. Attention is taken at full T^2, which is what an
unfused kernel does; the causal half is given beside it. (On CPU FlopCounterMode counts fused attention as
zero; count on the meta device to compare.)
"""

from __future__ import annotations

from dataclasses import dataclass

from depthscale.budget.parameters import MATRICES_PER_MLP, ModelShape, require_positive

FLOPS_PER_WEIGHT = 2
"""One multiply and one add for each weight and token."""


@dataclass(frozen=True)
class FlopsPerToken:
    """FLOPs per token of one sequence of T tokens.

    Attributes:
        attention_projections: query, key, value and output projections, all visits, forward.
        attention_scores: scores and their product with the values at full T^2, all visits, forward.
        attention_scores_causal: the same when each token meets only itself and those before it,
            (T + 1) / 2 of them on average.
        mlp: MLP matrices, all visits, forward.
        head: the vocabulary projection, forward.
        backward: gradients with respect to inputs and weights, of those visits that carry gradient.
        recomputed: forward work done again in the backward pass under checkpointing.
    """

    attention_projections: int
    attention_scores: int
    attention_scores_causal: int
    mlp: int
    head: int
    backward: int
    recomputed: int

    @property
    def forward(self) -> int:
        """One forward pass, attention at full T^2."""
        return self.attention_projections + self.attention_scores + self.mlp + self.head

    @property
    def forward_causal(self) -> int:
        """One forward pass, attention at its causal half."""
        return self.forward - self.attention_scores + self.attention_scores_causal

    @property
    def training(self) -> int:
        """One training step: 3 * forward when every visit carries gradient and none is checkpointed."""
        return self.forward + self.backward + self.recomputed

    @property
    def head_share(self) -> float:
        """The head's part of a forward pass, in [0, 1]."""
        return self.head / self.forward


def flops_per_token(shape: ModelShape, context_length: int, *, checkpoint_visits: bool = False) -> FlopsPerToken:
    """FLOPs per token: N * (2 * matrices of a block + 4 * T * h * e) + 2 * V * d forward, twice that backward.

    The backward pass of a product costs two products of its size, so a training step is 3 * forward; a
    checkpointed visit is done once more (4 * forward of the blocks). Visits without gradient cost their forward
    pass only. Fused attention kernels recompute the scores in their backward pass and so do 2.5 rather than 2
    times the forward scores; that is not counted here. Nor is the embedding's backward pass.

    Args:
        shape: the model.
        context_length: T, tokens in a sequence, at least 1.
        checkpoint_visits: each visit's activations are dropped and recomputed in the backward pass.

    Raises:
        PlanError: ``context_length`` is no whole number of at least 1.

    Source: Kaplan et al., arXiv 2001.08361, table 1, with attention at full T^2 and the head counted.

    Example:
        >>> from depthscale.plan import DepthPlan
        >>> shape = ModelShape(DepthPlan.looped(12, 3), 50257, 768, 6, 6, 128, 2048)
        >>> flops = flops_per_token(shape, 1024)
        >>> flops.forward, flops.training, round(flops.head_share, 3)
        (700048896, 2100146688, 0.11)
    """
    require_positive("context_length", context_length)
    visits = shape.plan.unrolled_depth
    projections = 2 * FLOPS_PER_WEIGHT * shape.hidden_size * (shape.query_width + shape.key_value_width)
    mlp_matrix = FLOPS_PER_WEIGHT * shape.hidden_size * shape.intermediate_size
    mlp = MATRICES_PER_MLP[shape.mlp] * mlp_matrix
    scores = 2 * FLOPS_PER_WEIGHT * context_length * shape.query_width
    visit = projections + scores + mlp
    head = FLOPS_PER_WEIGHT * shape.hidden_size * shape.vocab_size

    gradient_visits = shape.plan.counts().gradient_depth
    backward = 2 * (gradient_visits * visit + head) - _unneeded_input_gradients(shape)
    # torch stops recomputing at the last tensor that the backward pass needs. Under `pre` that is the input of
    # the down projection, whose output only enters a sum; the outer norm of the others needs its output too.
    repeated = visit - mlp_matrix if shape.norm_placement == "pre" else visit
    return FlopsPerToken(
        attention_projections=visits * projections,
        attention_scores=visits * scores,
        attention_scores_causal=visits * FLOPS_PER_WEIGHT * (context_length + 1) * shape.query_width,
        mlp=visits * mlp,
        head=head,
        backward=backward,
        recomputed=gradient_visits * repeated if checkpoint_visits else 0,
    )


def kv_cache_bytes_per_token(shape: ModelShape, bytes_per_element: int = 2) -> int:
    """Bytes of keys and values per token: 2 * g * e per visit, since each visit has a cache slot of its own.

    Example:
        >>> from depthscale.plan import DepthPlan
        >>> kv_cache_bytes_per_token(ModelShape(DepthPlan.looped(12, 3), 50257, 768, 6, 6, 128, 2048))
        110592
    """
    require_positive("bytes_per_element", bytes_per_element)
    return 2 * shape.key_value_width * shape.plan.unrolled_depth * bytes_per_element


def _unneeded_input_gradients(shape: ModelShape) -> int:
    """FLOPs that the backward pass saves where truncation leaves a visit's input without gradient.

    The first visit after a detached stream needs no gradient of its input. Only `post` gains by it: there q, k
    and v read the stream itself, while an inner norm's gain asks for that gradient anyway. An injected segment
    input carries gradient into the visit, so nothing is saved then.
    """
    if shape.norm_placement != "post":
        return 0
    detached = sum(
        group.num_gradient_visits > 0 and segment.num_gradient_rounds < segment.rounds and not segment.inject
        for segment, group in zip(shape.plan.segments, shape.plan.counts().groups, strict=True)
    )
    return detached * FLOPS_PER_WEIGHT * shape.hidden_size * (shape.query_width + 2 * shape.key_value_width)
