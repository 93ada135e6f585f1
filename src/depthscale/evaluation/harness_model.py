"""The harness's model, which counts the prompts that it has to cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lm_eval.models.huggingface import HFLM


class CountingHFLM(HFLM):
    """``HFLM`` as it is, with two counts beside.

    Attributes:
        asked: prompts scored so far.
        cut: those of them that were longer than the context, whose beginning is left off.
    """

    asked = 0
    cut = 0

    def _loglikelihood_tokens(
        self, requests: Sequence[Any], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> Any:
        self.asked += len(requests)
        # The last token is predicted and never read.
        self.cut += sum(len(context) + len(text) > self.max_length + 1 for _, context, text in requests)
        return super()._loglikelihood_tokens(requests, disable_tqdm, override_bs)
