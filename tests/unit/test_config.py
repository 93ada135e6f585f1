from pathlib import Path

import pytest

from depthscale.errors import ConfigError
from depthscale.runs.config import RunConfig
from depthscale.runs.config_file import read_toml, validate, with_overrides, write_toml
from depthscale.runs.study_config import StudyFile

RUN = {
    "plan": {"blocks": 2, "rounds": 4},
    "model": {"hidden_size": 64, "num_attention_heads": 4},
    "train": {"steps": 10, "batch_rows": 2, "lr": 1e-3},
}


def patched(*overrides: str) -> dict[str, object]:
    return with_overrides(RUN, overrides)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.stepz=3", "did you mean 'train.steps'"),
        ("modl.hidden_size=3", "did you mean 'model'"),
        ("plan.blocks=0", "plan.blocks = 0"),
        ("plan.rounds=-1", "plan.rounds = -1"),
        ("model.num_attention_heads=5", "does not divide hidden_size 64"),
        ("model.num_key_value_heads=3", "does not divide num_attention_heads 4"),
        ("model.num_attention_heads=64", "even width"),
        ("model.mlp=relu", "'swiglu' or 'gelu'"),
        ("model.rule=deeplop", "did you mean 'deeploop'"),
        ("model.rule=deeploop", "pre-norm block ignores"),
        ("model.rule=power", "needs p"),
        ("train.lr=0", "greater than 0"),
        ("train.lr=fast", "train.lr = 'fast'"),
        ("train.warmup_steps=10", "not below steps 10"),
        ("data.context_length=2", "data.context_length = 2"),
        ("plan={kind='stacked', blocks=2, prelude=1}", "ignores prelude"),
    ],
)
def test_faults_are_named_in_one_line(override: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        validate(RunConfig, patched(override), "test.toml")
    assert "\n" not in str(caught.value)


def test_a_missing_key_is_named_with_its_mend() -> None:
    with pytest.raises(ConfigError, match=r"'train.lr' is missing; set it in the file or with --set train.lr="):
        validate(RunConfig, RUN | {"train": {"steps": 1, "batch_rows": 1}}, "test.toml")


@pytest.mark.parametrize("override", ["train", "train.lr", "=3", "train..lr=3"])
def test_malformed_overrides(override: str) -> None:
    with pytest.raises(ConfigError, match=r"expected section\.key=value"):
        patched(override)


def test_overrides_are_toml_or_bare_strings() -> None:
    config = validate(RunConfig, patched("train.lr=5e-4", "data.corpus=/a/b c", "model.qk_norm=true"), "test")
    assert (config.train.lr, config.data.corpus, config.model.qk_norm) == (5e-4, "/a/b c", True)
    assert RUN["train"]["lr"] == 1e-3  # the tables given stay as they were


@pytest.mark.parametrize(
    "override", ["train.seed=3", "model.rule_arguments={}", "plan={blocks=3, rounds=2, prelude=1, grad_rounds=1}"]
)
def test_toml_round_trip(tmp_path: Path, override: str) -> None:
    config = validate(RunConfig, patched(override), "test")
    write_toml(tmp_path / "config.toml", config)
    assert validate(RunConfig, read_toml(tmp_path / "config.toml"), "again") == config


def test_reading_what_is_not_there_or_not_toml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no configuration at"):
        read_toml(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = = 3")
    with pytest.raises(ConfigError, match="is not TOML"):
        read_toml(tmp_path / "bad.toml")
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_toml(tmp_path / "bad.toml")


def test_defaults_that_depend_on_other_keys() -> None:
    config = validate(RunConfig, patched("model.mlp=gelu"), "test").model
    assert config.resolved_intermediate_size == 256
    assert config.resolved_final_norm
    config = validate(RunConfig, patched("model.norm_placement=post"), "test").model
    assert config.resolved_intermediate_size == 170
    assert not config.resolved_final_norm


# -- studies ---------------------------------------------------------------------------------------------

STUDY = RUN | {
    "study": {
        "name": "s",
        "baseline": "pre",
        "rounds": [1, 4],
        "seeds": [0, 1],
        "arms": [
            {"name": "pre"},
            {"name": "deeploop", "model": {"norm_placement": "post", "rule": "deeploop"}},
        ],
        "rates": [{"arm": "deeploop", "rounds": 4, "lr": 5e-4, "source": "tuning"}],
    }
}


def test_a_cell_is_the_base_run_with_the_arm_laid_over_it() -> None:
    file = validate(StudyFile, STUDY, "study.toml")
    config = file.run_config("deeploop", 4, seed=7)
    assert (config.plan.rounds, config.model.rule, config.train.lr) == (4, "deeploop", 5e-4)
    assert (config.train.seed, config.train.data_seed) == (7, 7)
    assert file.run_config("deeploop", 1, seed=7).train.lr == 1e-3
    assert file.run_config("deeploop", 4, seed=7, lr=3e-3).train.lr == 3e-3
    assert file.run_config("pre", 4, seed=7).model.rule == "unscaled"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"baseline": "post"}, "baseline 'post' is not among"),
        ({"seeds": [1, 1]}, "repeat"),
        ({"rates": [{"arm": "x", "rounds": 1, "lr": 1.0, "source": ""}]}, "arm 'x'"),
        ({"tuning": {"seeds": [0], "grid": [1e-3, 2e-3]}}, "overlap"),
        ({"rates": [], "arms": [{"name": "pre", "model": {"rule": "deeploop"}}]}, "arm 'pre' at 1 rounds"),
        ({"rates": [], "arms": [{"name": "pre", "model": {"ruel": "deeploop"}}]}, "did you mean 'model.rule'"),
        ({"arms": [{"name": "a/b"}]}, "study.arms.0.name"),
        ({"arms": [{"name": "pre", "modle": {}}]}, "did you mean 'study.arms.0.model'"),
    ],
)
def test_faults_of_a_study(change: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        validate(StudyFile, STUDY | {"study": STUDY["study"] | change}, "study.toml")  # type: ignore[operator]
    assert "\n" not in str(caught.value)
