"""``fit``, ``allocate`` and ``compare-laws``: odd names, options out of range, and choices that no law reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import one_line, run
from synthetic_study import write_synthetic_study

from depthscale.laws import LAWS

DEPTH, CHINCHILLA = LAWS["width_depth_tokens"], LAWS["chinchilla"]
TRUTH = dict(zip(DEPTH.parameters, (1.75, 274.7, 6.72, 529.0, 0.945, 1.325, 0.299), strict=True))
PROFILES = ("--bootstrap", "0", "--no-validation")


def write_table(path: Path, steps: bool = False, width: float | None = None) -> str:
    """48 rows of width, depth and tokens; half of them unfinished, or all of one width, where asked."""
    axes = np.meshgrid(np.array([256.0, 512, 1024, 2048]), np.array([4.0, 8, 16, 32]), np.geomspace(1e9, 1e11, 3))
    columns = dict(zip(DEPTH.columns, (axis.ravel() for axis in axes), strict=True))
    losses = DEPTH.predict(TRUTH, columns) * np.exp(0.002 * np.random.default_rng(0).standard_normal(48))
    lines = ["width,depth,tokens,loss" + (",step,total_steps" if steps else "")]
    for row, (m, l, d, loss) in enumerate(zip(*columns.values(), losses, strict=True)):
        lines.append(f"{width or m:.0f},{l:.0f},{d:.6g},{loss:.6f}" + (f",{5 + 5 * (row % 2)},10" if steps else ""))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def write_arms(path: Path, arms: tuple[str, str], turned: bool = False) -> str:
    """Two arms of 12 runs with effects of their own that both arms share; the second in the other order, if asked."""
    generator = np.random.default_rng(1)
    effects = 0.02 * generator.standard_normal(12)
    truth = {"E": 1.8, "A": 480.0, "B": 2100.0, "alpha": 0.35, "beta": 0.37}
    lines = ["arm,run,parameters,tokens,loss"]
    for arm in arms:
        order = range(12)[::-1] if turned and arm == arms[1] else range(12)
        for number in order:
            for tokens in (1e9, 1e10, 1e11):
                size = 1e7 * 1.6**number
                loss = CHINCHILLA.predict(truth, {"parameters": np.array([size]), "tokens": np.array([tokens])})[0]
                lines.append(f"{arm},run{number},{size:.8g},{tokens:g},{loss * np.exp(effects[number]):.8f}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mended")
    table = write_table(folder / "runs.csv")
    with pytest.MonkeyPatch.context() as monkeypatch:
        given = ("--vocab", "1000", "--ffn-ratio", "4", *PROFILES, "--out", str(folder / "fit"))
        assert run(monkeypatch, "fit", table, *given) == 0
    return folder / "fit"


def test_groups_pair_by_their_label_and_arms_are_shown_by_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = ("[/x]", "[looped]")
    found = []
    for turned in (False, True):
        table = write_arms(tmp_path / f"{turned}.csv", arms, turned)
        given = ("--by", "arm", "--reference", arms[0], "--new", arms[1], "--law", "chinchilla")
        rest = ("--columns", "group=run", "--flops", "1e19", "--bootstrap", "100", "--out", str(tmp_path / f"{turned}"))
        assert run(monkeypatch, "compare-laws", table, *given, *rest) == 0
        found.append(json.loads((tmp_path / f"{turned}" / "results" / "law_comparison.json").read_text()))
        shown = capsys.readouterr().out
        assert "[looped] - [/x]: interval by" in " ".join(shown.split())
    ends = [result["savings"][0]["bootstrap_interval"] for result in found]
    assert ends[0] == pytest.approx(ends[1], abs=1e-9)


def test_names_in_brackets_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    from depthscale.cli.fit_tables import plain_console, print_rows

    card = dict.fromkeys(("annealed", "vocab_size", "mlp_ratio", "rate_tuned", "embeddings_counted"))
    print_rows({**card, "tokenizer": "[/x]"}, ["[looped]: a note", ":smile:"], [])
    plain_console().print("[bold]")
    shown = capsys.readouterr().out
    for words in ("[/x]", "[looped]: a note", ":smile:", "[bold]"):
        assert words in shown


def test_the_names_of_a_law_stay_in_its_folder_and_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_table(tmp_path / "runs.csv")
    law = tmp_path / "law.toml"
    law.write_text(
        'name = "../../esc"\nfloor = "[/E]"\n[[terms]]\ncoefficient = "A"\n'
        'factors = [{column = "depth", exponent = "[b]"}]\n'
    )
    inner = tmp_path / "inner" / "here"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert run(monkeypatch, "fit", table, "--law", str(law), *PROFILES) == 0
    shown = capsys.readouterr().out
    assert "[/E]" in shown
    assert "[b]" in shown
    assert [path.name for path in (inner / "runs").iterdir()] == ["fit-..-..-esc"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inner", "law.toml", "runs.csv"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--seed", "-1", "--bootstrap", "100"), "-1 is not in the range"),
        (("--bootstrap", "1"), "bootstrap came as 1; expected at least 100 replicates, or 0"),
        (("--columns", "gruop=depth"), "did you mean 'group'"),
    ],
)
def test_options_that_are_none_are_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    words: str,
) -> None:
    table = write_table(tmp_path / "runs.csv")
    assert run(monkeypatch, "fit", table, *arguments, "--out", str(tmp_path / "fit")) == 2
    assert words in one_line(capsys.readouterr().err)
    assert not (tmp_path / "fit").exists()


def test_a_refused_fit_shows_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_table(tmp_path / "runs.csv", steps=True, width=512)
    arguments = (*PROFILES, "--tokenizer", "gpt2", "--keep-duplicates", "--out", str(tmp_path / "fit"))
    assert run(monkeypatch, "fit", table, *arguments) == 2
    shown = capsys.readouterr()
    assert "not certified" in one_line(shown.err)
    for words in ("tokenizer: gpt2", "24 rows in the middle", "24 of 48 rows", "column 'width' has one value"):
        assert words in shown.out
    assert not (tmp_path / "fit").exists()
    assert run(monkeypatch, "fit", table, *arguments, "--json") == 2
    assert capsys.readouterr().out == ""


def test_patterns_that_share_runs_are_no_two_arms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = {(arm, rounds): 2.5 + 0.1 / rounds for arm in ("pre", "deeploop") for rounds in (1, 2)}
    study = write_synthetic_study(tmp_path / "study", losses=losses, seeds=(0,), with_tuning=False)
    arguments = ("--reference", "*", "--new", "pre", "--out", str(tmp_path / "out"))
    assert run(monkeypatch, "compare-laws", str(study), *arguments) == 2
    assert "arms '*' and 'pre' share 2 runs, such as pre-r1-s0" in one_line(capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_a_refusal_of_one_arm_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = Path(write_arms(tmp_path / "runs.csv", ("old", "new")))
    lines = table.read_text().splitlines()
    table.write_text("\n".join([*lines, lines[-1]]) + "\n")
    arguments = ("--by", "arm", "--reference", "old", "--new", "new", "--law", "chinchilla")
    assert run(monkeypatch, "compare-laws", str(table), *arguments, "--out", str(tmp_path / "out")) == 2
    assert "of arm 'new', whose rows are counted by themselves, 1 rows repeat" in one_line(capsys.readouterr().err)


def test_allocate_warns_of_what_no_law_reads_and_draws_a_map_of_one_width(
    fitted: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Heads of 64 in 1,000 groups leave one width alone.
    given = ("--ffn-ratio", "0.5", "--mlp", "swiglu", "--kv-heads", "1000")
    assert run(monkeypatch, "allocate", str(fitted), "--flops", "1e21", "--replicates", "50", "--json", *given) == 0
    result = json.loads(capsys.readouterr().out)
    warnings = result["warnings"]
    assert len(warnings) == 3
    for note, words in zip(
        warnings, ("ratio of 0.5 came, the rows' own is 4", "swiglu", "1000 key-value"), strict=True
    ):
        assert words in note
    assert result["map"]["widths"] == [64_000.0]


def test_a_study_tells_allocate_its_mlp_and_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = {("pre", rounds): 3.0 for rounds in (1, 2, 4, 8)}
    seeds = tuple(range(12))
    changes = {}
    for rounds in (1, 2, 4, 8):
        for seed in seeds:
            width, tokens = (64, 128, 256, 512)[seed % 4], (1e9, 1e10, 1e11)[seed // 4]
            columns = {"width": np.array([width]), "depth": np.array([2.0 * rounds]), "tokens": np.array([tokens])}
            loss = float(DEPTH.predict(TRUTH, columns)[0] * np.exp(0.002 * np.sin(7 * seed + rounds)))
            changes["pre", rounds, seed] = {
                "model": {"hidden_size": width, "intermediate_size": 4 * width, "mlp": "swiglu"},
                "budget": {
                    "parameters_non_embedding": 32 * width**2,
                    "flops_per_token_training": 192 * rounds * width**2,
                },
                "tokens": tokens,
                "final": {"report": {"loss_nats": loss}},
            }
    study = write_synthetic_study(tmp_path / "study", losses=losses, seeds=seeds, training=changes, with_tuning=False)
    assert run(monkeypatch, "fit", str(study), *PROFILES, "--out", str(tmp_path / "fit")) == 0
    assert "differ by more than" not in capsys.readouterr().out
    given = ("--flops", "1e19", "--replicates", "50", "--ffn-ratio", "4", "--json")
    assert run(monkeypatch, "allocate", str(tmp_path / "fit"), *given) == 0
    result = json.loads(capsys.readouterr().out)
    template = result["asked"]["template"]
    # A ratio of 4 alone would be read as gelu.
    assert (template["context_length"], template["gated"], template["mlp_ratio"]) == (128, True, 4.0)
    assert result["warnings"] == []
    assert not any("assumed" in note and ("context" in note or "MLP" in note) for note in result["notes"])
