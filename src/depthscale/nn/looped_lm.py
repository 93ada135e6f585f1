"""The looped language model: embedding, visits, head.

    x_0 = Norm(embedding)                                    hidden state 0
    x_v = block of visit v (x_{v-1}),  v = 1 ... N           hidden state v, raw
    logits = head(Norm(x_N)), the norm only where ``final_norm`` says so

A block that is visited again is the same module called again: its parameters are paid once, its compute, memory
and (later) cache per visit, and its gradient is the sum over its visits. Forward knows no residual rule by name;
the numbers are in the config.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput
from transformers.utils.generic import can_return_tuple

from .attention import rotary_tables
from .block import Block
from .config import LoopedLMConfig
from .init import initialize_module
from .loss import next_token_loss
from .masking import attention_pattern, default_position_ids


class LoopedLMPreTrainedModel(PreTrainedModel):
    """What transformers needs to know of both classes below."""

    config_class = LoopedLMConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]  # noqa: RUF012 - transformers' own declaration
    _supports_sdpa = True

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
        its device; the first forward pass compiles.

        Args:
            backend: as for ``torch.compile``.
            dynamic: as for ``torch.compile``; None compiles again for symbolic sizes when a size changes.
        """
        for module in self.modules():
            if isinstance(module, Block):
                module.compile(backend=backend, dynamic=dynamic)


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
    ) -> BaseModelOutput:
        """Run every visit. Arguments as for :meth:`LoopedLMForCausalLM.forward`.

        Returns:
            ``last_hidden_state`` ``[batch, tokens, width]``: what the head reads, after the final norm if there is
            one. ``hidden_states``, when asked for: 1 + N raw states, the input of the first visit and the output
            of each, never after the final norm.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("expected exactly one of input_ids and inputs_embeds; got both or neither")
        hidden_state = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        batch, tokens, _ = hidden_state.shape
        for name, given in (("attention_mask", attention_mask), ("document_ids", document_ids)):
            if given is not None and given.shape != (batch, tokens):
                raise ValueError(f"{name} came with shape {tuple(given.shape)}; expected {(batch, tokens)}")
        if position_ids is None:
            position_ids = default_position_ids(attention_mask, tokens, hidden_state.device)
        mask = attention_pattern(attention_mask, document_ids)
        rotary = rotary_tables(position_ids, self.config.head_dim, self.config.rope_theta)

        if self.embedding_norm is not None:
            hidden_state = self.embedding_norm(hidden_state)
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        states = [hidden_state]
        visit, first_block = 0, 0
        for segment, num_rounds in zip(self.config.plan, self._rounds_per_segment(rounds), strict=True):
            blocks = [self.blocks[first_block + offset] for offset in range(segment["blocks"])]
            first_block += segment["blocks"]
            segment_input = hidden_state
            num_without_gradient = 0 if segment["grad_rounds"] is None else num_rounds - segment["grad_rounds"]
            for round_ in range(num_rounds):
                with torch.set_grad_enabled(torch.is_grad_enabled() and round_ >= num_without_gradient):
                    if segment["inject"] and round_ > 0:
                        hidden_state = self._inject(hidden_state, segment_input)
                    for block in blocks:
                        hidden_state = block(hidden_state, rotary, mask, visit)
                        visit += 1
                        if wanted:
                            states.append(hidden_state)
                if round_ == num_without_gradient - 1:
                    # Older torch reuses weights cast without gradient, which would starve the rounds that have it.
                    torch.clear_autocast_cache()

        if self.final_norm is not None:
            hidden_state = self.final_norm(hidden_state)
        return BaseModelOutput(last_hidden_state=hidden_state, hidden_states=tuple(states) if wanted else None)

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


class LoopedLMForCausalLM(LoopedLMPreTrainedModel):
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
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
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
    ) -> CausalLMOutput:
        """Predict every next token. Any other keyword argument is a TypeError, so that none is ignored in silence.

        Args:
            input_ids: int64 ``[batch, tokens]``.
            attention_mask: ``[batch, tokens]``, 1 for real tokens and 0 for padding, on either side.
            position_ids: int64 ``[batch or 1, tokens]``; None counts the real tokens of each row.
            inputs_embeds: ``[batch, tokens, width]`` in place of ``input_ids``, before the embedding norm.
            labels: int64 ``[batch, tokens]``, unshifted, -100 ignored; see :func:`next_token_loss`.
            document_ids: int ``[batch, tokens]``; a token sees only tokens of its own document.
            rounds: rounds of every segment that is not fixed; None is the plan's own.
            output_hidden_states: also return the 1 + N raw states; None is what the config says.
            num_items_in_batch: divisor of the summed loss; None takes the mean.
            logits_to_keep: logits of only the last so many positions, or of these positions; 0 is all.

        Returns:
            ``loss`` (float32, nats per token) when labels came, ``logits`` ``[batch, tokens, vocabulary]``, and
            ``hidden_states`` when asked for.

        Raises:
            ValueError: shapes disagree, ``rounds`` is below 1, or a loss was asked of only some logits.
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
        return CausalLMOutput(loss=loss, logits=logits, hidden_states=outputs.hidden_states)
