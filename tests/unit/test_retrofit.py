"""A gain acts once, however often it is asked for, and across saving and loading."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from depthscale.alignment.errors import AlignmentError
from depthscale.alignment.retrofit import ScaledResidual, apply_init_gain, forget_init_gain

VALUE = slice(8, 12)


def block() -> nn.ModuleDict:
    return nn.ModuleDict({"fused": nn.Linear(4, 12, bias=False), "out": nn.Linear(4, 4, bias=False)})


def gain_once(module: nn.Module, gain: float = 0.25) -> None:
    apply_init_gain(module, ["out.weight", ("fused.weight", VALUE)], gain)


def weights(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def require_equal(module: nn.Module, expected: dict[str, torch.Tensor]) -> None:
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter, expected[name]), name


def test_a_second_call_changes_nothing_from_whichever_module_it_comes() -> None:
    module = block()
    gain_once(module)
    once = weights(module)
    gain_once(module)
    apply_init_gain(module["fused"], [("weight", (VALUE, slice(None)))], 0.25)
    require_equal(module, once)
    apply_init_gain(module, [("fused.weight", slice(0, 4))], 0.25)  # another part is another weight
    assert torch.equal(module["fused"].weight[:4], once["fused.weight"][:4] * 0.25)
    assert torch.equal(module["fused"].weight[4:], once["fused.weight"][4:])


def test_a_resume_changes_nothing_in_either_order(tmp_path: Path) -> None:
    first = block()
    gain_once(first)
    with torch.no_grad():
        for parameter in first.parameters():
            parameter += 1  # training
    torch.save(first.state_dict(), tmp_path / "state.pt")
    trained = weights(first)
    state = torch.load(tmp_path / "state.pt", weights_only=True)

    initialized_then_loaded = block()
    gain_once(initialized_then_loaded)
    initialized_then_loaded.load_state_dict(state)
    gain_once(initialized_then_loaded)
    require_equal(initialized_then_loaded, trained)

    # Never drawn: announced on the meta device, loaded, and asked for again where a first run would gain.
    with torch.device("meta"):
        loaded = block()
    gain_once(loaded)
    loaded.to_empty(device="cpu")
    loaded.load_state_dict(state)
    gain_once(loaded)
    require_equal(loaded, trained)

    # Loading into a module that knows of no gain must not go unnoticed: it would be applied a second time.
    with pytest.raises(RuntimeError, match=r"out\.weight_init_gain"):
        block().load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"out\.weight_init_gain"):
        loaded.load_state_dict(block().state_dict())


def test_weights_drawn_after_the_meta_device_are_gained() -> None:
    with torch.device("meta"):
        module = block()
    gain_once(module)
    module.to_empty(device="cpu")
    for parameter in module.parameters():
        nn.init.ones_(parameter)
    gain_once(module)
    gain_once(module)
    assert module["out"].weight.unique().tolist() == [0.25]
    assert module["fused"].weight[VALUE].unique().tolist() == [0.25]
    assert module["fused"].weight[:8].unique().tolist() == [1.0]


def test_marks_outlast_copies_casts_and_emptied_buffers() -> None:
    module = block()
    gain_once(module, 0.1)  # a number that bfloat16 would round
    moved = copy.deepcopy(module).to(torch.bfloat16)
    state = moved.state_dict()
    moved.to_empty(device="cpu")
    moved.load_state_dict(state)
    before = weights(moved)
    gain_once(moved, 0.1)
    require_equal(moved, before)


def test_the_gain_of_half_precision_weights_is_not_rounded_first() -> None:
    module = nn.Linear(64, 64, bias=False, dtype=torch.bfloat16)
    expected = (module.weight.detach().float() * 0.1).to(torch.bfloat16)
    apply_init_gain(module, ["weight"], 0.1)
    assert torch.equal(module.weight, expected)


def test_another_gain_or_an_overlapping_part_is_refused_and_new_weights_are_not() -> None:
    module = block()
    gain_once(module)
    once = weights(module)
    with pytest.raises(AlignmentError, match=r"'out.weight' was multiplied by 0.25 before, and came with 0.5"):
        apply_init_gain(module, ["out.weight"], 0.5)
    with pytest.raises(AlignmentError, match="in another part"):
        apply_init_gain(module, ["fused.weight"], 0.25)
    with pytest.raises(AlignmentError, match="one slice a dimension"):
        apply_init_gain(module, [("out.weight", 3)], 0.25)  # type: ignore[list-item]
    require_equal(module, once)
    nn.init.ones_(module["out"].weight)
    forget_init_gain(module)
    assert list(module.state_dict()) == list(block().state_dict())
    apply_init_gain(module, ["out.weight"], 0.5)
    assert module["out"].weight.unique().tolist() == [0.5]


def test_a_tied_weight_is_gained_once_by_either_name() -> None:
    module = nn.ModuleDict({"a": nn.Linear(4, 4, bias=False), "b": nn.Linear(4, 4, bias=False)})
    module["b"].weight = module["a"].weight
    before = module["a"].weight.detach().clone()
    apply_init_gain(module, ["a.weight"], 0.5)
    apply_init_gain(module, ["b.weight"], 0.5)
    assert torch.equal(module["b"].weight, before * 0.5)


def test_deeploops_skip_scale_on_a_pre_norm_block_names_the_rule_for_it() -> None:
    with pytest.raises(AlignmentError, match=r"pre-norm block.*inverse_rounds"):
        ScaledResidual(nn.Linear(4, 4), skip=8.5, before=nn.RMSNorm(4))
    ScaledResidual(nn.Linear(4, 4), skip=8.5, before=nn.RMSNorm(4), after=nn.RMSNorm(4))
    ScaledResidual(nn.Linear(4, 4), branch=0.3, before=nn.RMSNorm(4))


def test_a_slice_that_runs_backwards_scales_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    before = model[0].weight.clone()
    with pytest.raises(AlignmentError, match="runs backwards"):
        apply_init_gain(model, ["0.weight", ("1.weight", slice(2, None, -1))], 0.5)
    assert torch.equal(model[0].weight, before)
