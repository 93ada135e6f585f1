"""Loss over rounds at test time: what is measured, with whose scales, and what a law says of it."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from depthscale.errors import PlanError
from depthscale.evaluation.round_laws import fit_round_laws, rises_again
from depthscale.evaluation.rounds import (
    RoundsPoint,
    evaluate_rounds,
    rescaled,
    scales_at,
    trained_rounds,
    why_not_recomputed,
)
from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM
from depthscale.plan import DepthPlan
from depthscale.residual import apply_rule
from depthscale.runs.config import RunConfig
from depthscale.runs.config_file import validate, with_overrides
from depthscale.training.dataset import PackedCollator, PackedDataset

torch.set_num_threads(1)

COLLATE = PackedCollator(attend_across_documents=False)


class Split:
    """Held-out rows of 97 token ids; two bytes a token."""

    def __init__(self) -> None:
        stream = np.random.default_rng(0).integers(0, 97, 5 * 16).astype(np.uint16)
        self.dataset = PackedDataset(
            stream, np.array([0, 21, 50]), 16, attend_across_documents=False, pad_last_row=True, pad_id=0
        )

    def bits_per_byte(self, loss_nats: float) -> float:
        return loss_nats / math.log(2) / 2


def build(rule: str, placement: str, plan: DepthPlan, **arguments: float) -> LoopedLMForCausalLM:
    scales = apply_rule(rule, plan.counts(), arguments)
    torch.manual_seed(0)
    return LoopedLMForCausalLM(
        LoopedLMConfig(
            vocab_size=97,
            hidden_size=32,
            norm_placement=placement,
            plan=plan.to_dict()["segments"],
            residual_scales=[vars(group) for group in scales.groups],
            residual_rule={"name": rule, "arguments": arguments},
            initializer_range=0.2,
        )
    ).eval()


def measure(model: LoopedLMForCausalLM, rounds: list[int], **more: Any) -> Any:
    trained = trained_rounds(model.config, None)
    return evaluate_rounds(model, Split(), COLLATE, rounds, trained=trained, batch_rows=2, **more)


def test_each_point_is_the_loss_of_a_forward_pass_at_its_rounds() -> None:
    model = build("deeploop", "post", DepthPlan.looped(2, 3, prelude=1))
    rows = COLLATE([Split().dataset[row] for row in range(5)])
    for point in measure(model, [4, 1, 3, 3]).kept:
        with torch.no_grad():
            expected = model(**rows, rounds=point.rounds).loss.item()
        assert point.loss_nats == pytest.approx(expected, abs=1e-6)
        assert point.bits_per_byte == pytest.approx(expected / math.log(2) / 2, abs=1e-6)
        assert point.unrolled_depth == 1 + 2 * point.rounds
        # One target less per row, and one less where a document starts inside a row.
        assert point.num_tokens == 5 * 15 - 2


def test_rounds_come_once_each_in_order_and_those_outside_training_are_flagged() -> None:
    curve = measure(build("unscaled", "pre", DepthPlan.looped(2, 3)), [8, 1, 3, 8])
    assert [(point.rounds, point.in_training) for point in curve.kept] == [(1, False), (3, True), (8, False)]


def test_recomputed_scales_are_the_rules_own_for_the_new_depth() -> None:
    model = build("deeploop", "post", DepthPlan.looped(2, 3))
    other = rescaled(model, 8)
    # alpha = sqrt(2 N), N = 2 * 8. Source: DeepLoop, arXiv 2607.13491.
    assert other.model.blocks[0].attention_residual.skip_scale == pytest.approx(math.sqrt(32))
    assert model.model.blocks[0].attention_residual.skip_scale == pytest.approx(math.sqrt(12))
    assert other.config.num_hidden_layers == 16
    for (name, mine), (_, theirs) in zip(other.named_parameters(), model.named_parameters(), strict=True):
        assert mine.data_ptr() == theirs.data_ptr(), name
    # The same weights under alpha = sqrt(32), by hand: 8 rounds of a model whose config states that scale.
    stated = build("deeploop", "post", DepthPlan.looped(2, 3))
    for block in stated.model.blocks:
        block.attention_residual.skip_scale = block.mlp_residual.skip_scale = math.sqrt(32)
    ids = torch.arange(12)[None]
    assert torch.equal(other(ids).logits, stated(ids, rounds=8).logits)


def test_kept_and_recomputed_are_both_measured_and_agree_at_the_trained_rounds() -> None:
    model = build("power", "post", DepthPlan.looped(2, 3), p=0.4)
    seen: list[tuple[int, str]] = []
    curve = measure(model, [1, 3, 6], on_point=lambda point: seen.append((point.rounds, point.scales)))
    kept = {point.rounds: point.loss_nats for point in curve.kept}
    recomputed = {point.rounds: point.loss_nats for point in curve.recomputed}
    assert kept[3] == recomputed[3]
    assert abs(kept[1] - recomputed[1]) > 1e-4
    assert abs(kept[6] - recomputed[6]) > 1e-4
    assert (3, "recomputed") not in seen  # known already
    assert curve.why_not_recomputed is None


def test_a_fixed_prelude_keeps_its_rounds_and_gets_the_rules_scale() -> None:
    model = build("loop_matched", "sandwich", DepthPlan.looped(2, 3, prelude=1))
    scales = scales_at(model.config, 5)
    expected = apply_rule("loop_matched", DepthPlan.looped(2, 5, prelude=1).counts()).groups
    assert [entry["skip"] for entry in scales] == [group.skip for group in expected]
    assert scales[0]["skip"] == model.config.residual_scales[0]["skip"]


def test_a_rule_that_does_not_see_the_depth_is_measured_once() -> None:
    curve = measure(build("unscaled", "pre", DepthPlan.looped(2, 3)), [1, 2])
    assert curve.recomputed is None
    assert "'unscaled' gives the same" in curve.why_not_recomputed
    # beta acted on initial weights only, so a rule of gains alone has nothing to recompute either.
    assert "same" in str(why_not_recomputed(build("beta_only", "post", DepthPlan.looped(2, 3)).config, [1, 2, 9]))
    assert why_not_recomputed(build("inverse_rounds", "pre", DepthPlan.looped(2, 3)).config, [1]) is None


def test_a_config_without_a_known_rule_says_so() -> None:
    model = build("deeploop", "post", DepthPlan.looped(2, 3))
    model.config.residual_rule = None
    assert "names no residual rule" in measure(model, [1]).why_not_recomputed
    model.config.residual_rule = {"name": "deeplop", "arguments": {}}
    assert "did you mean 'deeploop'" in measure(model, [1]).why_not_recomputed


def test_bad_rounds_are_refused() -> None:
    model = build("unscaled", "pre", DepthPlan.looped(2, 3))
    with pytest.raises(PlanError, match="rounds came as 0"):
        measure(model, [1, 0])
    with pytest.raises(PlanError, match="rounds came as 5000; expected at most 4096"):
        measure(model, [1, 5000])
    stuck = LoopedLMForCausalLM(LoopedLMConfig(vocab_size=97, hidden_size=32, plan=[{"blocks": 1, "fixed": True}]))
    with pytest.raises(PlanError, match="every segment"):
        measure(stuck, [1])


def points(losses: dict[int, float]) -> list[RoundsPoint]:
    return [RoundsPoint(r, 2 * r, False, "kept", loss, loss, 100) for r, loss in losses.items()]


def test_a_saturating_curve_is_found_again() -> None:
    laws = {law.law: law for law in fit_round_laws(points({r: 1.5 + 2 * math.exp(-0.5 * r) for r in (1, 2, 4, 8, 16)}))}
    found = laws["saturating"]
    assert found.identifiable
    assert found.parameters == pytest.approx({"L_inf": 1.5, "Z": 2.0, "z": 0.5}, rel=1e-5)
    assert found.root_mean_square < 1e-7
    for name, (low, high) in found.intervals.items():
        assert low <= found.parameters[name] <= high
    assert found.fit["certificate"]["holds"]


def test_a_power_curve_is_found_again() -> None:
    laws = {law.law: law for law in fit_round_laws(points({r: 1.5 + 2 * r**-0.7 for r in (1, 2, 4, 8, 16, 32)}))}
    assert laws["power_with_floor"].parameters == pytest.approx({"L_0": 1.5, "c": 2.0, "a": 0.7}, rel=1e-5)
    assert laws["power_with_floor"].root_mean_square < laws["saturating"].root_mean_square


def test_parameters_come_with_intervals_that_say_what_the_points_leave_open() -> None:
    noise = np.random.default_rng(0).normal(0, 1e-3, 5)
    curve = {r: 1.5 + 2 * math.exp(-0.5 * r) + e for r, e in zip((1, 2, 3, 6, 12), noise, strict=True)}
    saturating, power = fit_round_laws(points(curve))
    assert set(saturating.intervals) == {"L_inf", "Z", "z"}
    low, high = saturating.intervals["L_inf"]
    assert low < 1.5 < high < low + 0.05
    # The other law does not describe these points, so they do not bound its floor from below.
    assert power.intervals["L_0"][0] == -math.inf


def test_too_few_finite_points_are_not_identifiable() -> None:
    for law in fit_round_laws(points({1: 3.0, 2: 2.0, 4: 1.8, 8: math.inf, 16: math.nan})):
        assert not law.identifiable
        assert "3 points up to the lowest loss for 3 parameters" in str(law.reason)
        assert law.parameters is None


def test_a_flat_curve_claims_no_parameters_it_cannot_know() -> None:
    for law in fit_round_laws(points(dict.fromkeys((1, 2, 4, 8, 16), 2.0))):
        assert not law.identifiable or law.warnings


def test_where_the_loss_rises_again_is_said() -> None:
    assert rises_again(points({1: 3.0, 4: 2.0, 8: 2.25})) == (
        "the loss is lowest at R = 4 and 0.2500 nats higher at R = 8"
    )
    assert rises_again(points({1: 3.0, 4: 2.0, 8: 1.9})) is None
    assert rises_again(points({1: 3.0, 2: math.inf})) == "the loss is lowest at R = 1 and not finite at R = 2"
    assert rises_again(points({1: math.nan})) == "no number of rounds has a finite loss"


def test_a_law_that_only_falls_is_fitted_to_the_part_that_falls() -> None:
    falling = {r: 1.5 + 2 * math.exp(-0.5 * r) for r in (1, 2, 4, 8)}
    laws = fit_round_laws(points({**falling, 16: 1.9, 32: math.nan}))
    assert laws[0].rounds == (1, 2, 4, 8)
    assert laws[0].parameters == pytest.approx({"L_inf": 1.5, "Z": 2.0, "z": 0.5}, rel=1e-5)


def test_random_rounds_in_training_are_the_range_that_is_not_flagged() -> None:
    model = build("deeploop", "post", DepthPlan.looped(2, 3, prelude=1))
    tables = {
        "plan": {"blocks": 2, "rounds": 3},
        "model": {"hidden_size": 32, "num_attention_heads": 4},
        "train": {"steps": 1, "batch_rows": 1, "lr": 0.1},
    }
    fixed = validate(RunConfig, tables, "test")
    assert trained_rounds(model.config, None) == trained_rounds(model.config, fixed) == (3, 3)
    drawn = validate(RunConfig, with_overrides(tables, ["train.rounds={mean = 3, minimum = 2, maximum = 6}"]), "test")
    trained = trained_rounds(model.config, drawn)
    assert trained == (2, 6)
    curve = evaluate_rounds(model, Split(), COLLATE, [1, 2, 6, 7], trained=trained, batch_rows=8)
    assert [point.in_training for point in curve.kept] == [False, True, True, False]
