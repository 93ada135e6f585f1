"""Early exits: memory of the head, heads that are no plain matrix, and exits that cannot be had."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from probe_models import VOCABULARY, WIDTH, make_model, random_ids
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM
from depthscale.probing.catalog import names_of
from depthscale.probing.lenses import exit_losses
from depthscale.probing.located import LocatedModel, locate
from depthscale.probing.quantities import measure_tokens
from depthscale.probing.states import TokenBatch, collect_states

ROOT = Path(__file__).parents[2]


def peak_bytes(located: LocatedModel, ids: torch.Tensor) -> int:
    """Tensors alive at once, as the benchmark counts them."""
    spec = importlib.util.spec_from_file_location("live_tensors", ROOT / "benchmarks" / "live_tensors.py")
    assert spec is not None
    assert spec.loader is not None
    counting = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(counting)
    with counting.PeakLiveBytes() as counted:
        list(measure_tokens(located, TokenBatch(ids), names_of("exit")))
    return int(counted.peak)


def test_exits_of_all_layers_take_less_than_two_layers_logits() -> None:
    torch.manual_seed(0)
    vocabulary, tokens = 8_000, 256
    config = GPT2Config(vocab_size=vocabulary, n_embd=16, n_layer=24, n_head=2, n_positions=tokens)
    located = locate(GPT2LMHeadModel(config).eval())
    peak = peak_bytes(located, torch.randint(0, vocabulary, (1, tokens)))
    # The peak is at least a slice of logits, so that nothing counted would fail too.
    assert 4 * tokens * 4096 <= peak < 2 * 4 * vocabulary * tokens


class WrappedHead(nn.Module):
    """A head that is more than a matrix."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner

    @property
    def weight(self) -> torch.Tensor:
        return self.inner.weight

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        return 2.0 * self.inner(state)


def test_a_head_that_is_no_plain_matrix_is_called_as_it_is() -> None:
    model = make_model("llama")
    model.lm_head = WrappedHead(model.lm_head)
    located = locate(model)
    ids = random_ids(2, 9)
    (found,) = measure_tokens(located, TokenBatch(ids), names_of("exit"))
    with torch.no_grad():
        own = model(ids, labels=ids).loss.item()
    assert found.values["logit_lens_loss"][-1].mean().item() == pytest.approx(own, abs=2e-6)


def test_head_bias_and_half_precision_are_read_in_float32() -> None:
    torch.manual_seed(0)
    model = make_model("qwen2").bfloat16()
    head = nn.Linear(WIDTH, VOCABULARY).bfloat16()
    located = LocatedModel(**{**vars(locate(model)), "head": head})
    states = collect_states(located, TokenBatch(random_ids(1, 8))).states[-1][0]
    targets = random_ids(1, 8, 3)[0]
    with torch.no_grad():
        found = exit_losses(located, states, targets)
        logits = head(located.head_input(states)).float()
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, nn.functional.cross_entropy(logits, targets, reduction="none"))


def test_an_exit_through_a_block_that_reads_an_injection_is_left_out() -> None:
    """One block that loops with injection reads Norm(x + e), which no exit state is."""
    torch.manual_seed(0)
    plan = [{"blocks": 1, "rounds": 3, "inject": True}]
    model = LoopedLMForCausalLM(
        LoopedLMConfig(vocab_size=VOCABULARY, hidden_size=WIDTH, num_attention_heads=2, plan=plan)
    ).eval()
    (found,) = measure_tokens(locate(model), TokenBatch(random_ids(2, 8)), names_of("exit"))
    assert set(found.values) == {"logit_lens_loss"}


def test_losses_of_padded_rows_are_those_of_the_rows_alone() -> None:
    model = make_model("opt")
    long, short = random_ids(1, 14), random_ids(1, 6, 1)
    rows = torch.cat([long, torch.cat([torch.zeros(1, 8).long(), short], dim=1)])
    mask = torch.tensor([[1] * 14, [0] * 8 + [1] * 6])
    (together,) = measure_tokens(locate(model), TokenBatch(rows, mask), names_of("exit"))
    (alone,) = measure_tokens(locate(model), TokenBatch(short), names_of("exit"))
    for name, values in alone.values.items():
        torch.testing.assert_close(together.values[name][:, together.rows == 1], values, rtol=2e-6, atol=2e-6)
