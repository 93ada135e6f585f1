"""Interventions: they do what they say, on every kind of model, and leave it as it was."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from probe_models import FAMILY_NAMES, make_model, random_ids
from torch import Tensor, nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from depthscale.errors import ResultError
from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM
from depthscale.probing.drop_curve import drop_curve
from depthscale.probing.errors import ProbingError
from depthscale.probing.evidence import _bulk_excess
from depthscale.probing.intervention_plan import (
    drop_interventions,
    layer_interventions,
    loop_interventions,
    span_interventions,
)
from depthscale.probing.intervention_result import _prediction_ranks
from depthscale.probing.intervention_run import CleanPassage, block_influence, measure, prepare
from depthscale.probing.interventions import Intervention, replacements
from depthscale.probing.ledger import Ledger
from depthscale.probing.located import locate
from depthscale.probing.nulls import random_directions, shuffled, untrained
from depthscale.probing.replacing import replaced
from depthscale.probing.similarity import functional_groups, similarity_map
from depthscale.probing.states import TokenBatch
from depthscale.probing.subject import Passage, Subject, changed_states, language_model, passages_of

VOCABULARY = 97
WIDTH = 32


def gpt2() -> nn.Module:
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=WIDTH, n_layer=5, n_head=2))


def neox() -> nn.Module:
    return GPTNeoXForCausalLM(
        GPTNeoXConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            num_hidden_layers=5,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=64,
        )
    )


def llama() -> nn.Module:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            num_hidden_layers=5,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=64,
        )
    )


def gemma2() -> nn.Module:
    return Gemma2ForCausalLM(
        Gemma2Config(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            num_hidden_layers=4,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            intermediate_size=64,
            sliding_window=4,
        )
    )


def looped(inject: bool = False) -> nn.Module:
    return LoopedLMForCausalLM(
        LoopedLMConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            num_attention_heads=2,
            intermediate_size=64,
            norm_placement="pre",
            plan=[{"blocks": 2, "rounds": 3, "inject": inject}],
        )
    )


MODELS = {
    "gpt2": gpt2,
    "neox": neox,
    "llama": llama,
    "gemma2": gemma2,
    "looped": looped,
    "injected": lambda: looped(inject=True),
}


def made(name: str, seed: int = 0) -> tuple[nn.Module, Subject]:
    torch.manual_seed(seed)
    model = MODELS[name]().eval()
    # Large enough for layers to matter; initializations of 0.02 hardly move a state of this width.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4)
    return model, language_model(locate(model))


def batch(rows: int = 3, tokens: int = 9, padded: bool = False) -> TokenBatch:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCABULARY, (rows, tokens), generator=generator)
    mask = torch.ones_like(ids)
    if padded:
        mask[0, -4:] = 0
    return TokenBatch(ids, mask)


def texts_of(subject: Subject, *batches: TokenBatch) -> list[CleanPassage]:
    return prepare(subject, passages_of(batches or (batch(),), torch.device("cpu")))


def last_state(subject: Subject, text: CleanPassage, intervention: Intervention) -> Tensor:
    return changed_states(subject, text.passage, replacements(intervention, text.clean.calls))[-1]


def by_hand(text: CleanPassage, order: list[int]) -> Tensor:
    """Blocks of these visits one after the other, on h_0."""
    state = text.clean.states[0]
    with torch.no_grad():
        for visit in order:
            state = text.clean.calls[visit].apply(state)
    return state


@pytest.mark.parametrize("name", MODELS)
def test_the_unchanged_loss_is_the_model_s_own(name: str) -> None:
    model, subject = made(name)
    text = texts_of(subject)[0]
    ids = text.passage.inputs.input_ids
    with torch.no_grad():
        own = [float(model(input_ids=row[None], labels=row[None]).loss) for row in ids]
    assert text.losses.loss.tolist() == pytest.approx(own, abs=1e-5)
    assert text.losses.divergence.abs().max() == 0


@pytest.mark.parametrize("name", ["gpt2", "neox", "llama", "gemma2", "looped"])
def test_each_kind_equals_the_blocks_called_by_hand(name: str) -> None:
    _, subject = made(name)
    text = texts_of(subject)[0]
    plain = list(range(text.clean.num_visits))
    for intervention, order in (
        (Intervention("remove", (1, 2)), [0, *plain[3:]]),
        (Intervention("repeat", (1, 2)), [0, 1, 2, 1, 2, *plain[3:]]),
        (Intervention("swap", (1, 2)), [0, 2, 1, *plain[3:]]),
        (Intervention("swap", (0, 1, 2, 3)), [2, 3, 0, 1, *plain[4:]]),
        (Intervention("drop", (0, 3), tuple(plain)), [v for v in plain if v not in (0, 3)]),
        (Intervention("loop", (1, 2), rounds=3), [0, 1, 2, 1, 2, 1, 2, *plain[3:]]),
        (Intervention("loop", (1, 2), rounds=1), plain),
    ):
        torch.testing.assert_close(last_state(subject, text, intervention), by_hand(text, order), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_every_family_can_be_intervened_on(family: str) -> None:
    model = make_model(family)
    subject = language_model(locate(model))
    text = texts_of(subject, TokenBatch(random_ids(2, 12)))[0]
    last = text.clean.num_visits - 1
    # Behind the last two visits no model does anything before its final norm.
    removed = last_state(subject, text, Intervention("remove", (last,)))
    torch.testing.assert_close(removed, text.clean.inputs[last])
    swapped = last_state(subject, text, Intervention("swap", (last - 1, last)))
    with torch.no_grad():
        calls = text.clean.calls
        expected = calls[last - 1].apply(calls[last].apply(text.clean.inputs[last - 1]))
    torch.testing.assert_close(swapped, expected, rtol=1e-4, atol=1e-4)
    again = prepare(subject, [text.passage])[0]
    assert torch.equal(again.clean.states[-1], text.clean.states[-1])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_scales_act_on_updates() -> None:
    _, subject = made("llama")
    text = texts_of(subject)[0]
    calls = text.clean.calls

    def step(state: Tensor, visit: int, scale: float) -> Tensor:
        with torch.no_grad():
            return state + scale * (calls[visit].apply(state) - state)

    expected = text.clean.states[0]
    for visit, scale in ((0, 1.5), (2, 1.5), (3, 1.0), (4, 1.0)):
        expected = step(expected, visit, scale)
    found = last_state(subject, text, Intervention("drop_rescaled", (1,), (0, 1, 2)))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    expected = step(text.clean.states[0], 0, 1.0)
    for _ in range(2):
        for visit in (1, 2):
            expected = step(expected, visit, 0.5)
    for visit in (3, 4):
        expected = step(expected, visit, 1.0)
    found = last_state(subject, text, Intervention("loop", (1, 2), rounds=2, branch_scale=0.5))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_injection_between_rounds_stays_in_place() -> None:
    _, subject = made("injected")
    text = texts_of(subject)[0]
    clean = text.clean
    # Visit 2 begins the second round: what enters it is not what visit 1 left.
    assert not torch.equal(clean.inputs[2], clean.states[2])
    states = changed_states(subject, text.passage, replacements(Intervention("remove", (1,)), clean.calls))
    torch.testing.assert_close(states[1], states[0])
    injected = torch.nn.functional.rms_norm(states[1] + clean.states[0], (WIDTH,), eps=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(states[2], clean.calls[2].apply(injected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_the_model_is_left_as_it_was_also_after_an_exception(name: str) -> None:
    model, subject = made(name)
    ids = batch().input_ids
    with torch.no_grad():
        before = model(input_ids=ids).logits
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    text = texts_of(subject)[0]
    plan = [*layer_interventions(text.clean.num_visits), *loop_interventions(text.clean.num_visits)]
    measure(subject, [text], plan[::3], Ledger(None, {}))

    def broken(entered: Tensor, left: Tensor) -> Tensor:
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        changed_states(subject, text.passage, {1: broken})
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert "forward" not in vars(module)
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, before)


def test_padding_changes_no_figure() -> None:
    _, subject = made("llama")
    whole, padded = batch(), batch()
    pads = torch.full((3, 5), 7)
    longer = TokenBatch(torch.cat([padded.input_ids, pads], dim=1), torch.cat([padded.real, pads == 0], dim=1).long())
    plan = [Intervention("remove", (1,)), Intervention("swap", (1, 2))]
    plain, with_pads = (measure(subject, texts_of(subject, one), plan, Ledger(None, {})) for one in (whole, longer))
    for first, second in zip(plain, with_pads, strict=True):
        assert first["excess"] == pytest.approx(second["excess"], abs=1e-5)
        assert first["prediction"] == pytest.approx(second["prediction"], abs=1e-6)


def test_figures_do_not_depend_on_how_rows_are_batched() -> None:
    _, subject = made("neox")
    rows = batch().input_ids
    plan = [Intervention("remove", (2,)), Intervention("repeat", (1,))]
    together = measure(subject, texts_of(subject, TokenBatch(rows)), plan, Ledger(None, {}))
    apart = measure(subject, texts_of(subject, *(TokenBatch(row[None]) for row in rows)), plan, Ledger(None, {}))
    for first, second in zip(together, apart, strict=True):
        assert first["excess"] == pytest.approx(second["excess"], abs=1e-5)
        assert first["divergence"] == pytest.approx(second["divergence"], abs=1e-5)
    assert together[0]["later_change"] == pytest.approx(apart[0]["later_change"], abs=1e-5)


def test_block_influence_and_later_change_are_their_formulas() -> None:
    _, subject = made("llama")
    text = texts_of(subject, batch(padded=True))[0]
    counted, states = text.passage.counted, [state.double() for state in text.clean.states]
    cosines = torch.nn.functional.cosine_similarity(states[2], states[4], dim=-1)[counted]
    assert block_influence([text], 2, 3) == pytest.approx(1 - float(cosines.mean()), abs=1e-6)
    record = measure(subject, [text], [Intervention("remove", (1,))], Ledger(None, {}))[0]
    changed = changed_states(subject, text.passage, replacements(Intervention("remove", (1,)), text.clean.calls))
    changed = [states[0], *(state.double() for state in changed)]
    expected = []
    for visit in (2, 3, 4):
        before, after = states[visit + 1] - states[visit], changed[visit + 1] - changed[visit]
        expected.append(float(((after - before).norm(dim=-1) / before.norm(dim=-1))[counted].mean()))
    assert record["later_change"] == pytest.approx(expected, rel=1e-4)


def test_a_divergence_is_what_torch_says() -> None:
    model, subject = made("gpt2")
    text = texts_of(subject)[0]
    record = measure(subject, [text], [Intervention("remove", (4,))], Ledger(None, {}))[0]
    with torch.no_grad():
        own = model(input_ids=text.passage.inputs.input_ids).logits.log_softmax(-1)
        other = model.lm_head(model.transformer.ln_f(text.clean.states[4])).log_softmax(-1)
    for row, found in enumerate(record["divergence"]):
        expected = torch.nn.functional.kl_div(other[row, :-1], own[row, :-1], log_target=True, reduction="batchmean")
        assert found == pytest.approx(float(expected), rel=1e-3, abs=1e-6)


def test_a_long_measurement_goes_on_where_it_stopped(tmp_path: Path) -> None:
    _, subject = made("llama")
    texts = texts_of(subject)
    plan = layer_interventions(5)
    path, identity = tmp_path / "done.jsonl", {"model": "a"}

    class StopError(Exception):
        pass

    def stop_at_four(done: int, total: int) -> None:
        if done == 4:
            raise StopError

    with pytest.raises(StopError):
        measure(subject, texts, plan, Ledger(path, identity), stop_at_four)
    # The machine went down in the middle of a line.
    path.write_text(path.read_text() + '{"key": "half')
    seen: list[int] = []
    first = Ledger(path, identity)
    assert sum(intervention.key in first for intervention in plan) == 4
    resumed = measure(subject, texts, plan, first, lambda done, total: seen.append(done))
    assert seen == list(range(1, len(plan) + 1))
    unbroken = measure(subject, texts, plan, Ledger(None, identity))
    assert json.dumps(resumed) == json.dumps(unbroken)
    assert len(Ledger(path, identity)._records) == len(plan)
    with pytest.raises(ResultError, match="begun with another model"):
        Ledger(path, {"model": "b"})


def test_plans_name_every_intervention_once() -> None:
    plan = [
        *layer_interventions(12),
        *span_interventions(12),
        *drop_interventions(tuple(range(1, 11)), seed=3),
        *loop_interventions(12),
    ]
    keys = [intervention.key for intervention in plan]
    assert len(set(keys)) == len(keys)
    for intervention in plan:
        if intervention.kind.startswith("drop"):
            assert set(intervention.visits) < set(intervention.group)
    plain = [p.visits for p in plan if p.kind == "drop"]
    assert plain == [p.visits for p in plan if p.kind == "drop_rescaled"]


def test_bad_interventions_are_refused_in_one_line() -> None:
    _, subject = made("llama")
    text = texts_of(subject)[0]
    with pytest.raises(ProbingError, match="visit 9"):
        replacements(Intervention("remove", (9,)), text.clean.calls)
    with pytest.raises(ProbingError, match="two spans of one length"):
        replacements(Intervention("swap", (0, 1, 2)), text.clean.calls)
    with pytest.raises(ProbingError, match="one at least to be kept"):
        replacements(Intervention("drop_rescaled", (0, 1), (0, 1)), text.clean.calls)
    with pytest.raises(ProbingError, match="made 5 visits"), replaced(subject.blocks, {7: lambda x, y: y}):
        subject.run(text.passage.inputs)
    with pytest.raises(ProbingError, match="at least two tokens"):
        texts_of(subject, TokenBatch(torch.tensor([[5]])))


def test_a_loss_that_is_not_finite_is_refused() -> None:
    model, subject = made("gpt2")
    with torch.no_grad():
        model.transformer.h[1].mlp.c_fc.weight.fill_(math.nan)
    with pytest.raises(ProbingError, match="not finite"):
        texts_of(subject)


def test_the_similarity_map_is_its_formula_and_one_on_the_diagonal() -> None:
    _, subject = made("looped")
    texts = texts_of(subject)
    found = similarity_map(texts, Ledger(None, {}))
    clean, counted = texts[0].clean, texts[0].passage.counted
    with torch.no_grad():
        update = (clean.calls[1].apply(clean.inputs[4]) - clean.inputs[4])[counted]
    own = clean.update(4)[counted]
    expected = torch.nn.functional.cosine_similarity(update, own, dim=-1).mean()
    assert found.cosines[1][4] == pytest.approx(float(expected), abs=1e-5)
    assert found.sizes[1][4] == pytest.approx(float((update.norm(dim=-1) / own.norm(dim=-1)).mean()), rel=1e-5)
    for visit in range(6):
        assert found.cosines[visit][visit] == pytest.approx(1, abs=1e-5)
        # Visits 0, 2, 4 are one block.
        assert found.cosines[visit % 2][visit] == pytest.approx(1, abs=1e-5)
    assert found.groups == (0, 1, 0, 1, 0, 1)


def test_no_groups_are_made_up_in_a_gradual_map() -> None:
    distance = torch.arange(12.0)[:, None] - torch.arange(12.0)
    # All pairs equally unlike: nothing to cut.
    groups, silhouette = functional_groups(0.3 + 0.7 * (distance == 0).double().numpy())
    assert groups == (0,) * 12
    assert silhouette is None


def test_the_drop_curve_recovers_both_laws() -> None:
    group, draws = tuple(range(1, 33)), 6
    averaging, smooth = [], []
    generator = torch.Generator().manual_seed(0)
    for plan in drop_interventions(group, draws):
        count, size = len(plan.visits), len(group)
        noise = (1 + 0.1 * torch.randn(10, generator=generator)).tolist()
        rescaled = plan.kind == "drop_rescaled"
        for records, value in (
            (averaging, count * size / (size - count) if rescaled else count),
            (smooth, 1e-3 * count if rescaled else count**2),
        ):
            row = [0.01 * value * factor for factor in noise]
            records.append({**plan.to_dict(), "excess": row, "divergence": row})
    found, other = drop_curve(averaging), drop_curve(smooth)
    assert found.exponent.low < 1 < found.exponent.high
    assert found.ratio.value == pytest.approx(found.ratio_predicted, rel=0.1)
    assert found.averaging_misfit < 0.1
    assert other.exponent.low < 2 < other.exponent.high
    assert other.ratio.high < 0.1


def test_nulls_keep_what_they_promise() -> None:
    model, _ = made("llama")
    state = torch.random.get_rng_state()
    fresh, again = untrained(model, 3), untrained(model, 3)
    assert torch.equal(state, torch.random.get_rng_state())
    assert {k: v.shape for k, v in fresh.state_dict().items()} == {k: v.shape for k, v in model.state_dict().items()}
    assert all(torch.equal(a, b) for a, b in zip(fresh.parameters(), again.parameters(), strict=True))
    assert not torch.equal(fresh.lm_head.weight, model.lm_head.weight)
    before = batch(padded=True)
    after = shuffled(before, keep_first=True, seed=0)
    assert torch.equal(after.input_ids[:, 0], before.input_ids[:, 0])
    assert not torch.equal(after.input_ids, before.input_ids)
    for row in range(3):
        real = before.real[row]
        assert torch.equal(after.input_ids[row][~real], before.input_ids[row][~real])
        assert sorted(after.input_ids[row][real].tolist()) == sorted(before.input_ids[row][real].tolist())
    states = [torch.randn(50, 256) * scale for scale in (1.0, 2.0, 3.0)]
    drawn = random_directions(states)
    for old, new in ((states[0], drawn[0]), (states[1] - states[0], drawn[1] - drawn[0])):
        torch.testing.assert_close(old.norm(dim=-1), new.norm(dim=-1), rtol=1e-4, atol=1e-4)
    with pytest.raises(ProbingError, match="no config"):
        untrained(nn.Linear(2, 2))


class Written(nn.Module):
    """A residual block that writes into the state that it is given."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.inner, self.in_place = nn.Linear(WIDTH, WIDTH), in_place

    def forward(self, state: Tensor) -> Tensor:
        update = torch.tanh(self.inner(state))
        return state.add_(update) if self.in_place else state + update


def written_subject(in_place: bool) -> Subject:
    torch.manual_seed(0)
    blocks = tuple(Written(in_place) for _ in range(5))
    head = nn.Linear(WIDTH, VOCABULARY)

    def run(state: Tensor) -> Tensor:
        state = state.clone()
        for block in blocks:
            state = block(state)
        return state

    return Subject(blocks, run, head)


def test_blocks_that_write_into_their_states_give_the_same_figures() -> None:
    generator = torch.Generator().manual_seed(2)
    passage = Passage(
        torch.randn(2, 6, WIDTH, generator=generator),
        torch.ones(2, 6, dtype=torch.bool),
        torch.randint(0, VOCABULARY, (2, 6), generator=generator),
    )
    plan = [
        *layer_interventions(5),
        Intervention("drop_rescaled", (1,), (1, 2, 3)),
        Intervention("loop", (1, 2), rounds=3, branch_scale=0.5),
    ]
    plain, written = (
        measure(subject, prepare(subject, [passage]), plan, Ledger(None, {}))
        for subject in (written_subject(False), written_subject(True))
    )
    for first, second in zip(plain, written, strict=True):
        assert second["excess"] == pytest.approx(first["excess"], abs=1e-6), first["kind"]
        assert second.get("later_change") == pytest.approx(first.get("later_change"), abs=1e-6), first["kind"]


def test_a_layer_without_which_a_loss_is_no_number_leaves_the_other_rows() -> None:
    """A ledger holds null for what is no number."""
    found = _bulk_excess(
        {1: {"excess": [1.0, None]}, 2: {"excess": [3.0, 2.0]}, 5: {"excess": [9.0, 9.0]}}, slice(1, 5)
    )
    assert found.mean(axis=0).tolist() == pytest.approx([2.0, math.nan], nan_ok=True)


def test_equal_costs_have_no_ranks() -> None:
    records = [
        {"kind": "remove", "visits": [visit], "prediction": visit / 10, "excess": [0.0, 0.0]} for visit in range(6)
    ]
    assert _prediction_ranks(records) == {}


def test_drops_and_loops_are_ranked_beside_what_block_influence_predicts() -> None:
    drops = [
        {"kind": "drop", "visits": [v, v + 1], "prediction": v / 10, "excess": [float(5 - v), float(5 - v)]}
        for v in range(5)
    ]
    rescaled = [{**record, "kind": "drop_rescaled", "excess": [0.0, 1.0]} for record in drops]
    loops = [
        {"kind": "loop", "visits": [3, 4], "rounds": rounds, "branch_scale": scale, "prediction": 0.1 + start,
         "excess": [(rounds - 1) * (0.1 + start)] * 2}
        for start in (0.0, 0.05)
        for rounds in (1, 2, 3)
        for scale in {1.0, 1.0 / rounds}
    ]  # fmt: skip
    found = _prediction_ranks([*drops, *rescaled, *loops])
    dropped = found["random sets of dropped layers"]
    assert dropped["rank_correlation"] == pytest.approx(-1.0)
    assert dropped["num"] == 5, "rescaled drops are another question"
    assert found["looped spans"]["rank_correlation"] == pytest.approx(1.0)
    assert found["looped spans"]["num"] == 4, "R = 1 changes nothing, and updates over R add up to what they were"
