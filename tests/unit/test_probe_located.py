"""Finding blocks, norm and head; hooks; and what a model can be that the probe must refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from probe_models import VOCABULARY, WIDTH, make_model, random_ids
from torch import Tensor, nn
from transformers import BertConfig, BertLMHeadModel, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

from depthscale.probing.catalog import names_of
from depthscale.probing.checks import preflight
from depthscale.probing.errors import ProbingError
from depthscale.probing.located import locate
from depthscale.probing.quantities import measure_tokens
from depthscale.probing.states import TokenBatch, VisitStates, collect_states, run_base, watch_visits


class Cell(nn.Module):
    """Adds its MLP; returns what it is told to return, and may write into its input."""

    def __init__(self, returns: str = "tensor", in_place: bool = False) -> None:
        super().__init__()
        self.mlp = nn.Linear(WIDTH, WIDTH)
        self.returns, self.in_place = returns, in_place

    def forward(self, hidden_states: Tensor) -> Any:
        update = torch.tanh(self.mlp(hidden_states))
        state = hidden_states.add_(update) if self.in_place else hidden_states + update
        return {"tensor": state, "tuple": (state, None), "list": [state]}[self.returns]


class ForeignLoop(nn.Module):
    """A looped model of somebody else's: prelude, two blocks visited in turn, no attention."""

    def __init__(self, returns: str = "tensor", rounds: int = 3, in_place: bool = False, causal: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.prelude = nn.ModuleList([Cell(returns, in_place)])
        self.core = nn.ModuleList([Cell(returns, in_place), Cell(returns, in_place)])
        self.last = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.rounds, self.causal = rounds, causal
        self.broken = False

    def forward(self, input_ids: Tensor) -> Tensor:
        state = self.tokens(input_ids)
        if not self.causal:
            state = state + state.mean(dim=1, keepdim=True)
        for block in [self.prelude[0], *self.rounds * list(self.core)]:
            output = block(hidden_states=state)
            state = output if isinstance(output, Tensor) else output[0]
            if self.broken:
                raise RuntimeError("out of order")
        return self.out(self.last(state))


PATHS = ("prelude,core", "last", "out")


@pytest.mark.parametrize("returns", ["tensor", "tuple", "list"])
def test_foreign_loops_keep_every_visit_whatever_a_block_returns(returns: str) -> None:
    model = ForeignLoop(returns).eval()
    located = preflight(locate(model, *PATHS)).located
    kept = collect_states(located, TokenBatch(random_ids(2, 6)))
    assert kept.blocks == [0, 1, 2, 1, 2, 1, 2]
    assert located.num_visits == 7
    assert len({state.data_ptr() for state in kept.states}) == 8
    state = model.tokens(random_ids(2, 6))
    for visit, block in enumerate([model.prelude[0], *3 * list(model.core)]):
        torch.testing.assert_close(kept.states[visit], state)
        state = state + torch.tanh(block.mlp(state))
    torch.testing.assert_close(kept.states[-1], state)
    torch.testing.assert_close(located.logits(kept.states[-1]), model(random_ids(2, 6)))


def test_a_second_pass_in_one_context_begins_anew() -> None:
    located = locate(ForeignLoop().eval(), *PATHS)
    kept = VisitStates()
    with watch_visits(located, kept):
        for _ in range(2):
            run_base(located, TokenBatch(random_ids(1, 4)))
            assert (kept.num_visits, len(kept.states)) == (7, 8)


def test_a_model_that_writes_into_its_states_is_found_out_and_copied() -> None:
    """Without copies every state would be the last one."""
    written, plain = ForeignLoop(in_place=True).eval(), ForeignLoop().eval()
    found = preflight(locate(written, *PATHS)).located
    assert found.copy_states
    assert not preflight(locate(plain, *PATHS)).located.copy_states
    batch = TokenBatch(random_ids(2, 6))
    names = names_of("local", "end", "exit")
    (mine,) = measure_tokens(found, batch, names)
    (theirs,) = measure_tokens(locate(plain, *PATHS), batch, names)
    for name in theirs.values:
        torch.testing.assert_close(mine.values[name], theirs.values[name])


def test_hooks_are_gone_after_an_exception() -> None:
    model = ForeignLoop().eval()
    located = locate(model, *PATHS)
    model.broken = True
    with pytest.raises(RuntimeError, match="out of order"):
        collect_states(located, TokenBatch(random_ids(1, 4)))
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_unknown_architectures_name_the_options() -> None:
    with pytest.raises(ProbingError, match=r"--blocks-path, --norm-path .* and --head-path"):
        locate(ForeignLoop())
    with pytest.raises(ProbingError, match="without --norm-path; name the norm before the head, or 'none'"):
        locate(ForeignLoop(), "core")
    with pytest.raises(ProbingError, match="names no head of its own; name it with --head-path"):
        locate(ForeignLoop(), "core", "last")
    with pytest.raises(ProbingError, match=r"--blocks-path layers leads to no module .* tokens, prelude, core"):
        locate(ForeignLoop(), "layers", "last", "out")
    with pytest.raises(ProbingError, match="go with --blocks-path"):
        locate(make_model("gpt2"), norm_path="transformer.ln_f")


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (("prelude,core", "none", "out"), "name the right parts with --blocks-path, --norm-path and --head-path"),
        (("prelude", "last", "out"), "name the right parts"),
        (("out", "last", "out"), "differs from its own logits by inf"),
    ],
)
def test_wrong_paths_are_found_out_by_the_models_own_logits(paths: tuple[str, str, str], words: str) -> None:
    """A missing final norm is never taken for the identity."""
    model = ForeignLoop().eval()
    with pytest.raises(ProbingError, match=words):
        preflight(locate(model, *paths))


def test_a_model_whose_tokens_see_the_future_is_refused() -> None:
    with pytest.raises(ProbingError, match="see those after them"):
        preflight(locate(ForeignLoop(causal=False).eval(), *PATHS))


def test_encoders_are_refused_by_their_config() -> None:
    tiny = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "vocab_size": 11,
    }
    with pytest.raises(ProbingError, match="'bert' is an encoder"):
        locate(BertLMHeadModel(BertConfig(**tiny)))
    t5 = T5Config(vocab_size=11, d_model=8, d_ff=8, d_kv=4, num_layers=1, num_heads=2)
    with pytest.raises(ProbingError, match="encoder with a decoder"):
        locate(T5ForConditionalGeneration(t5))


def test_a_known_family_by_paths_gives_the_same_numbers() -> None:
    model = make_model("llama")
    batch = TokenBatch(random_ids(2, 8))
    by_paths = preflight(locate(model, "model.layers", "model.norm")).located
    assert (by_paths.family, by_paths.sublayers) == ("custom", None)
    (mine,) = measure_tokens(by_paths, batch, names_of("local", "end", "exit", "sublayer"))
    (theirs,) = measure_tokens(locate(model), batch, names_of("local", "end", "exit"))
    assert set(mine.values) == set(theirs.values)
    for name in theirs.values:
        torch.testing.assert_close(mine.values[name], theirs.values[name])


def test_states_that_are_not_finite_name_their_layer() -> None:
    model = make_model("gpt2")
    assert isinstance(model, GPT2LMHeadModel)
    with torch.no_grad():
        model.transformer.h[1].mlp.c_proj.weight[0, 0] = float("nan")
    with pytest.raises(ProbingError, match="the output of visit 2 is not finite at 14 of 14 tokens in float32"):
        list(measure_tokens(locate(model), TokenBatch(random_ids(2, 8)), names_of("local")))


def test_unknown_quantities_suggest_the_near_one() -> None:
    with pytest.raises(ProbingError, match="did you mean 'state_angle'"):
        list(measure_tokens(locate(make_model("gpt2")), TokenBatch(random_ids(1, 4)), ["state_angel"]))


def test_padding_needs_a_model_that_takes_a_mask() -> None:
    mask = torch.tensor([[1, 1, 1, 0]])
    with pytest.raises(ProbingError, match="takes no attention_mask"):
        collect_states(locate(ForeignLoop().eval(), *PATHS), TokenBatch(random_ids(1, 4), mask))


@pytest.mark.parametrize("paths", ["prelude,core,core", "prelude,core,core.0.mlp", "core,core.1"])
def test_blocks_named_twice_or_inside_each_other_are_refused(paths: str) -> None:
    with pytest.raises(ProbingError, match="is named twice or lies inside another block"):
        preflight(locate(ForeignLoop().eval(), paths, "last", "out"))


@pytest.mark.parametrize("norm_path", ["model.layers.0", "model.layers.0.self_attn", "model.layers"])
def test_a_norm_that_is_none_is_refused_however_it_fails(norm_path: str) -> None:
    with pytest.raises(ProbingError, match="name the right parts"):
        preflight(locate(make_model("llama"), "model.layers", norm_path))


def test_the_future_is_seen_beside_a_state_of_huge_entries() -> None:
    """Language models have a first token thousands of times as large as the others."""
    model = ForeignLoop().eval()
    model.tokens.register_forward_hook(lambda module, args, output: output + output[:, -1:])
    # The first token that the pass is made with.
    first = torch.randint(0, VOCABULARY, (1, 8), generator=torch.Generator().manual_seed(0))[0, 0]
    with torch.no_grad():
        model.tokens.weight[first] += 1e5
    with pytest.raises(ProbingError, match="see those after them"):
        preflight(locate(model, *PATHS))


def test_norms_beyond_half_precision_are_no_broken_states() -> None:
    model = ForeignLoop().half().eval()
    with torch.no_grad():
        model.tokens.weight.fill_(3e4)
    assert preflight(locate(model, *PATHS)).located.num_visits == 7


def test_the_width_of_a_config_that_does_not_name_it_is_the_embedding_s() -> None:
    from transformers import PretrainedConfig

    model = ForeignLoop().eval()
    model.config = PretrainedConfig()
    batch = TokenBatch(random_ids(2, 6))
    (found,) = measure_tokens(preflight(locate(model, *PATHS)).located, batch, names_of("local", "end"))
    assert found.values["state_angle"].shape == (7, 10)
