"""Which extra a verb needs."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from types import MappingProxyType

from depthscale.errors import MissingExtraError

#: What is imported from each extra.
EXTRA_MODULES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "lm": ("torch", "transformers", "accelerate", "tokenizers", "safetensors", "jaxtyping", "filelock"),
        "eval": ("lm_eval", "datasets"),
    }
)


def require_extra(verb: str, extra: str) -> None:
    """Refuse a verb whose extra is not installed.

    Raises:
        MissingExtraError: names the extra.
    """
    for module in EXTRA_MODULES[extra]:
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError(verb, extra, module)


def require_lm(verb: str) -> None:
    """:func:`require_extra` for verbs that train or load models."""
    require_extra(verb, "lm")
