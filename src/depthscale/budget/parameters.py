"""A model's shape and its exact number of parameters: each block is paid once, however often it is visited.

Letters in this package's formulas:

    d  ``hidden_size``            h  ``num_attention_heads``     g  ``num_key_value_heads``   e  ``head_dim``
    f  ``intermediate_size``      V  ``vocab_size``              K  distinct blocks           N  block visits
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from depthscale.errors import PlanError, unknown_name
from depthscale.plan import DepthPlan

NormPlacement = Literal["post", "sandwich", "pre"]
MlpKind = Literal["swiglu", "gelu"]
NORMS_PER_BLOCK: Mapping[NormPlacement, int] = {"post": 2, "sandwich": 4, "pre": 2}
MATRICES_PER_MLP: Mapping[MlpKind, int] = {"swiglu": 3, "gelu": 2}


@dataclass(frozen=True)
class ModelShape:
    """All that the budgets need to know of a looped language model.

    Attributes:
        plan: which block is visited when.
        vocab_size: V, rows of the embedding and of the head.
        hidden_size: d, width of the residual stream.
        num_attention_heads: h, query heads.
        num_key_value_heads: g, a divisor of h; equal to h without grouped queries.
        head_dim: e, an even number (rotary positions turn pairs); h * e need not be d.
        intermediate_size: f, width inside the MLP.
        mlp: "swiglu" (three matrices) or "gelu" (two). No matrix has a bias.
        norm_placement: "post" and "pre" have two norms a block, "sandwich" four.
        qk_norm: a norm over each query's and each key's ``head_dim``.
        embedding_norm: a norm between the embedding and the first visit.
        final_norm: a norm before the head; None means True exactly for "pre".
        tie_word_embeddings: the head is the embedding, counted once.

    Raises:
        PlanError: a size is no whole number of at least 1, or sizes do not fit each other.
    """

    plan: DepthPlan
    vocab_size: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    mlp: MlpKind = "swiglu"
    norm_placement: NormPlacement = "post"
    qk_norm: bool = False
    embedding_norm: bool = True
    final_norm: bool | None = None
    tie_word_embeddings: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.plan, DepthPlan):
            raise PlanError(f"plan came as {self.plan!r}; expected a DepthPlan such as DepthPlan.looped(12, 3)")
        for name in _SIZES:
            require_positive(name, getattr(self, name))
        if self.mlp not in get_args(MlpKind):
            raise PlanError(unknown_name("mlp", str(self.mlp), get_args(MlpKind)))
        if self.norm_placement not in get_args(NormPlacement):
            raise PlanError(unknown_name("norm_placement", str(self.norm_placement), get_args(NormPlacement)))
        if self.num_attention_heads % self.num_key_value_heads:
            raise PlanError(
                f"num_key_value_heads came as {self.num_key_value_heads} with {self.num_attention_heads}"
                " attention heads; expected a divisor of the attention heads"
            )
        if self.head_dim % 2:
            raise PlanError(f"head_dim came as {self.head_dim}; expected an even number (rotary positions)")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelShape:
        """Read the shape from a model's ``config.json`` (or ``config.to_dict()``); other keys are ignored.

        Raises:
            PlanError: a key is missing, or a value is out of range.
        """
        missing = [name for name in _CONFIG_KEYS if name not in config]
        if missing:
            raise PlanError(f"model config has no {', '.join(missing)}; expected the config of a looped_lm model")
        heads = require_positive("num_attention_heads", config["num_attention_heads"])
        width = require_positive("hidden_size", config["hidden_size"])
        head_dim = config.get("head_dim")
        if head_dim is None and width % heads:
            raise PlanError(f"hidden_size {width} is not divisible by {heads} heads; pass head_dim or change one")
        kv_heads = config.get("num_key_value_heads")
        return cls(
            plan=DepthPlan.from_dict({"segments": config["plan"]}),
            vocab_size=config["vocab_size"],
            hidden_size=width,
            num_attention_heads=heads,
            num_key_value_heads=heads if kv_heads is None else kv_heads,
            head_dim=width // heads if head_dim is None else head_dim,
            intermediate_size=config["intermediate_size"],
            mlp=config["mlp"],
            norm_placement=config["norm_placement"],
            qk_norm=config.get("qk_norm", False),
            embedding_norm=config.get("embedding_norm", True),
            final_norm=config.get("final_norm"),
            tie_word_embeddings=config.get("tie_word_embeddings", True),
        )

    @property
    def query_width(self) -> int:
        """h * e, the width of all query heads together."""
        return self.num_attention_heads * self.head_dim

    @property
    def key_value_width(self) -> int:
        """g * e, the width of all key (or value) heads together."""
        return self.num_key_value_heads * self.head_dim

    @property
    def has_final_norm(self) -> bool:
        """Whether a norm stands before the head."""
        return self.norm_placement == "pre" if self.final_norm is None else self.final_norm


@dataclass(frozen=True)
class ParameterCount:
    """Numbers of parameters; shared ones are counted once.

    Attributes:
        num_blocks: K, distinct blocks.
        block_attention: query, key, value and output matrices of one block.
        block_mlp: MLP matrices of one block.
        block_norms: norm gains of one block, QK norms among them.
        embedding: the V * d table; it is the head's too when tied.
        head: the head's own V * d matrix, 0 when tied.
        outer_norms: gains of the embedding norm and of the final norm.
    """

    num_blocks: int
    block_attention: int
    block_mlp: int
    block_norms: int
    embedding: int
    head: int
    outer_norms: int

    @property
    def block_matrices(self) -> int:
        """Matrix parameters of one block."""
        return self.block_attention + self.block_mlp

    @property
    def block(self) -> int:
        """All parameters of one block."""
        return self.block_matrices + self.block_norms

    @property
    def non_embedding(self) -> int:
        """Everything but the embedding and the untied head."""
        return self.num_blocks * self.block + self.outer_norms

    @property
    def total(self) -> int:
        """Every parameter once, as ``sum(p.numel() for p in model.parameters())``."""
        return self.non_embedding + self.embedding + self.head


def count_parameters(shape: ModelShape) -> ParameterCount:
    """Exact numbers of parameters: per block d*e*(2h + 2g) + 3df (GELU: 2df) and its norms; K of them; V*d.

    Example:
        >>> shape = ModelShape(DepthPlan.looped(12, 3), 50257, 768, 6, 6, 128, 2048)
        >>> count = count_parameters(shape)
        >>> count.total, count.non_embedding, count.embedding
        (123551232, 84953856, 38597376)
    """
    width = shape.hidden_size
    qk_norms = 2 * shape.head_dim if shape.qk_norm else 0
    table = shape.vocab_size * width
    return ParameterCount(
        num_blocks=shape.plan.num_blocks,
        block_attention=2 * width * (shape.query_width + shape.key_value_width),
        block_mlp=MATRICES_PER_MLP[shape.mlp] * width * shape.intermediate_size,
        block_norms=NORMS_PER_BLOCK[shape.norm_placement] * width + qk_norms,
        embedding=table,
        head=0 if shape.tie_word_embeddings else table,
        outer_norms=width * (int(shape.embedding_norm) + int(shape.has_final_norm)),
    )


def require_positive(name: str, value: object) -> int:
    """``value`` itself when it is a whole number of at least 1; an error that names it otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PlanError(f"{name} came as {value!r}; expected a whole number of at least 1")
    return value


_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
)
_CONFIG_KEYS = (
    "plan",
    "vocab_size",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "mlp",
    "norm_placement",
)
