"""Early exit: the loss at each round's end, the signals, the curves, and generation."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from depthscale.budget.flops import flops_per_token
from depthscale.budget.parameters import ModelShape
from depthscale.errors import PlanError
from depthscale.evaluation.early_exit import (
    EXIT_RULES,
    ExitMeasurements,
    exit_curve,
    exit_rounds,
    exits_to_dict,
    measure_exits,
    round_ends,
)
from depthscale.evaluation.exit_flops import exit_flops_per_token
from depthscale.evaluation.exit_generation import generate_with_exit
from depthscale.evaluation.loss import evaluate_loss
from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM
from depthscale.plan import DepthPlan
from depthscale.training.dataset import PackedCollator, PackedDataset

torch.set_num_threads(1)

COLLATE = PackedCollator(attend_across_documents=False)
LOOP = [{"blocks": 2, "rounds": 4}]
PLANS = {
    "loop": LOOP,
    "injected": [{"blocks": 2, "rounds": 4, "inject": True}],
    "prelude": [{"blocks": 1, "fixed": True}, {"blocks": 2, "rounds": 4}],
    "prelude and coda": [
        {"blocks": 1, "fixed": True},
        {"blocks": 2, "rounds": 4, "inject": True},
        {"blocks": 2, "fixed": True},
    ],
}


def build(plan: list[dict] = LOOP, placement: str = "pre", **more: object) -> LoopedLMForCausalLM:
    torch.manual_seed(0)
    arguments = {
        "vocab_size": 97,
        "hidden_size": 32,
        "norm_placement": placement,
        "plan": plan,
        "residual_scales": [{} if placement == "pre" else {"skip": 1.7} for _ in plan],
        "initializer_range": 0.2,
        # Large enough that greedy tokens are far from ties.
        "embedding_initializer_range": 1.0,
    }
    return LoopedLMForCausalLM(LoopedLMConfig(**{**arguments, **more})).eval()


def rows() -> PackedDataset:
    """Three rows, the last of them padded, with document boundaries inside."""
    stream = np.random.default_rng(0).integers(0, 97, 2 * 16 + 9).astype(np.uint16)
    return PackedDataset(stream, np.array([0, 21]), 16, attend_across_documents=False, pad_last_row=True, pad_id=0)


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich"])
@pytest.mark.parametrize("plan", PLANS)
def test_the_loss_at_a_rounds_end_is_that_of_the_model_with_so_many_rounds(plan: str, placement: str) -> None:
    """Public fault: one norm scale reused for all layers of a lens. Here every exit is the truncated model itself."""
    model = build(PLANS[plan], placement)
    measured = measure_exits(model, rows(), COLLATE, rounds=5, batch_rows=2)
    assert len(measured.loss_nats) == rows().num_targets
    for round_, loss in enumerate(measured.loss_per_round(), start=1):
        expected = evaluate_loss(model, rows(), COLLATE, batch_rows=3, arguments={"rounds": round_})
        assert loss == pytest.approx(expected.loss_nats, rel=1e-6)


def test_measuring_leaves_no_trace_and_does_not_depend_on_the_batch() -> None:
    model = build().train()
    one = measure_exits(model, rows(), COLLATE, rounds=3, batch_rows=1)
    assert model.training
    three = measure_exits(model, rows(), COLLATE, rounds=3, batch_rows=3)
    np.testing.assert_allclose(one.loss_nats, three.loss_nats, atol=1e-5)
    for rule in EXIT_RULES:
        np.testing.assert_allclose(one.signals[rule], three.signals[rule], atol=1e-4)


def test_the_signals_by_hand() -> None:
    model, ids = build(placement="post"), torch.arange(10)[None]
    with torch.no_grad():
        states = model(ids, rounds=3, output_hidden_states=True).hidden_states
        logs = [functional.log_softmax(model(ids, rounds=r).logits, dim=-1) for r in (1, 2, 3)]
        ends = list(round_ends(model, {"input_ids": ids}, 3))
    for r, end in enumerate(ends):
        torch.testing.assert_close(end.signals["entropy"], -(logs[r].exp() * logs[r]).sum(-1), atol=1e-5, rtol=1e-5)
        before, after = states[2 * r], states[2 * r + 2]
        torch.testing.assert_close(end.signals["state_change"], (after - before).norm(dim=-1) / before.norm(dim=-1))
        if r:
            # KL(p_r || p_{r-1})
            expected = (logs[r].exp() * (logs[r] - logs[r - 1])).sum(-1)
            torch.testing.assert_close(end.signals["kl"], expected, atol=1e-5, rtol=1e-4)
    assert bool((ends[0].signals["kl"] == math.inf).all())  # nothing to compare the first round with


def made(signal: list[list[float]], loss: list[list[float]]) -> ExitMeasurements:
    return ExitMeasurements(np.array(loss, np.float32), {rule: np.array(signal, np.float32) for rule in EXIT_RULES})


def test_a_curve_by_hand() -> None:
    measured = made([[0.5, 0.1, 0.05], [0.9, 0.8, 0.7]], [[3.0, 2.0, 1.0], [6.0, 5.0, 4.0]])
    early, middle, late = exit_curve(measured, "entropy", [1.0, 0.2, 0.0])
    assert (early.mean_rounds, early.loss_nats) == (1.0, 4.5)
    assert (middle.mean_rounds, middle.loss_nats) == (2.5, 3.0)  # token 0 leaves at 2, token 1 at the last
    assert (late.mean_rounds, late.loss_nats) == (3.0, 2.5)
    assert middle.share_per_round == (0.0, 0.5, 0.5)
    assert exit_rounds(measured.signals["kl"], 0.2).tolist() == [2, 3]


@pytest.mark.parametrize("rule", EXIT_RULES)
def test_a_measured_curve_goes_from_few_rounds_to_all(rule: str) -> None:
    measured = measure_exits(build(), rows(), COLLATE, rounds=4, batch_rows=4)
    curve = exit_curve(measured, rule)
    used = [point.mean_rounds for point in curve]
    assert used == sorted(used)
    assert used[0] == (2 if rule == "kl" else 1)
    assert used[-1] > 3.9
    assert curve[-1].loss_nats == pytest.approx(measured.loss_per_round()[-1], abs=0.1)
    for point in curve:
        assert sum(point.share_per_round) == pytest.approx(1)


def test_the_result_is_plain_data() -> None:
    measured = measure_exits(build(), rows(), COLLATE, rounds=2, batch_rows=4)
    result = exits_to_dict(measured, lambda loss: loss / 2, lambda rule, rounds: len(rule) * rounds)
    for rule, curve in result["rules"].items():
        assert all(point["flops_per_token"] == len(rule) * point["mean_rounds"] for point in curve["points"])
    assert "same rows" in result["thresholds"]
    assert result["bits_per_byte_per_round"] == [loss / 2 for loss in result["loss_per_round"]]
    assert set(result["rules"]) == set(EXIT_RULES)


@pytest.mark.parametrize("plan", PLANS)
def test_the_flops_of_an_exit_are_those_of_the_truncated_model_and_of_the_predictions_on_the_way(plan: str) -> None:
    def of_model(rounds: int) -> tuple[int, int]:
        segments = [s if s.get("fixed") else {**s, "rounds": rounds} for s in PLANS[plan]]
        config = build(segments).config
        shape = ModelShape(
            DepthPlan.from_dict({"segments": config.plan}), 97, 32, 4, 4, config.head_dim, config.intermediate_size
        )
        flops = flops_per_token(shape, 16)
        return flops.forward, flops.head

    config = build(PLANS[plan]).config
    visit = (of_model(2)[0] - of_model(1)[0]) / 2
    after = 2 if plan == "prelude and coda" else 0
    for rounds in (1, 3):
        forward, head = of_model(rounds)
        assert exit_flops_per_token(config, 16, "state_change", rounds) == pytest.approx(forward)
        extra = (rounds - 1) * (after * visit + head)
        for rule in ("entropy", "kl"):
            assert exit_flops_per_token(config, 16, rule, rounds) == pytest.approx(forward + extra)


def test_a_plan_without_one_loop_is_refused() -> None:
    for plan in ([{"blocks": 1, "rounds": 2}, {"blocks": 1, "rounds": 2}], [{"blocks": 2, "fixed": True}]):
        with pytest.raises(PlanError, match="needs exactly one"):
            measure_exits(build(plan), rows(), COLLATE, rounds=2, batch_rows=2)
    with pytest.raises(PlanError, match="did you mean 'entropy'"):
        exit_curve(made([[1.0]], [[1.0]]), "entrpy")


# -- generation ---------------------------------------------------------------------------------------------


def greedy(model: LoopedLMForCausalLM, ids: torch.Tensor, rounds: int, count: int) -> torch.Tensor:
    for _ in range(count):
        with torch.no_grad():
            ids = torch.cat((ids, model(ids, rounds=rounds).logits[:, -1].argmax(-1, keepdim=True)), dim=1)
    return ids


@pytest.mark.parametrize("plan", ["loop", "prelude and coda"])
def test_never_leaving_early_is_ordinary_greedy_decoding(plan: str) -> None:
    model, prompts = build(PLANS[plan]), torch.tensor([[1, 2, 3], [40, 50, 60]])
    last = generate_with_exit(model, prompts, rule="entropy", threshold=-1.0, rounds=4, max_new_tokens=5)
    assert torch.equal(last.sequences, greedy(model, prompts, 4, 5))
    assert last.mean_rounds == 4
    first = generate_with_exit(model, prompts, rule="entropy", threshold=math.inf, rounds=4, max_new_tokens=5)
    assert torch.equal(first.sequences, greedy(model, prompts, 1, 5))
    assert first.mean_rounds == 1


def test_sequences_leave_on_their_own() -> None:
    model, prompts = build(), torch.randint(0, 97, (6, 4), generator=torch.Generator().manual_seed(2))
    arguments = {"rule": "state_change", "threshold": 0.45, "rounds": 4, "max_new_tokens": 4}
    together = generate_with_exit(model, prompts, **arguments)
    assert len(set(together.rounds_used.flatten().tolist())) > 1
    for row in range(len(prompts)):
        alone = generate_with_exit(model, prompts[row : row + 1], **arguments)
        assert torch.equal(alone.sequences[0], together.sequences[row])
        assert torch.equal(alone.rounds_used[0], together.rounds_used[row])


def test_a_sequence_that_ends_stays_ended() -> None:
    model, prompts = build(), torch.tensor([[1, 2, 3], [40, 50, 60]])
    free = greedy(model, prompts, 4, 6)
    model.config.eos_token_id = int(free[0, 3])  # the first sequence's first new token
    found = generate_with_exit(model, prompts, rule="kl", threshold=-1.0, rounds=4, max_new_tokens=6)
    assert found.sequences.shape[1] > 4
    assert set(found.sequences[0, 3:].tolist()) == {model.config.eos_token_id}
    assert found.rounds_used[0].tolist() == [4] + [0] * (found.sequences.shape[1] - 4)
    assert found.rounds_used[1, 1] == 4


def test_bad_prompts_are_refused() -> None:
    arguments = {"rule": "entropy", "threshold": 1.0, "rounds": 2, "max_new_tokens": 1}
    with pytest.raises(ValueError, match="at least one token"):
        generate_with_exit(build(), torch.empty(1, 0, dtype=torch.int64), **arguments)
    with pytest.raises(PlanError, match="unknown exit rule"):
        generate_with_exit(build(), torch.tensor([[1]]), **{**arguments, "rule": "mood"})
    with pytest.raises(ValueError, match="max_new_tokens"):
        generate_with_exit(build(), torch.tensor([[1]]), **{**arguments, "max_new_tokens": 0})
    with pytest.raises(ValueError, match="a prompt of 3 tokens and 14 new ones exceed the context of 16"):
        generate_with_exit(
            build(max_position_embeddings=16), torch.tensor([[1, 2, 3]]), **{**arguments, "max_new_tokens": 14}
        )
