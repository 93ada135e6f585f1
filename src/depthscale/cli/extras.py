"""Which extra a verb needs."""

from __future__ import annotations

import importlib.util

from depthscale.errors import MissingExtraError


def require_lm(verb: str) -> None:
    """Refuse a verb that trains or loads models where torch or transformers is not installed.

    Raises:
        MissingExtraError: names the extra.
    """
    for module in ("torch", "transformers", "accelerate", "tokenizers", "safetensors"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError(verb, "lm", module)
