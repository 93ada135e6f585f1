"""Maximal update parametrization: a coordinate check, and the table's factors one by one."""

import functools
import math
from typing import Any

import pytest
import torch

from depthscale.errors import ConfigError
from depthscale.nn import LoopedLMForCausalLM
from depthscale.runs.config import RunConfig
from depthscale.runs.config_file import validate
from depthscale.training.model import model_config
from depthscale.training.optimizers import build_optimizer
from depthscale.training.parameter_groups import named_parameters_once, role
from depthscale.training.tokenizer import byte_tokenizer

WIDTHS = (32, 64, 128, 256)
STEPS = 4


def make_config(width: int, base_width: int | None, **model: Any) -> RunConfig:
    tables = {
        "plan": {"blocks": 2, "rounds": 2},
        # Widths grow by more heads of one size, as the parametrization asks.
        "model": {"hidden_size": width, "num_attention_heads": width // 16, "vocab_size": 257, **model},
        "train": {"steps": 10, "batch_rows": 4, "lr": 5e-3, "weight_decay": 0.1},
    }
    if base_width is not None:
        tables["train"]["base_width"] = base_width
    return validate(RunConfig, tables, "test")


def make_model(config: RunConfig) -> LoopedLMForCausalLM:
    torch.manual_seed(0)
    return LoopedLMForCausalLM(model_config(config, byte_tokenizer(), 257))


@functools.cache
def changes(width: int, base_width: int | None, placement: str, rule: str, deviation: float | None) -> list[float]:
    """RMS change after four steps of each visit's output and, last, of the logits."""
    config = make_config(width, base_width, norm_placement=placement, rule=rule, initializer_range=deviation)
    model = make_model(config)
    optimizer = build_optimizer(model, config.train)
    tokens = torch.randint(257, (4, 16), generator=torch.Generator().manual_seed(1))

    @torch.no_grad()
    def look() -> list[torch.Tensor]:
        output = model(tokens, output_hidden_states=True)
        return [*output.hidden_states[1:], output.logits]

    before = look()
    for _ in range(STEPS):
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [(b - a).square().mean().sqrt().item() for a, b in zip(before, look(), strict=True)]


@pytest.mark.parametrize(
    ("placement", "rule", "deviation"),
    [("pre", "unscaled", None), ("pre", "unscaled", 0.1), ("post", "deeploop", None)],
)
def test_coordinates_move_alike_at_every_width_and_without_it_they_do_not(
    placement: str, rule: str, deviation: float | None
) -> None:
    """Over an eightfold range of widths: within a factor 1.25 under base_width (measured: 1.15), and at least twice as
    much at the largest width under the standard parametrization (measured: 2.4 to 14; logits 3.3 to 5.6)."""
    scaled = [changes(width, 32, placement, rule, deviation) for width in WIDTHS]
    standard = [changes(width, None, placement, rule, deviation) for width in WIDTHS]
    assert scaled[0] == standard[0]
    for at_widths in zip(*scaled, strict=True):
        assert max(at_widths) / min(at_widths) < 1.25
    growth = [last / first for first, last in zip(standard[0], standard[-1], strict=True)]
    assert growth[-1] > 2
    # Under a post norm the stream has RMS 1 and cannot grow; there the logits tell.
    assert placement == "post" or min(growth) > 2


def test_the_factors_are_those_of_the_table() -> None:
    config = make_config(128, 32, initializer_range=0.05, tie_word_embeddings=False)
    model = make_model(config)
    groups = {id(p): group for group in build_optimizer(model, config.train).param_groups for p in group["params"]}
    for name, parameter in named_parameters_once(model):
        group, kind = groups[id(parameter)], role(name)
        is_matrix = kind in ("query_key", "value_output", "mlp")
        assert group["lr"] == pytest.approx(5e-3 / 4 if is_matrix else 5e-3)
        # What AdamW applies is rate x decay: the same for every weight that decays.
        assert group["lr"] * group["weight_decay"] == pytest.approx(0.0 if kind == "norm" else 5e-4)
        if kind != "norm":
            expected = 0.05 / math.sqrt(4) if is_matrix else 0.02
            assert parameter.std().item() == pytest.approx(expected, rel=0.05)
    assert model.config.output_multiplier == 0.25


def test_the_multiplier_acts_on_logits_and_lives_in_the_checkpoint(tmp_path: Any) -> None:
    model = make_model(make_config(64, 32)).eval()
    tokens = torch.arange(10)[None]
    hidden = model.model(tokens).last_hidden_state
    torch.testing.assert_close(model(tokens).logits, 0.5 * hidden @ model.model.embed_tokens.weight.T)
    model.save_pretrained(tmp_path)
    loaded = LoopedLMForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits, rtol=0, atol=0)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


def test_at_the_base_width_nothing_changes() -> None:
    with_base, without = (make_model(make_config(32, base, initializer_range=0.05)) for base in (32, None))
    assert all(torch.equal(a, b) for a, b in zip(with_base.parameters(), without.parameters(), strict=True))
    assert with_base.config.output_multiplier == without.config.output_multiplier == 1


@pytest.mark.parametrize(
    ("train", "message"),
    [({"base_width": 0}, "train.base_width = 0"), ({"base_width": 32, "optimizer": "muon"}, "leave one of base_width")],
)
def test_bad_input_is_one_line(train: dict[str, Any], message: str) -> None:
    tables = make_config(32, None).model_dump(exclude_none=True)
    tables["train"] |= train
    with pytest.raises(ConfigError, match=message) as caught:
        validate(RunConfig, tables, "test")
    assert "\n" not in str(caught.value)
