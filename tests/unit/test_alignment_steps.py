"""Directions, operator norms, and what a real optimizer step does beside its first order and its bound."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from depthscale.alignment.directions import gradient_visits, operator_norm, push_forward
from depthscale.alignment.errors import AlignmentError
from depthscale.alignment.growth import adam_growth, growth_exponent, sgd_growth
from depthscale.alignment.measure import ForwardPass, looped_forward, measure_looped_model, measure_operator_alignment
from depthscale.alignment.one_step import measure_step, optimizer_step, predict_change, state_change
from depthscale.alignment.sublayers import Sublayer, looped_sublayers
from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM
from depthscale.plan import DepthPlan
from depthscale.residual import apply_rule


def tiny(rounds: int, rule: str = "deeploop", placement: str = "post") -> LoopedLMForCausalLM:
    plan = DepthPlan.looped(1, rounds)
    scales = apply_rule(rule, plan.counts(), {"p": 0.3} if rule == "power" else None)
    torch.manual_seed(0)
    config = LoopedLMConfig(
        vocab_size=31,
        hidden_size=8,
        num_attention_heads=2,
        intermediate_size=12,
        mlp="gelu",
        plan=plan.to_dict()["segments"],
        norm_placement=placement,
        residual_scales=[dataclasses.asdict(group) for group in scales.groups],
    )
    return LoopedLMForCausalLM(config)


IDS = torch.randint(31, (2, 5), generator=torch.Generator().manual_seed(2))
BATCH = {"input_ids": IDS, "labels": IDS}


def states_of(model: LoopedLMForCausalLM) -> Tensor:
    return looped_forward(model, BATCH).final_states


def dense_jacobian(model: LoopedLMForCausalLM, names: tuple[str, ...]) -> Tensor:
    """[outputs, parameters] of the named parameters, by torch.func, whatever the visits."""
    parameters = dict(model.named_parameters())

    def function(chosen: dict[str, Tensor]) -> Tensor:
        return functional_call(model.model, {k.removeprefix("model."): v for k, v in chosen.items()}, (IDS,))[
            "last_hidden_state"
        ].flatten()

    jacobian = jacrev(function)({name: parameters[name].detach() for name in names})
    return torch.cat([jacobian[name].flatten(1) for name in names], dim=1)


def test_operator_norms_are_the_largest_singular_values() -> None:
    model = tiny(3, "unscaled").double()
    for sublayer in looped_sublayers(model)[:2]:
        expected = torch.linalg.matrix_norm(dense_jacobian(model, sublayer.parameters), ord=2).item()
        found = operator_norm(model, lambda: states_of(model), sublayer, num_iterations=200, tolerance=1e-7)
        assert found.value == pytest.approx(expected, rel=1e-4)
        assert found.relative_change < 1e-7


def test_pushing_forward_is_the_derivative_and_adds_up_over_visits() -> None:
    model = tiny(3, "unscaled").double()
    sublayer = looped_sublayers(model)[1]
    generator = torch.Generator().manual_seed(1)
    parameters = dict(model.named_parameters())
    direction = {
        name: torch.randn(parameters[name].shape, generator=generator, dtype=torch.float64)
        for name in sublayer.parameters
    }
    whole = push_forward(model, lambda: states_of(model), direction)
    flat = torch.cat([direction[name].flatten() for name in sublayer.parameters])
    torch.testing.assert_close(whole.flatten(), dense_jacobian(model, sublayer.parameters) @ flat)
    visits = gradient_visits(model, lambda: states_of(model), sublayer.parameters)
    parts = []
    for round_ in range(3):
        chosen = {found[round_] for found in visits.values()}
        parts.append(push_forward(model, lambda: states_of(model), direction, visits=chosen))
    torch.testing.assert_close(parts[0] + parts[1] + parts[2], whole)
    assert not torch.allclose(parts[0], parts[1])


def test_truncated_visits_take_no_part_in_the_map() -> None:
    model = tiny(4, "unscaled").double()
    full = operator_norm(model, lambda: states_of(model), looped_sublayers(model)[0], num_iterations=30)
    model.config.plan[0]["grad_rounds"] = 1
    visits = gradient_visits(model, lambda: states_of(model), looped_sublayers(model)[0].parameters)
    assert {tuple(visit.call for visit in found) for found in visits.values()} == {(3,)}
    last = operator_norm(model, lambda: states_of(model), looped_sublayers(model)[0], num_iterations=30)
    model.config.plan[0]["grad_rounds"] = None
    one = operator_norm(model, lambda: states_of(model), looped_sublayers(model)[0], visit=3, num_iterations=30)
    assert last.value == pytest.approx(one.value, rel=1e-3)
    assert last.value != pytest.approx(full.value, rel=1e-2)


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-5),
}


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize(("rule", "placement"), [("deepnorm", "post"), ("deeploop", "post"), ("unscaled", "pre")])
def test_the_bound_holds_and_a_small_step_is_its_first_order(rule: str, placement: str, optimizer: str) -> None:
    model = tiny(3, rule, placement).double()
    change = optimizer_step(model, lambda: looped_forward(model, BATCH).loss, OPTIMIZERS[optimizer])
    # Few iterations leave the operator norms, hence the bound, too small: the harder test.
    step = measure_step(model, lambda: states_of(model), change, looped_sublayers(model), num_iterations=4)
    assert 0 < step.first_order <= step.bound
    assert step.actual == pytest.approx(step.first_order, rel=0.05)
    assert set(step.terms) >= {"block0.attention", "block0.mlp", "block0.norm", "model.embed_tokens.weight"}


def test_under_sgd_the_terms_are_kappas_bound() -> None:
    """With Frobenius norms rate * R * kappa * maxima is the same product; the operator norm is at most that."""
    model = tiny(3, "deepnorm").double()
    change = optimizer_step(model, lambda: looped_forward(model, BATCH).loss, OPTIMIZERS["sgd"])
    step = measure_step(model, lambda: states_of(model), change, looped_sublayers(model), num_iterations=8)
    alignment = measure_looped_model(model, BATCH, num_probes=8)
    for sublayer in alignment.sublayers:
        dimension = states_of(model).numel()
        assert step.terms[sublayer.name] <= 1e-3 * sublayer.bound * 1.3
        assert step.terms[sublayer.name] >= 1e-3 * sublayer.bound / dimension**0.5 * 0.7


def test_kappa_by_operator_norms() -> None:
    """Identical visits are identical in any norm; visits of one sublayer alone are bounded by their number."""
    module = nn.Linear(4, 3, bias=False)
    sublayers = (Sublayer("shared", "other", (("weight",),)),)

    def forward() -> ForwardPass:
        states = module(torch.ones(4)) + module(torch.ones(4))
        return ForwardPass(states, states.square().sum())

    identical = measure_operator_alignment(module, forward, sublayers)
    assert identical.kappa == pytest.approx(2.0, rel=1e-4)
    assert (identical.map_norm, identical.num_probes) == ("operator", 0)
    model = tiny(2, "unscaled").double()
    found = measure_operator_alignment(model, lambda: looped_forward(model, BATCH), looped_sublayers(model)[:1])
    expected = torch.linalg.matrix_norm(dense_jacobian(model, looped_sublayers(model)[0].parameters), ord=2).item()
    assert found.sublayers[0].map_sum == pytest.approx(expected, rel=1e-3)
    assert 0 < found.kappa < 2


def test_a_real_step_leaves_the_model_as_it_was() -> None:
    model = tiny(2)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = {name: p.clone() for name, p in model.named_parameters()}
    change = optimizer_step(model, lambda: looped_forward(model, BATCH).loss, OPTIMIZERS["adamw"])
    measure_step(model, lambda: states_of(model), change, looped_sublayers(model), num_iterations=2)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.grad is not None
        assert bool((parameter.grad == 1).all())
    # Adam's first step moves every number that has a gradient by the rate (weight decay apart).
    largest = max(tensor.abs().max().item() for tensor in change.values())
    assert largest == pytest.approx(1e-5, rel=0.02)


def test_predictions_follow_the_rules_exponent() -> None:
    """C fixed at R = 1: aligned visits under p grow as R^(2 - 4p), orthogonal ones as R^(1 - 4p)."""
    one, eight = (DepthPlan.looped(2, rounds).counts() for rounds in (1, 8))
    for p in (0.25, 0.3, 0.5):
        scales = apply_rule("power", one, {"p": p}), apply_rule("power", eight, {"p": p})
        assert predict_change(2.0, (one, scales[0]), (eight, scales[1])) == pytest.approx(2 * 8 ** (2 - 4 * p))
        orthogonal = predict_change(2.0, (one, scales[0]), (eight, scales[1]), [1.0])
        assert orthogonal == pytest.approx(2 * 8 ** (1 - 4 * p))


@pytest.mark.parametrize(("rule", "p"), [("deepnorm", 0.25), ("power", 0.3), ("deeploop", 0.5)])
def test_a_real_steps_change_grows_with_the_rounds_as_predicted(rule: str, p: float) -> None:
    """At initialization under these rules the assumptions hold: 1 + gamma - 4p under SGD, gamma_U - 2p under Adam."""
    rounds, kappas, parts = (1, 2, 4, 8), [], []
    changes: dict[str, list[float]] = {"sgd": [], "adamw": []}
    for number in rounds:
        model = tiny(number, rule).double()
        alignment = measure_looped_model(model, BATCH, num_probes=4)
        kappas.append(alignment.kappa)
        parts.append(max(sublayer.map_part for sublayer in alignment.matrices))
        matrices = {name for sublayer in looped_sublayers(model)[:2] for name in sublayer.parameters}
        for optimizer, found in changes.items():
            step = optimizer_step(model, lambda model=model: looped_forward(model, BATCH).loss, OPTIMIZERS[optimizer])
            # Embeddings and norm gains carry no beta/alpha; the statement is about the blocks' matrices.
            moved = {name: tensor for name, tensor in step.items() if name in matrices}
            found.append(state_change(model, lambda model=model: states_of(model), moved))
    gamma, map_gamma = (growth_exponent(rounds, values).exponent for values in (kappas, parts))
    assert growth_exponent(rounds, changes["sgd"]).exponent == pytest.approx(sgd_growth(gamma, p), abs=0.15)
    assert growth_exponent(rounds, changes["adamw"]).exponent == pytest.approx(adam_growth(map_gamma, p), abs=0.15)


def test_bad_input_is_named() -> None:
    model = tiny(2)
    untied = Sublayer("untied", "mlp", (("model.embed_tokens.weight",), ("model.embed_tokens.weight",)))
    with pytest.raises(AlignmentError, match="untied"):
        operator_norm(model, lambda: states_of(model), untied)
    with pytest.raises(AlignmentError, match="expected 0 to 1"):
        operator_norm(model, lambda: states_of(model), looped_sublayers(model)[0], visit=2)
    with pytest.raises(AlignmentError, match="zero everywhere"):
        measure_step(model, lambda: states_of(model), {"model.embed_tokens.weight": torch.zeros(31, 8)}, ())
    with pytest.raises(AlignmentError, match="has shape"):
        push_forward(model, lambda: states_of(model), {"model.embed_tokens.weight": torch.zeros(8)})
    with pytest.raises(AlignmentError, match="do not move"):
        push_forward(nn.Linear(2, 2), lambda: torch.ones(2), {"weight": torch.ones(2, 2)})
