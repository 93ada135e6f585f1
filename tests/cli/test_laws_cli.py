"""``fit``, ``allocate`` and ``fetch``: what they print and write, and how bad input ends."""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import one_line, run
from synthetic_study import write_synthetic_study

from depthscale.laws import LAWS

DEPTH = LAWS["width_depth_tokens"]
TRUTH = dict(zip(DEPTH.parameters, (1.75, 274.7, 6.72, 529.0, 0.945, 1.325, 0.299), strict=True))
DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
QUICK = ("--bootstrap", "100", "--no-validation")


def table_lines(tokens_unit: float = 1.0) -> list[str]:
    """48 rows of 16 architectures under the user's own column names."""
    width, depth, tokens = (
        a.ravel()
        for a in np.meshgrid(np.array([256.0, 512, 1024, 2048]), np.array([4.0, 8, 16, 32]), np.geomspace(1e9, 1e11, 3))
    )
    columns = {"width": width, "depth": depth, "tokens": tokens}
    noise = np.exp(0.002 * np.random.default_rng(0).standard_normal(len(width)))
    losses = DEPTH.predict(TRUTH, columns) * noise
    lines = ["d_model,n_layers,D,N,C,val_loss"]
    for m, l, d, loss in zip(width, depth, tokens, losses, strict=True):
        size = 12 * m**2 * l
        lines.append(f"{m:.0f},{l:.0f},{d / tokens_unit:.9g},{size:.0f},{6 * size * d:.9g},{loss:.6f}")
    return lines


COLUMNS = "width=d_model,depth=n_layers,tokens=D,loss=val_loss"


def write_table(path: Path, lines: list[str]) -> str:
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("laws")
    table = write_table(folder / "runs.csv", table_lines())
    with pytest.MonkeyPatch.context() as monkeypatch:
        arguments = ("--columns", COLUMNS, "--vocab", "1000", "--annealed", "--context", "256", "--bootstrap", "100")
        assert run(monkeypatch, "fit", table, *arguments, "--out", str(folder / "fit")) == 0
    return folder / "fit"


def test_fit_recovers_the_truth_and_writes_everything(fitted: Path) -> None:
    result = json.loads((fitted / "results" / "fit.json").read_text())
    assert result["kind"] == "fit"
    assert result["interval_kind"] == "cluster bootstrap over 16 groups"
    for row in result["parameters"]:
        low, high = row["interval"]
        assert low <= row["estimate"] <= high
        # Noise of 0.2 % on a wide grid: five bootstrap errors hold the truth.
        assert abs(row["estimate"] - TRUTH[row["name"]]) < 5 * row["bootstrap_sd"]
    assert result["regime"]["num_depths"] == 4
    assert result["regime"]["verdict"] == "not identifiable"
    assert {test["kind"] for test in result["validation"]} == {"rows", "groups", "extrapolation"}
    assert result["card"]["annealed"] is True
    assert "rate_tuned" in result["card"]["unanswered"]
    assert {curve["verdict"] for curve in result["isoflop"]} == {"interior optimum"}
    for name in ("term-depth", "profile-alpha_l", "isoflop", "allocation-map", "frontier-width"):
        assert (fitted / "figures" / f"{name}.svg").exists()
        assert (fitted / "figures" / f"{name}.csv").exists()


def test_fit_says_what_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_table(tmp_path / "runs.csv", table_lines())
    arguments = ("--columns", COLUMNS, "--below-loss-rank", "5", "--depth-offset", "2", *QUICK)
    assert run(monkeypatch, "fit", table, *arguments, "--out", str(tmp_path / "fit")) == 0
    shown = capsys.readouterr().out
    for words in (
        "tokenizer: unknown",
        "43 of 48 rows",
        "depth counts layers less 2",
        "certified: 24 of 24",
        "alpha_l",
    ):
        assert words in shown
    assert "Held out" not in shown


def test_fit_as_json_with_huber_and_derived_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_table(tmp_path / "runs.csv", table_lines())
    arguments = ("--law", "chinchilla", "--columns", "parameters=N,flops=C,loss=val_loss", "--objective", "huber")
    assert run(monkeypatch, "fit", table, *arguments, *QUICK, "--out", str(tmp_path / "fit"), "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["fit"]["objective"] == {"kind": "log_huber", "delta": 1e-3}
    assert "tokens were derived as FLOPs / (6 * parameters)" in result["notes"]
    assert result["regime"] is None


def test_a_law_of_ones_own_on_a_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = {(arm, rounds): 2.5 + 1.2 * np.exp(-0.5 * rounds) for arm in ("pre", "deeploop") for rounds in range(1, 9)}
    study = write_synthetic_study(
        tmp_path / "study", losses=losses, seeds=(0, 1, 2), outcomes={("pre", 3, 1): "diverged"}, with_tuning=False
    )
    law = tmp_path / "law.toml"
    law.write_text(
        'name = "by_rounds"\nfloor = "L_inf"\n[[terms]]\ncoefficient = "Z"\n'
        'factors = [{column = "rounds", exponent = "z", kind = "decay"}]\n'
    )
    arguments = ("--law", str(law), *QUICK, "--out", str(tmp_path / "fit"))
    assert run(monkeypatch, "fit", str(study), *arguments, "--arm", "pre") == 0
    shown = capsys.readouterr().out
    assert "1 of 24 runs are stuck or diverged" in shown
    assert "23 of 23 rows" in shown
    result = json.loads((tmp_path / "fit" / "results" / "fit.json").read_text())
    assert result["card"]["tokenizer"] is not None
    # Seeds differ by 0.03 nats: z = 0.5 is recovered to a few tenths.
    assert result["fit"]["parameters"]["z"] == pytest.approx(0.5, abs=0.3)
    assert run(monkeypatch, "fit", str(study), *arguments, "--arm", "deep*") == 0
    assert "24 of 24 rows" in capsys.readouterr().out
    assert run(monkeypatch, "fit", str(study), *arguments, "--arm", "*") == 0
    assert "rows mix deeploop (post), unscaled (pre)" in capsys.readouterr().out
    assert run(monkeypatch, "fit", str(study), *arguments, "--arm", "per") == 2
    assert "no trained run of arm 'per'" in one_line(capsys.readouterr().err)


def test_allocate_builds_whole_shapes(
    fitted: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--flops", "1e20", "--kv-heads", "4", "--replicates", "60", "--json")
    assert run(monkeypatch, "allocate", str(fitted), *arguments) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["best"]["width"] % 256 == 0  # heads of 64 in groups of 4
    assert result["best"]["key_value_heads"] == 4
    assert result["best"]["flops"] == pytest.approx(1e20)
    assert result["title"] == "Allocation for flops = 1e+20"


def test_allocate_far_away_says_extrapolation_and_what_would_help(
    fitted: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--flops", "1e25", "--unique-tokens", "1e12", "--replicates", "60")
    assert run(monkeypatch, "allocate", str(fitted), *arguments) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("EXTRAPOLATION")
    assert "Most useful next run: width" in shown.splitlines()[0]
    assert "unique tokens bind" in shown
    assert "vocabulary" not in shown.split("assumed")[1]  # the fit knows it
    result = json.loads((fitted / "results" / "allocation.json").read_text())
    assert result["best"]["tokens"] <= 1e12
    assert "Most useful next run" in (fitted / "report.html").read_text()


def with_cell(lines: list[str], row: int, column: int, text: str) -> list[str]:
    cells = lines[row + 1].split(",")
    cells[column] = text
    return [*lines[: row + 1], ",".join(cells), *lines[row + 2 :]]


@pytest.mark.parametrize(
    ("lines", "arguments", "words"),
    [
        (table_lines(), ("--law", "width_depth_token"), "did you mean 'width_depth_tokens'"),
        (table_lines(), ("--law", "absent.toml"), "cannot read law absent.toml"),
        (table_lines(), ("--objective", "hubre"), "did you mean 'huber'"),
        (table_lines(), ("--columns", "width=d_model,loss=val_loss"), "reads depth, tokens, which the table lacks"),
        (table_lines(), ("--columns", COLUMNS.replace("d_model", "d_modle")), "did you mean 'd_model'"),
        (with_cell(table_lines(), 7, 5, "-2.5"), (), "loss is"),
        (with_cell(table_lines(), 7, 5, "0"), (), "row 7"),
        (with_cell(table_lines(), 7, 5, "n/a"), (), "'n/a' in row 7"),
        ([*table_lines(), table_lines()[3]], (), "rows 48); delete them"),
        (table_lines(tokens_unit=1e6), (), "give units, such as --columns tokens=COLUMN:1e6"),
        (
            table_lines(tokens_unit=1e6),
            ("--columns", COLUMNS + ",parameters=N,flops=C"),
            "about 1e6 times 6 * parameters * tokens",
        ),
        (table_lines(), ("--vocab", "1000", "--ffn-ratio", "0"), "MLP ratio came as 0.0"),
        (table_lines(), ("--objective", "huber", "--delta", "inf"), "Huber delta came as inf"),
        (table_lines(), ("--columns", COLUMNS + ",group=n_layers"), "--independent-rows"),
        ([line.replace(",", ";") for line in table_lines()], (), "separated by semicolons"),
        (table_lines(), ("--below-loss-rank", "5", "--drop-highest-losses", "3"), "expected one rule"),
        (table_lines(), ("--depth-offset", "4"), "smaller --depth-offset"),
        (table_lines()[:5], (), "not certified"),
    ],
)
def test_bad_tables_are_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lines: list[str],
    arguments: tuple[str, ...],
    words: str,
) -> None:
    table = write_table(tmp_path / "runs.csv", lines)
    given = arguments if "--columns" in arguments else ("--columns", COLUMNS, *arguments)
    assert run(monkeypatch, "fit", table, *given, *QUICK, "--out", str(tmp_path / "fit")) == 2
    assert words in one_line(capsys.readouterr().err)
    assert not (tmp_path / "fit").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "0 budgets came"),
        (("--flops", "1e20", "--params", "1e9"), "2 budgets came (flops, parameters)"),
        (("--flops", "-1"), "expected a positive number"),
        (("--flops", "1e20", "--rounds", "2"), "does not read rounds"),
        (("--flops", "1e20", "--rounds", "a"), "expected whole numbers"),
        (("--flops", "1e20", "--mlp", "swigul"), "did you mean 'swiglu'"),
        (("--flops", "1e3"), "expected a larger budget"),
        (("--flops", "1e50"), "positive number of at most 1e+40"),
        (("--flops", "1e20", "--aspect", "0"), "aspect came as 0.0"),
        (("--flops", "1e20", "--ffn-ratio", "0"), "MLP ratio came as 0.0"),
        (("--flops", "1e20", "--unique-tokens", "-1"), "unique tokens came as -1.0"),
    ],
)
def test_bad_budgets_are_one_line(
    fitted: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    words: str,
) -> None:
    assert run(monkeypatch, "allocate", str(fitted), *arguments, "--replicates", "50") == 2
    assert words in one_line(capsys.readouterr().err)


def damaged_copy(fitted: Path, folder: Path, change: Callable[[dict[str, Any]], object] | None) -> Path:
    """The fit's directory once more, with its result changed."""
    shutil.copytree(fitted, folder, ignore=shutil.ignore_patterns("figures", "report.html", "allocation.json"))
    if change is not None:
        path = folder / "results" / "fit.json"
        result = json.loads(path.read_text())
        change(result)
        path.write_text(json.dumps(result))
    return folder


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r["fit"]["certificate"].update(holds=False), "has no certificate that holds"),
        (lambda r: r["fit"]["parameters"].update(alpha_l=1.2), "the stored alpha_l = 1.2 is not the minimum"),
        (lambda r: r["fit"].update(data_sha256="0"), "the stored rows are not those of the stored fit"),
        (lambda r: r["fit"].update(objective={"kind": 3}), "names no objective"),
        (lambda r: r["fit"].pop("parameters"), "no stored fit"),
        (lambda r: r.update(fit=3), "is damaged"),
        (lambda r: r.pop("card"), "is damaged (KeyError('card'))"),
        (lambda r: r.update(validation=3), "is damaged"),
    ],
    ids=["certificate", "parameters", "digest", "objective", "missing", "number", "card", "validation"],
)
def test_a_damaged_fit_is_one_line(
    fitted: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[dict[str, Any]], object],
    words: str,
) -> None:
    folder = damaged_copy(fitted, tmp_path / "fit", change)
    assert run(monkeypatch, "allocate", str(folder), "--flops", "1e20", "--replicates", "50") == 2
    assert words in one_line(capsys.readouterr().err)


def test_rows_that_were_not_fitted_are_one_line(
    fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = damaged_copy(fitted, tmp_path / "fit", None)
    rows = folder / "rows.csv"
    lines = rows.read_text().splitlines()
    for text, words in (
        ("\n".join(lines[:-1]), "are not those of the stored fit"),
        ("\n".join([*lines[:-1], lines[-1].rpartition(",")[0] + ",0"]), "are not those of the stored fit"),
        ("\n".join([*lines[:-1], lines[-1].replace(",", ",x", 1)]), "is damaged"),
        ("\n".join(line.partition(",")[2] for line in lines), "are not those of the stored fit"),
        ("", "holds no rows"),
    ):
        rows.write_text(text)
        assert run(monkeypatch, "allocate", str(folder), "--flops", "1e20", "--replicates", "50") == 2
        assert words in one_line(capsys.readouterr().err)
    rows.unlink()
    assert run(monkeypatch, "allocate", str(folder), "--flops", "1e20", "--replicates", "50") == 2
    assert "no table at" in one_line(capsys.readouterr().err)


def test_allocate_builds_the_mlp_of_the_rows_and_says_how_its_intervals_fared(
    fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--flops", "1e20", "--replicates", "50")
    assert run(monkeypatch, "allocate", str(fitted), *arguments) == 0
    shown = capsys.readouterr().out
    assert "MLP ratio 2.67, a swiglu MLP" in shown
    assert "when the rows' largest budgets were held out" in shown
    folder = damaged_copy(fitted, tmp_path / "fit", lambda r: r["card"].update(mlp_ratio=4.0))
    assert run(monkeypatch, "allocate", str(folder), *arguments, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["best"]["intermediate_size"] == 4 * result["best"]["width"]
    assert result["asked"]["template"]["gated"] is False
    assert not any("MLP ratio" in note for note in result["notes"])


def test_allocate_without_a_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "allocate", str(tmp_path), "--flops", "1e20") == 2
    assert "no fit result" in one_line(capsys.readouterr().err)


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a folder without a word."""

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The public addresses, served from a folder on this machine."""
    folder = tmp_path / "public"
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{serving.server_address[1]}"
        monkeypatch.setattr("depthscale.laws.public_tables.BASE_ADDRESS", address)
        yield folder
        serving.shutdown()


def publish(folder: Path, change: bytes = b"") -> None:
    from depthscale.laws.public_tables import PUBLIC_TABLES

    for table in PUBLIC_TABLES["chinchilla"]:
        source = DATA / table.file
        if not source.is_file():
            pytest.skip(f"{source} is absent: the public tables lie beside the checkout in shared/data")
        (folder / table.address).parent.mkdir(parents=True, exist_ok=True)
        (folder / table.address).write_bytes(source.read_bytes() + change)


def test_fetch_downloads_and_checks(
    server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(server)
    assert run(monkeypatch, "fetch", "chinchilla", "--out", str(tmp_path / "data")) == 0
    paths = [Path(line) for line in capsys.readouterr().out.split()]
    assert [path.name for path in paths] == ["chinchilla_depth.csv", "chinchilla_svg.csv"]
    for path in paths:
        assert path.read_bytes() == (DATA / path.name).read_bytes()


def test_fetch_refuses_changed_bytes(
    server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(server, change=b"\n")
    assert run(monkeypatch, "fetch", "chinchilla", "--out", str(tmp_path / "data")) == 2
    assert "the table was changed" in one_line(capsys.readouterr().err)
    assert not (tmp_path / "data").exists()


def test_fetch_offline_and_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A port on which nothing listens.
    monkeypatch.setattr("depthscale.laws.public_tables.BASE_ADDRESS", "http://127.0.0.1:9")
    assert run(monkeypatch, "fetch", "chinchilla", "--out", str(tmp_path / "data")) == 2
    assert "check the connection" in one_line(capsys.readouterr().err)
    assert run(monkeypatch, "fetch", "chinchila", "--out", str(tmp_path / "data")) == 2
    assert "did you mean 'chinchilla'" in one_line(capsys.readouterr().err)
