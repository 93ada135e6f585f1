"""The looped language model: embedding, visits, head.

    x_0 = Norm(embedding)                                    hidden state 0
    x_v = block of visit v (x_{v-1}),  v = 1 ... N           hidden state v, raw
    logits = head(Norm(x_N)), the norm only where ``final_norm`` says so

A block that is visited again is the same module called again: its parameters are paid once, its compute, memory
and cache per visit, and its gradient is the sum over its visits. Forward knows no residual rule by name;
the numbers are in the config.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import Cache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from .attention import Rotary, rotary_tables
from .block import Block
from .cache import CACHE_FIELD, choose_cache, open_cache
from .config import LoopedLMConfig
from .generation import LoopedGenerationMixin
from .head import Head
from .init import initialize_module
from .loss import next_token_loss
from .masking import attention_pattern, continued_attention_pattern, default_position_ids


class LoopedLMPreTrainedModel(PreTrainedModel):
    """What transformers needs to know of both classes below."""

    config_class = LoopedLMConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]  # noqa: RUF012 - transformers' own declaration
    _skip_keys_device_placement = ["past_key_values", "cache"]  # noqa: RUF012
    _supports_sdpa = True
    blocks_compiled = False

    def __init__(self, config: LoopedLMConfig) -> None:
        super().__init__(config)
        if config._attn_implementation != "sdpa":
            raise ValueError(
                f"attn_implementation came as {config._attn_implementation!r};"
                " expected 'sdpa', the only one this model has"
            )

    def _init_weights(self, module: nn.Module) -> None:
        initialize_module(module, self.config.initializer_range, self.config.embedding_initializer_range)

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | os.PathLike[str] | None, *model_args: Any, **kwargs: Any
    ) -> Any:
        """Load a checkpoint as transformers does, but refuse one that does not hold exactly this model's weights.

        transformers draws missing weights at random and only warns.

        Raises:
            ValueError: a weight is missing, or the checkpoint holds one that the model has no place for.
        """
        return_info = kwargs.pop("output_loading_info", False)
        model, info = super().from_pretrained(
            pretrained_model_name_or_path, *model_args, output_loading_info=True, **kwargs
        )
        # A tied matrix is saved under its source's name only, so its other name is never at fault.
        missing = set(info["missing_keys"]) - set(model.all_tied_weights_keys)
        for keys, complaint in (
            (missing, "the checkpoint lacks"),
            (info["unexpected_keys"], "the model of its config.json has no place for"),
        ):
            if keys:
                others = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
                raise ValueError(
                    f"{pretrained_model_name_or_path}: {complaint} '{min(keys)}'{others}; expected exactly the"
                    " weights of the plan in config.json. Save or copy the checkpoint again"
                )
        return (model, info) if return_info else model

    def compile_blocks(self, backend: str = "inductor", dynamic: bool | None = None) -> None:
        """Compile each distinct block once, in place; the loop over visits stays plain Python.

        So the number of rounds may change from step to step without compiling again, compilation takes the time
        of one block, and parameter names (hence checkpoints) stay as they were. Call it after moving the model to
        its device; the first forward pass compiles. Passes with a cache stay eager: its slots and growing length
        would compile again and again.

        Args:
            backend: as for ``torch.compile``.
            dynamic: as for ``torch.compile``; None compiles again for symbolic sizes when a size changes.
        """
        for module in self.modules():
            if isinstance(module, Block):
                module.compile(backend=backend, dynamic=dynamic)
            elif isinstance(module, LoopedLMPreTrainedModel):
                module.blocks_compiled = True


class LoopedLMModel(LoopedLMPreTrainedModel):
    """Token ids to hidden states, without the head."""

    # The head of a checkpoint with untied embeddings is not this class's to load.
    _keys_to_ignore_on_load_unexpected = [r"^lm_head\."]  # noqa: RUF012

    def __init__(self, config: LoopedLMConfig) -> None:
        super().__init__(config)
        width, eps = config.hidden_size, config.rms_norm_eps
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        self.embedding_norm = nn.RMSNorm(width, eps=eps) if config.embedding_norm else None
        self.blocks = nn.ModuleList(Block(config, config.residual_scales[segment]) for segment in config.block_segments)
        self.final_norm = nn.RMSNorm(width, eps=eps) if config.final_norm else None
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        document_ids: torch.Tensor | None = None,
        rounds: int | None = None,
        output_hidden_states: bool | None = None,
        past_key_values: Cache | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
    ) -> BaseModelOutputWithPast:
        """Run every visit. Arguments as for :meth:`LoopedLMForCausalLM.forward`.

        Returns:
            ``last_hidden_state`` ``[batch, tokens, width]``: what the head reads, after the final norm if there is
            one. ``hidden_states``, when asked for: 1 + N raw states, the input of the first visit and the output
            of each, never after the final norm. The cache, where one is used.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("expected exactly one of input_ids and inputs_embeds; got both or neither")
        hidden_state = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        batch, tokens, _ = hidden_state.shape
        if tokens == 0:
            raise ValueError("the input came without tokens; expected at least one")
        rounds_of_segments = self._rounds_per_segment(rounds)
        cache = choose_cache(past_key_values, cache, use_cache)
        num_past = 0
        if cache is not None:
            if document_ids is not None:
                raise ValueError("document_ids came with a cache, which holds one document; expected one of them")
            if self.training and self.is_gradient_checkpointing:
                raise ValueError("a cache came in training with checkpointing, which would fill it twice; leave it out")
            num_past = open_cache(cache, self._schedule(rounds_of_segments), batch)
        for name, given, expected in (
            ("attention_mask", attention_mask, (batch, num_past + tokens)),
            ("document_ids", document_ids, (batch, tokens)),
        ):
            if given is not None and given.shape != expected:
                raise ValueError(f"{name} came with shape {tuple(given.shape)}; expected {expected}")
        device = hidden_state.device
        if position_ids is None:
            position_ids = default_position_ids(attention_mask, tokens, device, num_past)
        if num_past:
            mask = continued_attention_pattern(attention_mask, tokens, device, num_past)
        else:
            mask = attention_pattern(attention_mask, document_ids)
        rotary = rotary_tables(position_ids, self.config.head_dim, self.config.rope_theta)

        if self.embedding_norm is not None:
            hidden_state = self.embedding_norm(hidden_state)
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        states = [hidden_state] if wanted else None
        eager = cache is not None and self.blocks_compiled
        with torch.compiler.set_stance("force_eager") if eager else contextlib.nullcontext():
            hidden_state = self._make_visits(hidden_state, rounds_of_segments, rotary, mask, cache, states)
        if self.final_norm is not None:
            hidden_state = self.final_norm(hidden_state)
        return BaseModelOutputWithPast(
            last_hidden_state=hidden_state,
            hidden_states=None if states is None else tuple(states),
            **{CACHE_FIELD: None if use_cache is False else cache},
        )

    def _make_visits(
        self,
        hidden_state: torch.Tensor,
        rounds_of_segments: list[int],
        rotary: Rotary,
        mask: torch.Tensor | None,
        cache: Cache | None,
        states: list[torch.Tensor] | None,
    ) -> torch.Tensor:
        """The output of the last visit; each visit's output is appended to ``states`` where there is a list."""
        visit, first_block = 0, 0
        for segment, num_rounds in zip(self.config.plan, rounds_of_segments, strict=True):
            blocks = [self.blocks[first_block + offset] for offset in range(segment["blocks"])]
            first_block += segment["blocks"]
            segment_input = hidden_state
            num_without_gradient = 0 if segment["grad_rounds"] is None else num_rounds - segment["grad_rounds"]
            for round_ in range(num_rounds):
                with torch.set_grad_enabled(torch.is_grad_enabled() and round_ >= num_without_gradient):
                    if segment["inject"] and round_ > 0:
                        hidden_state = self._inject(hidden_state, segment_input)
                    for block in blocks:
                        hidden_state = block(hidden_state, rotary, mask, visit, cache)
                        visit += 1
                        if states is not None:
                            states.append(hidden_state)
                if round_ == num_without_gradient - 1:
                    # Older torch reuses weights cast without gradient, which would starve the rounds that have it.
                    torch.clear_autocast_cache()
        return hidden_state

    def _schedule(self, rounds_of_segments: list[int]) -> list[int]:
        """The block of each visit."""
        schedule: list[int] = []
        first_block = 0
        for segment, num_rounds in zip(self.config.plan, rounds_of_segments, strict=True):
            schedule += [*range(first_block, first_block + segment["blocks"])] * num_rounds
            first_block += segment["blocks"]
        return schedule

    def _rounds_per_segment(self, rounds: int | None) -> list[int]:
        """The plan's own rounds, or ``rounds`` for every segment that is not fixed."""
        plan = self.config.plan
        if rounds is None:
            return [segment["rounds"] for segment in plan]
        if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
            raise ValueError(f"rounds came as {rounds!r}; expected a whole number of at least 1")
        if all(segment["fixed"] for segment in plan):
            raise ValueError("rounds was given, but every segment of the plan is fixed; leave it out")
        return [segment["rounds"] if segment["fixed"] else rounds for segment in plan]

    def _inject(self, hidden_state: torch.Tensor, segment_input: torch.Tensor) -> torch.Tensor:
        """x <- Norm(x + e) without a learned gain, e the segment's input."""
        return functional.rms_norm(
            hidden_state + segment_input, (self.config.hidden_size,), eps=self.config.rms_norm_eps
        )


class LoopedLMForCausalLM(LoopedLMPreTrainedModel, LoopedGenerationMixin):
    """Token ids to next-token logits and loss.

    Example:
        >>> config = LoopedLMConfig(vocab_size=97, hidden_size=32, plan=[{"blocks": 2, "rounds": 3}])
        >>> model = LoopedLMForCausalLM(config)
        >>> ids = torch.tensor([[1, 2, 3]])
        >>> output = model(ids, labels=ids, output_hidden_states=True)
        >>> tuple(output.logits.shape), len(output.hidden_states)
        ((1, 3, 97), 7)
    """

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012
    # Tells the Trainer to pass num_items_in_batch, which makes gradient accumulation exact.
    accepts_loss_kwargs = True

    def __init__(self, config: LoopedLMConfig) -> None:
        super().__init__(config)
        self.model = LoopedLMModel(config)
        self.lm_head = Head(config.hidden_size, config.vocab_size, config.output_multiplier)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        document_ids: torch.Tensor | None = None,
        rounds: int | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        past_key_values: Cache | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
    ) -> CausalLMOutputWithPast:
        """Predict every next token. Any other keyword argument is a TypeError, so that none is ignored in silence.

        Args:
            input_ids: int64 ``[batch, tokens]``.
            attention_mask: ``[batch, tokens]``, 1 for real tokens and 0 for padding, on either side; with a cache
                ``[batch, cached + tokens]``. One that masked tokens of the cache must come with every later pass.
            position_ids: int64 ``[batch or 1, tokens]``; None counts the real tokens of each row.
            inputs_embeds: ``[batch, tokens, width]`` in place of ``input_ids``, before the embedding norm.
            labels: int64 ``[batch, tokens]``, unshifted, -100 ignored; see :func:`next_token_loss`.
            document_ids: int ``[batch, tokens]``; a token sees only tokens of its own document. Not with a cache.
            rounds: rounds of every segment that is not fixed; None is the plan's own.
            output_hidden_states: also return the 1 + N raw states; None is what the config says.
            num_items_in_batch: divisor of the summed loss; None takes the mean.
            logits_to_keep: logits of only the last so many positions, or of these positions; 0 is all.
            past_key_values: keys and values of earlier tokens, one slot per visit; this pass goes on from them and
                adds its own. Either name will do: transformers renamed the argument.
            cache: the same.
            use_cache: see :func:`choose_cache`; None uses a cache only where one came.

        Returns:
            ``loss`` (float32, nats per token) when labels came, ``logits`` ``[batch, tokens, vocabulary]``,
            ``hidden_states`` when asked for, and the cache under the name that the installed transformers uses.

        Raises:
            ValueError: shapes disagree, ``rounds`` is below 1, a loss was asked of only some logits, or a cache was
                filled by other visits.
        """
        if labels is not None and not (isinstance(logits_to_keep, int) and logits_to_keep == 0):
            raise ValueError("labels came together with logits_to_keep; expected one of them (a loss needs all logits)")
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            document_ids=document_ids,
            rounds=rounds,
            output_hidden_states=output_hidden_states,
            past_key_values=past_key_values,
            cache=cache,
            use_cache=use_cache,
            return_dict=True,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            if labels.shape != logits.shape[:2]:
                raise ValueError(
                    f"labels came with shape {tuple(labels.shape)}; expected {tuple(logits.shape[:2])}, as the input"
                )
            loss = next_token_loss(logits, labels, num_items_in_batch)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            **{CACHE_FIELD: outputs.get(CACHE_FIELD)},
        )
