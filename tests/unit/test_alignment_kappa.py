"""kappa: constructed cases, streaming against exact, random maps against the dense Jacobian, bad input."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn

from depthscale.alignment.errors import AlignmentError
from depthscale.alignment.gradients import per_visit_gradients
from depthscale.alignment.kappa import Alignment
from depthscale.alignment.measure import (
    ForwardPass,
    adam_scale,
    looped_forward,
    measure_alignment,
    measure_looped_model,
)
from depthscale.alignment.sketch import sketch_visits
from depthscale.alignment.sublayers import Sublayer, looped_sublayers, module_sublayers
from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM
from depthscale.plan import DepthPlan
from depthscale.residual import apply_rule

SHARED = (Sublayer("shared", "other", (("weight",),)),)


def visits_of_one_matrix(directions: list[Tensor], num_probes: int = 3) -> Alignment:
    """F = sum_r W x_r: U_r has rank one per output, its visits lie as the x_r do, and so do the gradients."""
    module = nn.Linear(directions[0].numel(), 3, bias=False)

    def forward() -> ForwardPass:
        states = torch.stack([module(x) for x in directions]).sum(dim=0)
        return ForwardPass(states, states.sum())

    return measure_alignment(module, forward, SHARED, num_probes=num_probes)


@pytest.mark.parametrize("rounds", [2, 3, 8])
def test_orthogonal_visits_give_one(rounds: int) -> None:
    alignment = visits_of_one_matrix(list(torch.eye(8)[:rounds]))
    assert alignment.kappa == pytest.approx(1.0, abs=1e-5)
    assert alignment.sublayers[0].map_part == pytest.approx(math.sqrt(rounds), rel=1e-5)
    assert alignment.sublayers[0].gradient_part == pytest.approx(math.sqrt(rounds), rel=1e-5)


@pytest.mark.parametrize("rounds", [2, 3, 8])
def test_identical_visits_give_their_number(rounds: int) -> None:
    direction = torch.randn(8, generator=torch.Generator().manual_seed(0))
    alignment = visits_of_one_matrix([direction] * rounds)
    assert alignment.kappa == pytest.approx(rounds, rel=1e-5)
    assert alignment.kappa_common == pytest.approx(rounds, rel=1e-5)
    assert alignment.sublayers[0].num_visits == rounds


def test_opposite_visits_give_zero_and_one_visit_gives_one() -> None:
    direction = torch.ones(4)
    assert visits_of_one_matrix([direction, -direction]).kappa == pytest.approx(0.0, abs=1e-6)
    single = visits_of_one_matrix([direction])
    assert single.kappa == 1.0
    assert single.sublayers[0].kappa_standard_error is None


def test_common_maxima_are_over_all_sublayers() -> None:
    """Two matrices, the second's visits three times as large: its kappa is the same, the first's common one is not."""
    module = nn.ModuleDict({"small": nn.Linear(4, 3, bias=False), "large": nn.Linear(4, 3, bias=False)})
    x = torch.eye(4)[0]

    def forward() -> ForwardPass:
        states = 2 * module["small"](x) + 2 * module["large"](3 * x)
        states = states + module["small"](x) + module["large"](3 * x)
        return ForwardPass(states, states.sum())

    small, large = measure_alignment(module, forward, module_sublayers(module, ["small", "large"])).sublayers
    # Visits of sizes 2 and 1: sums of 3, so kappa = 3 * 3 / (2 * 2 * 2); the large ones are 3 times that in U and G.
    assert small.kappa == pytest.approx(9 / 8, rel=1e-5)
    assert large.kappa == pytest.approx(9 / 8, rel=1e-5)
    assert large.kappa_common == pytest.approx(9 / 8, rel=1e-5)
    assert small.kappa_common == pytest.approx(9 / 8 / 9, rel=1e-5)


def tiny(rounds: int = 3, rule: str = "deeploop", placement: str = "post", blocks: int = 2) -> LoopedLMForCausalLM:
    plan = DepthPlan.looped(blocks, rounds)
    scales = apply_rule(rule, plan.counts())
    torch.manual_seed(0)
    config = LoopedLMConfig(
        vocab_size=97,
        hidden_size=32,
        num_attention_heads=2,
        plan=plan.to_dict()["segments"],
        norm_placement=placement,
        residual_scales=[dataclasses.asdict(group) for group in scales.groups],
    )
    return LoopedLMForCausalLM(config)


def make_batch(rows: int = 2, length: int = 12) -> dict[str, Tensor]:
    ids = torch.randint(97, (rows, length), generator=torch.Generator().manual_seed(2))
    return {"input_ids": ids, "labels": ids}


def test_streaming_equals_exact() -> None:
    model, batch = tiny(rule="unscaled"), make_batch()
    alignment = measure_looped_model(model, batch)
    exact = per_visit_gradients(model, lambda: looped_forward(model, batch).loss)
    for sublayer, measured in zip(looped_sublayers(model), alignment.sublayers, strict=True):
        vectors = exact.vectors(sublayer.parameters).double()
        assert measured.gradient_sum == pytest.approx(vectors.sum(dim=0).norm().item(), rel=1e-5)
        assert measured.gradient_max == pytest.approx(vectors.norm(dim=1).max().item(), rel=1e-5)


def test_random_probes_estimate_the_dense_jacobian() -> None:
    """In float64 on one sublayer: sums and visits of U against the Jacobian itself, within 4 standard errors."""
    module = nn.Sequential(nn.Linear(5, 5, bias=False), nn.Tanh()).double()
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weight = module[0].weight.detach()

    def states(first: Tensor, second: Tensor) -> Tensor:
        return torch.tanh(torch.tanh(x @ first.T) @ second.T)

    def forward() -> ForwardPass:
        final = module(module(x))
        return ForwardPass(final, final.square().mean())

    jacobians = torch.autograd.functional.jacobian(states, (weight, weight))
    norms = [jacobian.norm().item() for jacobian in jacobians]
    sublayers = (Sublayer("linear", "other", (("0.weight",),)),)
    measured = measure_alignment(module, forward, sublayers, num_probes=400).sublayers[0]
    # Relative spread of a squared Frobenius norm over P probes is at most sqrt(2 / P); of the norm half that.
    allowed = 4 * math.sqrt(2 / 400) / 2
    assert measured.map_sum == pytest.approx((jacobians[0] + jacobians[1]).norm().item(), rel=allowed)
    assert measured.map_max == pytest.approx(max(norms), rel=allowed)
    exact_part = (jacobians[0] + jacobians[1]).norm().item() / max(norms)
    error = measured.kappa_standard_error
    assert error is not None
    assert 0 < error < 0.05
    assert abs(measured.map_part - exact_part) * measured.gradient_part / 2 < 4 * error


def test_at_initialization_deeploop_is_aligned_and_unscaled_is_not() -> None:
    """Scratch measurements: growth exponents about 1.00 under DeepLoop, .03 post unscaled, below 0 pre unscaled."""
    batch = make_batch()
    assert measure_looped_model(tiny(8), batch).kappa == pytest.approx(8, rel=0.02)
    assert measure_looped_model(tiny(8, "unscaled"), batch).kappa < 3
    assert measure_looped_model(tiny(8, "unscaled", "pre"), batch).kappa < 1.5


def test_the_maxima_are_in_units_of_the_rules_branch() -> None:
    model = tiny(3, "deepnorm")
    scales = model.config.residual_scales[0]
    for sublayer in measure_looped_model(model, make_batch()).sublayers:
        assert sublayer.relative_branch == pytest.approx(scales["gain"] / scales["skip"])
        assert sublayer.relative_map_max == pytest.approx(sublayer.map_max * scales["skip"] / scales["gain"])


def test_the_bound_is_made_of_shares() -> None:
    alignment = measure_looped_model(tiny(), make_batch())
    assert sum(alignment.shares().values()) == pytest.approx(1.0)
    for sublayer in alignment.sublayers:
        product = sublayer.num_visits * sublayer.kappa * sublayer.map_max * sublayer.gradient_max
        assert sublayer.bound == pytest.approx(product, rel=1e-9)
    document = alignment.to_dict()
    assert document["kappa"] == max(s["kappa"] for s in document["sublayers"] if s["kind"] != "norm")
    assert {s["kind"] for s in document["sublayers"]} == {"attention", "mlp", "norm"}


def test_adams_update_per_visit_adds_up_to_the_preconditioned_gradient() -> None:
    model, batch = tiny(rule="unscaled"), make_batch()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sublayers = looped_sublayers(model)
    with pytest.raises(AlignmentError, match="after at least one step"):
        measure_looped_model(model, batch, optimizer=optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        looped_forward(model, batch).loss.backward()
        optimizer.step()
    alignment = measure_looped_model(model, batch, optimizer=optimizer)
    assert alignment.gradient_of == "adam"
    optimizer.zero_grad()
    looped_forward(model, batch).loss.backward()
    parameters = dict(model.named_parameters())
    scale = adam_scale(model, optimizer, list(sublayers[0].parameters))
    squares = 0.0
    for name in sublayers[0].parameters:
        state = optimizer.state[parameters[name]]
        second = (state["exp_avg_sq"] / (1 - 0.999 ** float(state["step"]))).sqrt() + 1e-8
        torch.testing.assert_close(scale[name], 1 / second)
        squares += (parameters[name].grad / second).double().square().sum().item()  # type: ignore[operator]
    assert alignment.sublayers[0].gradient_sum == pytest.approx(math.sqrt(squares), rel=1e-5)


def test_measuring_leaves_weights_gradients_and_random_numbers_as_they_were() -> None:
    model, batch = tiny(), make_batch()
    looped_forward(model, batch).loss.backward()
    before = [(p.clone(), p.grad.clone()) for p in model.parameters() if p.grad is not None]
    random = torch.get_rng_state()
    first = measure_looped_model(model, batch, seed=3)
    assert torch.equal(random, torch.get_rng_state())
    for parameter, (weight, gradient) in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, weight)
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, gradient)
    assert measure_looped_model(model, batch, seed=3) == first


def test_padding_does_not_count() -> None:
    model, batch = tiny(rule="unscaled"), make_batch(rows=1)
    padded = {
        "input_ids": torch.cat((batch["input_ids"], torch.zeros(1, 5, dtype=torch.int64)), dim=1),
        "labels": torch.cat((batch["labels"], torch.full((1, 5), -100)), dim=1),
        "attention_mask": torch.cat((torch.ones(1, 12), torch.zeros(1, 5)), dim=1),
    }
    plain = {**batch, "attention_mask": torch.ones(1, 12)}
    one, other = measure_looped_model(model, plain), measure_looped_model(model, padded)
    for first, second in zip(one.sublayers, other.sublayers, strict=True):
        assert second.kappa == pytest.approx(first.kappa, rel=1e-4)
        assert second.map_max == pytest.approx(first.map_max, rel=1e-4)


def test_a_stacked_model_measured_as_if_it_were_tied() -> None:
    """With equal weights in every block the untied control is the tied model, kappa and all."""
    tied, batch = tiny(3, "unscaled"), make_batch()
    stacked = tiny(1, "unscaled", blocks=6)
    state = {name: value for name, value in tied.state_dict().items() if ".blocks." not in name}
    for name, value in tied.state_dict().items():
        if ".blocks." in name:
            prefix, index, rest = name.partition(".blocks.")[0], int(name.split(".")[2]), name.split(".", 3)[3]
            state.update({f"{prefix}.blocks.{index + 2 * round_}.{rest}": value for round_ in range(3)})
    stacked.load_state_dict(state)
    expected, found = measure_looped_model(tied, batch), measure_looped_model(stacked, batch, num_blocks=2)
    assert [s.name for s in found.sublayers] == [s.name for s in expected.sublayers]
    for first, second in zip(expected.sublayers, found.sublayers, strict=True):
        assert second.num_visits == 3
        assert second.kappa == pytest.approx(first.kappa, rel=1e-4)
    with pytest.raises(AlignmentError, match="expected a divisor"):
        looped_sublayers(stacked, num_blocks=4)


def test_truncated_rounds_count_only_what_carries_gradient() -> None:
    model = tiny(4)
    model.config.plan[0]["grad_rounds"] = 2
    assert {s.num_visits for s in measure_looped_model(model, make_batch()).sublayers} == {2}


def test_sketches_estimate_cosines_within_their_stated_error() -> None:
    model, batch = tiny(4, "unscaled"), make_batch()
    sublayers = looped_sublayers(model)
    exact = per_visit_gradients(model, lambda: looped_forward(model, batch).loss)
    # Over 12 seeds the errors' root mean square stays below the bound, and no entry is 5 of them away.
    for sublayer in sublayers[:2]:
        truth = exact.cosine_matrix(sublayer.parameters)
        errors = []
        for seed in range(12):
            loss = lambda: looped_forward(model, batch).loss  # noqa: E731
            (sketch,) = sketch_visits(model, loss, [sublayer], size=512, seed=seed)
            errors.append(sketch.cosine_matrix() - truth)
        off_diagonal = torch.stack(errors)[:, ~torch.eye(4, dtype=torch.bool)]
        assert off_diagonal.square().mean().sqrt().item() < 1.2 * sketch.cosine_standard_error
        assert off_diagonal.abs().max().item() < 5 * sketch.cosine_standard_error
        assert off_diagonal.abs().max().item() > 0


def test_bad_input_is_named() -> None:
    model, batch = tiny(), make_batch()
    with pytest.raises(AlignmentError, match="num_probes"):
        measure_looped_model(model, batch, num_probes=0)
    unused = nn.ModuleDict({"used": nn.Linear(4, 4, bias=False), "unused": nn.Linear(4, 4, bias=False)})

    def forward() -> ForwardPass:
        states = unused["used"](torch.ones(4))
        return ForwardPass(states, states.sum())

    with pytest.raises(AlignmentError, match="never visited"):
        measure_alignment(unused, forward, module_sublayers(unused, ["unused"]))
    model.model.blocks[0].attention.q_proj.weight.requires_grad_(False)
    with pytest.raises(AlignmentError, match=r"no gradient reached 'model.blocks.0.attention.q_proj.weight'"):
        measure_looped_model(model, batch)
    broken = tiny()
    with torch.no_grad():
        broken.model.blocks[1].mlp.down_proj.weight[0, 0] = torch.nan
    with pytest.raises(AlignmentError, match="finite"):
        measure_looped_model(broken, batch)
    with pytest.raises(AlignmentError, match="float32"):
        measure_looped_model(tiny().to(torch.bfloat16), batch)
    with pytest.raises(AlignmentError, match="no matrices under"):
        module_sublayers(model, ["model.blocks.9"])


def test_parameters_of_one_sublayer_that_are_not_visited_together() -> None:
    module = nn.ModuleDict({"often": nn.Linear(4, 4, bias=False), "once": nn.Linear(4, 4, bias=False)})

    def forward() -> ForwardPass:
        states = module["once"](module["often"](module["often"](torch.ones(4))))
        return ForwardPass(states, states.sum())

    sublayers = (Sublayer("both", "other", (("often.weight", "once.weight"),)),)
    with pytest.raises(AlignmentError, match="visited together"):
        measure_alignment(module, forward, sublayers)
