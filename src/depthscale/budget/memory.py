"""Memory of a training step: what autograd keeps, and what weights and optimizer hold.

Autograd keeps, for each visit that carries gradient, the tensors its backward pass reads. Counted are torch's
own kernels as they are when nothing is compiled: fused attention, which keeps no T^2 scores, and an RMSNorm
that keeps its input and its input normalized. A fused RMSNorm (some GPU builds, torch.compile) keeps only the
input: d less per norm, about a tenth of a visit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from depthscale.budget.parameters import (
    MATRICES_PER_MLP,
    NORMS_PER_BLOCK,
    MlpKind,
    ModelShape,
    count_parameters,
    require_positive,
)
from depthscale.errors import PlanError

FLOAT32_BYTES = 4
LOSS_TENSORS = 3
"""Log-softmax, its gradient and the logits' gradient: tensors of V that live at once."""
KEPT_BY_MLP: Mapping[MlpKind, int] = {"swiglu": 4, "gelu": 2}
"""Tensors of f that an MLP keeps: gate, silu(gate), up and their product; up and gelu(up)."""


@dataclass(frozen=True)
class ActivationMemory:
    """Bytes that a training step allocates beyond weights, their gradients and the optimizer's moments.

    Attributes:
        visits: kept by the visits between forward and backward; under checkpointing their inputs only.
        recomputed: under checkpointing, what one visit keeps while it is done again; 0 otherwise.
        outer: embedding, its norm, the final norm, rotary tables, attention mask, matrices cast by autocast.
        loss: what the loss holds at most; gone when the last visit's backward pass begins.
        passing: gradients on their way through that visit.
    """

    visits: int
    recomputed: int
    outer: int
    loss: int
    passing: int

    @property
    def peak(self) -> int:
        """The larger of two moments: the loss, and the backward pass of the last visit."""
        return self.outer + self.visits + max(self.loss, self.recomputed + self.passing)


def activation_memory(
    shape: ModelShape,
    context_length: int,
    batch_rows: int,
    bytes_per_element: int = 4,
    *,
    checkpoint_visits: bool = False,
    masked: bool = False,
) -> ActivationMemory:
    """Bytes of activations at the peak of one training step on ``batch_rows`` rows of ``context_length`` tokens.

    Per token in float32 a visit keeps (2 + 2 * norms) * d of the stream, 2he + 2ge of attention and 4f (GELU: 2f)
    of the MLP, the loss holds 3V. Visits without gradient keep nothing.

    Args:
        shape: the model.
        context_length: T, tokens in a row.
        batch_rows: rows of one forward pass (one accumulation step on one device).
        bytes_per_element: 4, all in float32; or 2, autocast to bfloat16 with float32 weights, where the stream,
            the norms and the loss stay in float32 and every product makes a narrow copy of its input.
        checkpoint_visits: only each visit's input is kept, and the visit done again in the backward pass.
        masked: rows hold padding or several documents; every visit then keeps a T^2 mask for each row.

    Raises:
        PlanError: a length is no whole number of at least 1, or ``bytes_per_element`` is neither 4 nor 2.

    Source: counted from the operations of ``depthscale.nn``; compare Korthikanti et al., arXiv 2205.05198,
        section 4, whose layer has dropout and unfused attention.

    Example:
        >>> from depthscale.plan import DepthPlan
        >>> shape = ModelShape(DepthPlan.looped(12, 3), 50257, 768, 6, 6, 128, 2048)
        >>> round(activation_memory(shape, 1024, 8).peak / 2**30, 1)
        22.1
        >>> round(activation_memory(shape, 1024, 8, checkpoint_visits=True).peak / 2**30, 1)
        5.5
    """
    require_positive("context_length", context_length)
    tokens = context_length * require_positive("batch_rows", batch_rows)
    if bytes_per_element not in (2, FLOAT32_BYTES):
        raise PlanError(
            f"bytes_per_element came as {bytes_per_element!r}; expected 4 (float32) or 2 (autocast to bfloat16)"
        )
    state = tokens * shape.hidden_size * FLOAT32_BYTES
    mask = context_length * tokens if masked else 0
    kept = tokens * _bytes_kept_by_visit(shape, bytes_per_element) + mask * bytes_per_element
    gradient_visits = shape.plan.counts().gradient_depth
    repeated = kept - state if checkpoint_visits and bytes_per_element == FLOAT32_BYTES else kept
    return ActivationMemory(
        visits=gradient_visits * (state if checkpoint_visits else kept) + _num_injections(shape) * state,
        recomputed=repeated if checkpoint_visits else 0,
        outer=(
            2 * state * (int(shape.embedding_norm) + int(shape.has_final_norm))
            + tokens * shape.hidden_size * bytes_per_element
            + 2 * context_length * shape.head_dim * FLOAT32_BYTES
            + mask
            + (_bytes_of_cast_matrices(shape, checkpoint_visits) if bytes_per_element == 2 else 0)
        ),
        loss=LOSS_TENSORS * tokens * shape.vocab_size * FLOAT32_BYTES,
        passing=tokens * _bytes_passing(shape, bytes_per_element),
    )


@dataclass(frozen=True)
class TrainingState:
    """Bytes that a training run holds beside its activations."""

    weights: int
    gradients: int
    moments: int

    @property
    def total(self) -> int:
        """Weights, their gradients and the optimizer's moments."""
        return self.weights + self.gradients + self.moments


def training_state_bytes(
    shape: ModelShape, *, weight_bytes: int = 4, gradient_bytes: int = 4, moment_bytes: int = 4
) -> TrainingState:
    """Bytes of weights, gradients and Adam's two moments: 16 per parameter in float32, each parameter once.

    Example:
        >>> from depthscale.plan import DepthPlan
        >>> training_state_bytes(ModelShape(DepthPlan.looped(12, 3), 50257, 768, 6, 6, 128, 2048)).total
        1976819712
    """
    parameters = count_parameters(shape).total
    return TrainingState(
        weights=parameters * require_positive("weight_bytes", weight_bytes),
        gradients=parameters * require_positive("gradient_bytes", gradient_bytes),
        moments=2 * parameters * require_positive("moment_bytes", moment_bytes),
    )


def _bytes_kept_by_visit(shape: ModelShape, bytes_per_element: int) -> int:
    """Bytes per token that one visit keeps, its input among them."""
    width, heads = shape.hidden_size, shape.num_attention_heads
    norms = NORMS_PER_BLOCK[shape.norm_placement]
    both_widths = shape.query_width + shape.key_value_width
    # q, k and v read one tensor, and so do gate and up; autocast makes a copy for each of them.
    inputs = 2 if bytes_per_element == FLOAT32_BYTES else 3 + MATRICES_PER_MLP[shape.mlp] - 1
    narrow = inputs * width + 2 * both_widths + KEPT_BY_MLP[shape.mlp] * shape.intermediate_size
    # A norm keeps input, normalized input and its scale; attention the log of its softmax's denominator.
    wide = norms * (2 * width + 1) + heads
    if shape.qk_norm:
        wide += 2 * both_widths + heads + shape.num_key_value_heads
    return narrow * bytes_per_element + wide * FLOAT32_BYTES


def _bytes_passing(shape: ModelShape, bytes_per_element: int) -> int:
    """Bytes per token that the backward pass of the last visit adds, less what it has already let go.

    Either the outer norm's (four of d; `pre` has none), or the MLP's: gradients of its tensors of width f, when
    the last product and the outer norm's tensors are gone.
    """
    width = shape.hidden_size
    mlp = KEPT_BY_MLP[shape.mlp] // 2 * shape.intermediate_size * bytes_per_element - width * FLOAT32_BYTES
    return max(mlp, 0 if shape.norm_placement == "pre" else 4 * width * FLOAT32_BYTES)


def _bytes_of_cast_matrices(shape: ModelShape, checkpoint_visits: bool) -> int:
    """Autocast keeps a narrow copy of every matrix for the backward pass, or of one block's at a time."""
    count = count_parameters(shape)
    blocks = 1 if checkpoint_visits else count.num_blocks
    return 2 * (blocks * count.block_matrices + shape.vocab_size * shape.hidden_size)


def _num_injections(shape: ModelShape) -> int:
    """Injections whose norm must be passed backward: before each gradient-carrying round after the first."""
    groups = shape.plan.counts().groups
    return sum(
        segment.num_gradient_rounds - int(segment.num_gradient_rounds == segment.rounds)
        for segment, group in zip(shape.plan.segments, groups, strict=True)
        if segment.inject and group.num_gradient_visits
    )
