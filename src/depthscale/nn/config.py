"""The looped language model's config: shape, plan and finished residual scales, all plain data."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedConfig

NORM_PLACEMENTS = ("post", "sandwich", "pre")
MLP_KINDS = ("swiglu", "gelu")
SEGMENT_DEFAULTS: dict[str, Any] = {"rounds": 1, "inject": False, "grad_rounds": None, "fixed": False}
SCALE_NAMES = ("skip", "gain", "branch", "lr_multiplier")


class LoopedLMConfig(PreTrainedConfig):
    """Everything that decides the function a looped language model computes.

    Attributes:
        vocab_size: number of token ids.
        hidden_size: width of the residual stream.
        num_attention_heads: query heads.
        num_key_value_heads: key and value heads, a divisor of the query heads; None is as many.
        head_dim: even size of a head; None is hidden_size / num_attention_heads.
        intermediate_size: inner width of the MLP; None is 8/3 of the width (swiglu, rounded down) or 4 times (gelu).
        mlp: "swiglu" or "gelu".
        norm_placement: "post", "sandwich" or "pre".
        plan: one dict per segment of consecutive blocks, run one after the other, with the keys ``blocks``,
            ``rounds`` (1), ``inject`` (False: before every round after the first, add the segment's input and
            normalize), ``grad_rounds`` (None: all; else only the last so many carry gradient, and
            without ``inject`` none reaches the segments before) and ``fixed`` (False: ``rounds=`` at forward changes
            its rounds).
        residual_scales: one dict per segment: ``skip`` (alpha), ``gain`` (beta, on initial weights), ``branch``
            (epsilon), ``lr_multiplier`` (for the trainer; the model ignores it); 1.0 where not given.
        residual_rule: ``{"name": ..., "arguments": ...}``, where the scales came from. Never read by the model.
        max_position_embeddings: sequence length the model is meant for. ``generate`` refuses longer prompts; rotary
            positions themselves set no limit.
        rope_theta: base of the rotary wavelengths.
        rms_norm_eps: added to the mean square in every norm.
        qk_norm: normalize query and key heads.
        embedding_norm: RMSNorm after the embedding, so that the stream enters with RMS 1.
        final_norm: RMSNorm before the head; None is True exactly for "pre".
        tie_word_embeddings: the head is the embedding.
        initializer_range: standard deviation of a gain-1 matrix; None is Xavier's sqrt(2 / (fan_in + fan_out)).
        embedding_initializer_range: standard deviation of embeddings (and of an untied head).
        output_multiplier: factor of the logits; 1 but in the maximal update parametrization.

    Raises:
        ValueError: a value is out of range, lists disagree in length, or a key looks like a misspelled one.

    Example:
        >>> config = LoopedLMConfig(hidden_size=64, num_attention_heads=4, plan=[{"blocks": 2, "rounds": 3}])
        >>> config.num_hidden_layers, config.intermediate_size, config.final_norm
        (6, 170, True)
    """

    model_type = "looped_lm"

    # Fields that may be left None are filled in below; their types are those of the finished config.
    vocab_size: int = 256
    hidden_size: int = 256
    num_attention_heads: int = 4
    num_key_value_heads: int = None  # type: ignore[assignment]
    head_dim: int = None  # type: ignore[assignment]
    intermediate_size: int = None  # type: ignore[assignment]
    mlp: str = "swiglu"
    norm_placement: str = "pre"
    plan: Sequence[Mapping[str, Any]] = ({"blocks": 4},)
    residual_scales: Sequence[Mapping[str, float]] = None  # type: ignore[assignment]
    residual_rule: Mapping[str, Any] | None = None
    max_position_embeddings: int = 2048
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    qk_norm: bool = False
    embedding_norm: bool = True
    final_norm: bool = None  # type: ignore[assignment]
    tie_word_embeddings: bool = True
    initializer_range: float | None = None
    embedding_initializer_range: float = 0.02
    output_multiplier: float = 1.0
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        self._check_keys(kwargs)
        self._check_shape()
        self.plan = [_segment(index, segment) for index, segment in enumerate(_list("plan", self.plan))]
        if not self.plan:
            raise ValueError("plan came without segments; expected at least one with its number of blocks")
        scales = [{} for _ in self.plan] if self.residual_scales is None else self.residual_scales
        self.residual_scales = [_scales(index, entry) for index, entry in enumerate(_list("residual_scales", scales))]
        self._check_scales()
        if self.final_norm is None:
            self.final_norm = self.norm_placement == "pre"
        super().__post_init__(**kwargs)

    def _check_keys(self, kwargs: Mapping[str, Any]) -> None:
        if "num_hidden_layers" in kwargs:
            raise ValueError("num_hidden_layers came as a model config key; it follows from the plan, leave it out")
        known = [field.name for field in dataclasses.fields(self)]
        for key in kwargs:
            # transformers puts keys of its own into config.json, so only a likely misspelling is refused.
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.85)
            if near:
                raise ValueError(f"unknown model config key '{key}'; did you mean '{near[0]}'?")

    def _check_shape(self) -> None:
        for name in ("vocab_size", "hidden_size", "num_attention_heads", "max_position_embeddings"):
            _require_count(name, getattr(self, name))
        if self.norm_placement not in NORM_PLACEMENTS:
            raise ValueError(_unknown("norm_placement", self.norm_placement, NORM_PLACEMENTS))
        if self.mlp not in MLP_KINDS:
            raise ValueError(_unknown("mlp", self.mlp, MLP_KINDS))
        if self.head_dim is None:
            if self.hidden_size % self.num_attention_heads:
                raise ValueError(
                    f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads"
                    f" {self.num_attention_heads}; change one, or state head_dim"
                )
            self.head_dim = self.hidden_size // self.num_attention_heads
        _require_count("head_dim", self.head_dim)
        if self.head_dim % 2:
            raise ValueError(f"head_dim came as {self.head_dim}; expected an even number (rotary positions pair it up)")
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        _require_count("num_key_value_heads", self.num_key_value_heads)
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of"
                f" num_key_value_heads {self.num_key_value_heads}; expected a divisor"
            )
        if self.intermediate_size is None:
            self.intermediate_size = self.hidden_size * 8 // 3 if self.mlp == "swiglu" else 4 * self.hidden_size
        _require_count("intermediate_size", self.intermediate_size)
        for name in ("rope_theta", "rms_norm_eps", "embedding_initializer_range", "output_multiplier"):
            _require_positive(name, getattr(self, name))
        if self.initializer_range is not None:
            _require_positive("initializer_range", self.initializer_range)

    def _check_scales(self) -> None:
        if len(self.residual_scales) != len(self.plan):
            raise ValueError(
                f"residual_scales has {len(self.residual_scales)} entries for {len(self.plan)} segments;"
                " expected one each"
            )
        ignored = "skip" if self.norm_placement == "pre" else "branch"
        for index, scales in enumerate(self.residual_scales):
            if scales[ignored] != 1:
                raise ValueError(
                    f"residual_scales[{index}] has {ignored} = {scales[ignored]!r}, which"
                    f" {self.norm_placement}-norm blocks ignore; expected 1"
                )

    @property
    def num_hidden_layers(self) -> int:
        """N: visits of one forward pass at the plan's own rounds. Derived, so that it cannot disagree with the plan."""
        return sum(segment["blocks"] * segment["rounds"] for segment in self.plan)

    @property
    def num_blocks(self) -> int:
        """K: distinct blocks."""
        return sum(segment["blocks"] for segment in self.plan)

    @property
    def block_segments(self) -> list[int]:
        """The segment of each block, and so its entry of ``residual_scales``."""
        return [index for index, segment in enumerate(self.plan) for _ in range(segment["blocks"])]


def _segment(index: int, given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise ValueError(f"plan[{index}] came as {given!r}; expected a table with blocks and rounds")
    for key in given:
        if key != "blocks" and key not in SEGMENT_DEFAULTS:
            raise ValueError(_unknown(f"key of plan[{index}]", key, ("blocks", *SEGMENT_DEFAULTS)))
    if "blocks" not in given:
        raise ValueError(f"plan[{index}] has no 'blocks'; expected their number")
    segment = {
        "blocks": given["blocks"],
        **{key: given.get(key, value) for key, value in SEGMENT_DEFAULTS.items()},
    }
    _require_count(f"plan[{index}].blocks", segment["blocks"])
    _require_count(f"plan[{index}].rounds", segment["rounds"])
    if segment["grad_rounds"] is not None:
        _require_count(f"plan[{index}].grad_rounds", segment["grad_rounds"])
    for key in ("inject", "fixed"):
        if not isinstance(segment[key], bool):
            raise ValueError(f"plan[{index}].{key} came as {segment[key]!r}; expected true or false")
    return segment


def _scales(index: int, given: Any) -> dict[str, float]:
    if not isinstance(given, Mapping):
        raise ValueError(f"residual_scales[{index}] came as {given!r}; expected a table with {', '.join(SCALE_NAMES)}")
    for key in given:
        if key not in SCALE_NAMES:
            raise ValueError(_unknown(f"key of residual_scales[{index}]", key, SCALE_NAMES))
    for name, value in given.items():
        _require_positive(f"residual_scales[{index}].{name}", value)
    return {name: float(given.get(name, 1.0)) for name in SCALE_NAMES}


def _list(name: str, value: Any) -> list[Any]:
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
        raise ValueError(f"{name} came as {value!r}; expected a list with one entry per segment")
    return list(value)


def _require_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} came as {value!r}; expected a whole number of at least 1")


def _require_positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} came as {value!r}; expected a positive finite number")


def _unknown(kind: str, name: Any, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    hint = f"; did you mean '{near[0]}'?" if near else "."
    return f"unknown {kind} '{name}'{hint} Known: {', '.join(known)}"
