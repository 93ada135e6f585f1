"""FSDP2 in two processes: what is gathered, what the gradient is, and initial weights that are drawn in shards."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from depthscale import shard_looped
from depthscale.errors import ConfigError

K, R = 2, 3


@pytest.fixture
def seen(two_processes: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = two_processes["sharding"]
    return found


def test_shared_blocks_are_gathered_once_a_step_instead_of_once_a_visit_and_pass(seen: dict[str, Any]) -> None:
    steps = seen["steps"]
    outside = 1  # embedding, head and outer norms, one group
    assert steps["looped plain"]["gathers"] == 2 * K * R + outside
    assert steps["looped ours"]["gathers"] == K + outside
    assert steps["looped checkpointed"]["gathers"] == K + outside
    assert steps["looped other rounds"]["gathers"] == K + outside
    assert steps["injected ours"]["gathers"] == steps["injected checkpointed"]["gathers"] == 3 + outside
    assert steps["truncated ours"]["gathers"] == 4 + outside
    assert steps["looped ours"]["reductions"] == K + outside


def test_gradients_in_uneven_shards_with_tied_weights_are_those_of_one_process(seen: dict[str, Any]) -> None:
    """Public fault: FSDP2 with tied weights and uneven shards, pytorch issue 176076."""
    for name, step in seen["steps"].items():
        assert step["worst_error"] < 1e-6, name
        assert step["tied"], name
        assert not step["even"]


def test_every_weight_is_in_shards_again_before_the_optimizer_steps(seen: dict[str, Any]) -> None:
    for name, step in seen["steps"].items():
        if name != "looped plain":
            assert step["in_shards"], name
            assert step["in_shards_after_evaluation"], name


def test_five_steps_at_changing_rounds_are_those_of_one_process(seen: dict[str, Any]) -> None:
    sharded, single = seen["five_steps"]
    assert sharded == pytest.approx(single, rel=1e-5)
    assert single[0] != pytest.approx(single[4], rel=1e-3)  # the steps did something


def test_gains_act_on_parts_of_shards_once(seen: dict[str, Any]) -> None:
    assert seen["gained_shards"] == {"first": True, "second": True, "acted": True}


def test_weights_drawn_in_torchtitans_order_have_their_gain_once(seen: dict[str, Any]) -> None:
    for drawn in (seen["drawn"]["once"], seen["drawn"]["twice"]):
        for matrix in ("q_proj", "k_proj"):
            assert drawn[matrix] == pytest.approx(1, rel=0.1)
        for matrix in ("v_proj", "o_proj", "up_proj", "gate_proj", "down_proj"):
            assert drawn[matrix] == pytest.approx(drawn["expected_looped_lm"], rel=0.1)
        assert drawn["plain_loop"] == pytest.approx(drawn["expected_plain_loop"], rel=0.1)
    # Weights that training made twice as large keep their size, whoever asks for the gain again.
    assert seen["drawn"]["trained"]["kept"] == pytest.approx(2 * seen["drawn"]["once"]["expected_plain_loop"], rel=0.1)


def test_a_resume_that_never_drew_its_weights_goes_on_as_the_unbroken_run(seen: dict[str, Any]) -> None:
    assert set(seen["resumed"]) == {"looped_lm", "plain_loop"}
    for unbroken, resumed in seen["resumed"].values():
        assert unbroken == resumed
        assert len(set(unbroken)) == 3


def test_deeploop_on_a_pre_norm_block_is_refused_with_the_rule_for_it(seen: dict[str, Any]) -> None:
    assert "pre-norm" in seen["refusal"]
    assert "inverse_rounds" in seen["refusal"]


def test_bad_input_is_named() -> None:
    model = nn.ModuleDict({"blocks": nn.ModuleList([nn.Linear(2, 2)])})
    with pytest.raises(ConfigError, match="no process group"):
        shard_looped(model)
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with pytest.raises(ConfigError, match=r"unknown block 'blocks\.1'"):
            shard_looped(model, blocks=["blocks.1"])
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_the_example_runs_as_its_first_lines_say() -> None:
    example = Path(__file__).parents[2] / "examples" / "fsdp2_training.py"
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("on 1 processes") == 2
    assert "inverse_rounds" in done.stdout
