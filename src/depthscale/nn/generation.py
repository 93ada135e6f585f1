"""What ``generate`` needs to know of a looped model; the search itself is transformers'."""

from __future__ import annotations

from typing import Any

from transformers import DynamicCache, GenerationConfig
from transformers.generation import GenerationMixin

from .cache import CACHE_FIELD


class LoopedGenerationMixin(GenerationMixin):
    """transformers' ``generate``, with ``rounds=`` as an argument of every forward pass.

    Two of its steps are refined: the cache it makes has to grow with the rounds, and a prompt that the model cannot
    place is refused.
    """

    def _prepare_cache_for_generation(
        self, generation_config: GenerationConfig, model_kwargs: dict[str, Any], *rest: Any
    ) -> None:
        if model_kwargs.get("inputs_embeds") is not None:
            # Read in place of the token ids, whose number is all that the check of lengths is told.
            self._require_context(model_kwargs["inputs_embeds"].shape[1])
        given = model_kwargs.get(CACHE_FIELD) is not None
        if given and generation_config.use_cache is False:
            raise ValueError("generate got a cache and use_cache=False; expected one of them")
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *rest)
        grows = generation_config.cache_implementation in (None, "dynamic")
        if not given and grows and CACHE_FIELD in model_kwargs:
            # transformers counts its slots by the config, hence by the plan's own rounds.
            model_kwargs[CACHE_FIELD] = DynamicCache()

    def _validate_generated_length(
        self, generation_config: GenerationConfig, input_ids_length: int, has_default_max_length: bool
    ) -> None:
        self._require_context(input_ids_length)
        super()._validate_generated_length(generation_config, input_ids_length, has_default_max_length)

    def _require_context(self, length: int) -> None:
        limit = self.config.max_position_embeddings
        if length > limit:
            raise ValueError(
                f"the prompt has {length} tokens, more than the context of {limit} (max_position_embeddings);"
                " shorten it"
            )
