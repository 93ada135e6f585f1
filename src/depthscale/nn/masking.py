"""Which tokens may see which, and at what position each stands; a mask is built only where one is needed."""

from __future__ import annotations

import torch


def default_position_ids(
    attention_mask: torch.Tensor | None, tokens: int, device: torch.device, num_past: int = 0
) -> torch.Tensor:
    """Positions counted from each row's first real token, so that padding on the left shifts nothing.

    Packed documents need no positions of their own: rotary attention sees distances only.

    Args:
        attention_mask: ``[batch, num_past + tokens]``, or None.
        tokens: new tokens, those that get a position.
        device: where the positions are made when there is no attention mask.
        num_past: tokens before them that a cache holds.

    Returns:
        int64 ``[batch, tokens]``, or ``[1, tokens]`` when there is no attention mask.
    """
    if attention_mask is None:
        return torch.arange(num_past, num_past + tokens, device=device)[None]
    return (attention_mask.long().cumsum(dim=-1) - 1).clamp(min=0)[:, num_past:]


def attention_pattern(attention_mask: torch.Tensor | None, document_ids: torch.Tensor | None) -> torch.Tensor | None:
    """Causal attention among real tokens of the same document.

    Args:
        attention_mask: ``[batch, tokens]``, nonzero where a token is real; None when all are.
        document_ids: int ``[batch, tokens]``; None when every row is one document.

    Returns:
        bool ``[batch, 1, tokens, tokens]``, True where the row's token may see the column's, or None where plain
        causal attention says the same. Every token sees itself, also a padded one: a row that sees nothing would
        have no softmax.
    """
    if attention_mask is not None and bool((attention_mask != 0).all()):
        attention_mask = None
    if document_ids is not None and bool((document_ids[:, 1:] == document_ids[:, :-1]).all()):
        document_ids = None
    given = attention_mask if attention_mask is not None else document_ids
    if given is None:
        return None
    tokens = given.shape[-1]
    allowed = torch.ones(tokens, tokens, dtype=torch.bool, device=given.device).tril()[None]
    if attention_mask is not None:
        allowed = allowed & (attention_mask != 0)[:, None, :]
    if document_ids is not None:
        allowed = allowed & (document_ids[:, :, None] == document_ids[:, None, :])
    return (allowed | torch.eye(tokens, dtype=torch.bool, device=given.device))[:, None]


def continued_attention_pattern(
    attention_mask: torch.Tensor | None, tokens: int, device: torch.device, num_past: int
) -> torch.Tensor | None:
    """Causal attention of new tokens to those that a cache holds and to each other.

    Args:
        attention_mask: ``[batch, num_past + tokens]``, nonzero where a token is real; None when all are.
        tokens: new tokens.
        device: where the pattern is made when there is no attention mask.
        num_past: tokens in the cache.

    Returns:
        bool ``[batch or 1, 1, tokens, num_past + tokens]``, or None where a single new token sees everything. Every
        new token sees itself, also a padded one.
    """
    if attention_mask is not None and bool((attention_mask != 0).all()):
        attention_mask = None
    if attention_mask is None and tokens == 1:
        return None
    everything = torch.ones(tokens, num_past + tokens, dtype=torch.bool, device=device)
    allowed = everything.tril(num_past)[None]
    if attention_mask is not None:
        allowed = (allowed & (attention_mask != 0)[:, None, :]) | allowed.triu(num_past)
    return allowed[:, None]
