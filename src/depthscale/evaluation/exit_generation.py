"""Generation with early exit: each sequence takes as many rounds for its next token as its rule asks for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from depthscale.errors import PlanError, unknown_name
from depthscale.evaluation.early_exit import EXIT_RULES, round_ends
from depthscale.nn import LoopedLMForCausalLM


@dataclass(frozen=True)
class ExitGeneration:
    """Greedy tokens and what they took.

    Attributes:
        sequences: int64 ``[batch, prompt + new]``.
        rounds_used: int64 ``[batch, new]``; 0 after a sequence has ended.
    """

    sequences: Tensor
    rounds_used: Tensor

    @property
    def mean_rounds(self) -> float:
        """Mean rounds of a generated token, over the sequences while they go on."""
        used = self.rounds_used[self.rounds_used > 0]
        return float(used.float().mean())


@torch.inference_mode()
def generate_with_exit(
    model: LoopedLMForCausalLM,
    input_ids: Tensor,
    *,
    rule: str,
    threshold: float,
    rounds: int,
    max_new_tokens: int,
) -> ExitGeneration:
    """Greedy generation in which every sequence leaves the loop on its own, token by token.

    Nothing is cached and every token runs all rounds: a later token attends to what earlier ones computed in each
    round, and a round that was skipped has left no keys or values. So this measures how many rounds are needed and
    what the text becomes; it saves no time.

    Args:
        model: with exactly one segment that loops.
        input_ids: int64 ``[batch, prompt]``, prompts of one length.
        rule: one of ``EXIT_RULES``.
        threshold: a sequence leaves at the first round whose signal at its last token is at most this.
        rounds: R, where it leaves at the latest.
        max_new_tokens: at least 1; a sequence ends sooner at the end-of-text token.

    Raises:
        PlanError: unknown rule, or the plan has no single loop.
        ValueError: the prompt is empty, the number of new tokens is below 1, or both together exceed the context.
    """
    if rule not in EXIT_RULES:
        raise PlanError(unknown_name("exit rule", rule, EXIT_RULES))
    if input_ids.ndim != 2 or not input_ids.shape[1]:
        raise ValueError(f"input_ids came with shape {tuple(input_ids.shape)}; expected [batch, at least one token]")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens came as {max_new_tokens}; expected at least 1")
    if input_ids.shape[1] + max_new_tokens > model.config.max_position_embeddings:
        raise ValueError(
            f"a prompt of {input_ids.shape[1]} tokens and {max_new_tokens} new ones exceed the context of"
            f" {model.config.max_position_embeddings} (max_position_embeddings); ask for fewer"
        )
    end_of_text = model.config.eos_token_id
    sequences = input_ids
    ended = torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
    all_used = []
    for _ in range(max_new_tokens):
        token, used = _next_token(model, sequences, rule, threshold, rounds)
        if end_of_text is not None:
            token = torch.where(ended, torch.full_like(token, end_of_text), token)
        sequences = torch.cat((sequences, token[:, None]), dim=1)
        all_used.append(torch.where(ended, torch.zeros_like(used), used))
        if end_of_text is not None:
            ended = ended | (token == end_of_text)
        if bool(ended.all()):
            break
    return ExitGeneration(sequences, torch.stack(all_used, dim=1))


def _next_token(
    model: LoopedLMForCausalLM, sequences: Tensor, rule: str, threshold: float, rounds: int
) -> tuple[Tensor, Tensor]:
    token = torch.zeros(len(sequences), dtype=torch.int64, device=sequences.device)
    used = torch.zeros_like(token)
    for round_, end in enumerate(round_ends(model, {"input_ids": sequences}, rounds, keep=1), start=1):
        leaves = (used == 0) & ((end.signals[rule][:, -1] <= threshold) | (round_ == rounds))
        token = torch.where(leaves, end.logits[:, -1].argmax(dim=-1), token)
        used = torch.where(leaves, torch.full_like(used, round_), used)
        if bool((used > 0).all()):
            break
    return token, used
