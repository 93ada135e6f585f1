"""The model's config: finished numbers, plain data, and one clear line for what it cannot be."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from transformers import AutoConfig, PreTrainedConfig

from depthscale.nn import LoopedLMConfig, LoopedLMForCausalLM
from depthscale.plan import DepthPlan
from depthscale.residual import apply_rule


def test_none_is_finished_at_construction() -> None:
    config = LoopedLMConfig(hidden_size=48, num_attention_heads=4, norm_placement="post")
    assert (config.num_key_value_heads, config.head_dim, config.final_norm) == (4, 12, False)
    assert config.intermediate_size == 128
    assert LoopedLMConfig(hidden_size=48, mlp="gelu").intermediate_size == 192
    assert LoopedLMConfig(norm_placement="pre").final_norm is True
    assert LoopedLMConfig(norm_placement="pre", final_norm=False).final_norm is False


def test_a_plan_and_a_rule_give_a_config_that_survives_json(tmp_path: Path) -> None:
    plan = DepthPlan.looped(2, 3, prelude=1, coda=1, inject=True, grad_rounds=2)
    scales = apply_rule("loop_matched", plan.counts())
    config = LoopedLMConfig(
        norm_placement="sandwich",
        plan=[dataclasses.asdict(segment) for segment in plan.segments],
        residual_scales=[dataclasses.asdict(group) for group in scales.groups],
        residual_rule={"name": scales.rule, "arguments": dict(scales.arguments)},
    )
    assert config.num_hidden_layers == plan.unrolled_depth
    assert config.num_blocks == plan.num_blocks
    assert config.block_segments == [0, 1, 1, 2]
    config.save_pretrained(tmp_path)
    text = json.loads((tmp_path / "config.json").read_text())
    assert text["plan"] == [dataclasses.asdict(segment) for segment in plan.segments]
    assert text["residual_scales"] == [dataclasses.asdict(group) for group in scales.groups]
    # Every field, also those at their default: the file says all there is to know.
    assert {field.name for field in dataclasses.fields(LoopedLMConfig)} - text.keys() <= {
        field.name for field in dataclasses.fields(PreTrainedConfig)
    }
    again = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(again, LoopedLMConfig)
    assert {**again.to_dict(), "_name_or_path": ""} == config.to_dict()


def test_configs_do_not_share_their_lists() -> None:
    first, second = LoopedLMConfig(), LoopedLMConfig()
    first.plan[0]["rounds"] = 5
    assert second.plan[0]["rounds"] == 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"hidden_size": 30, "num_attention_heads": 4}, "hidden_size 30 is not a multiple of num_attention_heads 4"),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, "not a multiple of num_key_value_heads 3"),
        ({"hidden_size": 12, "num_attention_heads": 4}, "head_dim came as 3; expected an even number"),
        ({"hidden_size": 0}, "hidden_size came as 0; expected a whole number"),
        ({"vocab_size": 97.0}, "vocab_size came as 97.0"),
        ({"norm_placement": "sandwhich"}, "did you mean 'sandwich'"),
        ({"mlp": "swish"}, "unknown mlp 'swish'"),
        ({"plan": []}, "plan came without segments"),
        ({"plan": "4"}, "plan came as '4'; expected a list"),
        ({"plan": [{"rounds": 2}]}, r"plan\[0\] has no 'blocks'"),
        ({"plan": [{"blocks": 0}]}, r"plan\[0\].blocks came as 0"),
        ({"plan": [{"blocks": 1, "rounds": 0}]}, r"plan\[0\].rounds came as 0"),
        ({"plan": [{"blocks": 1, "round": 2}]}, "did you mean 'rounds'"),
        ({"plan": [{"blocks": 1, "grad_rounds": 0}]}, "grad_rounds came as 0"),
        ({"plan": [{"blocks": 1, "inject": 1}]}, "inject came as 1; expected true or false"),
        ({"plan": [{"blocks": 1}, {"blocks": 1}], "residual_scales": [{}]}, "has 1 entries for 2 segments"),
        ({"residual_scales": [{"alpha": 2.0}]}, "unknown key of residual_scales"),
        ({"residual_scales": [{"gain": 0.0}]}, "gain came as 0.0; expected a positive finite number"),
        ({"residual_scales": [{"gain": float("nan")}]}, "gain came as nan"),
        ({"norm_placement": "pre", "residual_scales": [{"skip": 2.0}]}, "skip = 2.0, which pre-norm blocks ignore"),
        ({"norm_placement": "post", "residual_scales": [{"branch": 0.5}]}, "branch = 0.5, which post-norm blocks"),
        ({"hiden_size": 64}, "did you mean 'hidden_size'"),
        ({"num_hidden_layers": 4}, "it follows from the plan"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps came as -1e-05"),
    ],
)
def test_what_a_config_cannot_be_is_one_clear_line(arguments: dict, line: str) -> None:
    with pytest.raises(ValueError, match=line) as caught:
        LoopedLMConfig(**arguments)
    assert "\n" not in str(caught.value)


def test_another_attention_implementation_is_refused() -> None:
    with pytest.raises(ValueError, match="attn_implementation came as 'eager'"):
        LoopedLMForCausalLM(LoopedLMConfig(hidden_size=16, attn_implementation="eager"))
