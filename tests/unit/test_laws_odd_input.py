"""Odd tables, laws and results: one line that says how to mend it, or a note, and never a crash."""

from __future__ import annotations

import http.client
import json
import math
import urllib.error
from email.message import Message
from pathlib import Path

import numpy as np
import pytest
from synthetic_study import write_synthetic_study

from depthscale.errors import ConfigError, DataError, ResultError
from depthscale.laws import LAWS, AdditiveLaw, DataCard, Objective, Observations, ShapeTemplate, fit
from depthscale.laws import public_tables as public_tables_module
from depthscale.laws.allocation.buildable import Spending
from depthscale.laws.allocation.recommendation import Wish, recommend
from depthscale.laws.analysis import Question, analyze
from depthscale.laws.conventions import standard_conventions
from depthscale.laws.forms import make_forms
from depthscale.laws.observations import ordinal
from depthscale.laws.preparation import RowRule, prepare, rows_from_table
from depthscale.laws.public_tables import PUBLIC_TABLES, PublicTable, fetch
from depthscale.laws.run_directories import read_runs
from depthscale.laws.spending import closed_budget
from depthscale.laws.tables import read_columns
from depthscale.runs.results import result_path

CHINCHILLA, DEPTH = LAWS["chinchilla"], LAWS["width_depth_tokens"]
TRUTH = dict(zip(DEPTH.parameters, (1.75, 274.7, 6.72, 529.0, 0.945, 1.325, 0.299), strict=True))
QUICK = Question(num_replicates=30, validate=True)


def rows(truth: dict[str, float] = TRUTH, **changes: np.ndarray) -> Observations:
    grid = np.meshgrid(np.array([256.0, 512, 1024, 2048]), np.array([4.0, 8, 16, 32]), np.geomspace(1e9, 1e11, 3))
    columns = dict(zip(DEPTH.columns, (a.ravel() for a in grid), strict=True))
    noise = np.exp(0.002 * np.random.default_rng(0).standard_normal(48))
    return Observations({**columns, **changes}, DEPTH.predict(truth, columns) * noise)


def test_a_law_with_an_interaction_is_fitted() -> None:
    law = AdditiveLaw.from_toml(
        """
        name = "interaction"
        floor = "L_0"
        [[terms]]
        coefficient = "c_m"
        factors = [{column = "width", exponent = "alpha_m"}]
        [[terms]]
        coefficient = "c_l"
        factors = [{column = "depth", exponent = "alpha_l"}, {column = "width", exponent = "kappa"}]
        [[terms]]
        coefficient = "c_D"
        factors = [{column = "tokens", exponent = "alpha_D"}]
        """
    )
    truth = {"L_0": 1.7, "c_m": 200.0, "c_l": 60.0, "c_D": 500.0}
    truth |= {"alpha_m": 0.9, "alpha_l": 1.0, "kappa": 0.4, "alpha_D": 0.3}
    data = rows()
    data = data.with_loss(
        law.predict(truth, data.columns) * np.exp(2e-4 * np.random.default_rng(1).standard_normal(48))
    )
    assert closed_budget(law, data) is None
    found, result = analyze(law, prepare(data, law, RowRule(), DataCard(), None), DataCard(), QUICK)
    assert found.parameters["kappa"] == pytest.approx(0.4, abs=0.2)
    assert (result["frontier"], result["map"], result["budget"]) == ([], None, None)
    with pytest.raises(ConfigError, match="no budget over"):
        recommend(make_forms(found, num_replicates=30)[0], Wish(Spending(flops=1e20), ShapeTemplate(1000, 128)))


def test_a_certified_fit_with_a_negative_exponent_is_reported_without_a_frontier() -> None:
    truth = {**TRUTH, "alpha_l": -0.3, "c_l": 0.1}
    data = rows(truth)
    found, result = analyze(DEPTH, prepare(data, DEPTH, RowRule(), DataCard(), None), DataCard(), QUICK)
    assert found.parameters["alpha_l"] < 0
    assert result["frontier"] == []
    assert "loss does not fall in depth: no frontier is given" in result["warnings"]
    assert {test["kind"] for test in result["validation"]} == {"rows", "groups", "extrapolation"}
    forms, _ = make_forms(found, num_replicates=30)
    with pytest.raises(ConfigError, match="loss does not fall in depth"):
        recommend(forms, Wish(Spending(flops=1e20), ShapeTemplate(vocab_size=1000, context_length=128)))


def test_widths_that_are_no_widths_are_refused_before_they_are_counted() -> None:
    card = DataCard(vocab_size=1000, mlp_ratio=4.0)
    sizes = {"parameters": np.full(48, 1e8)}
    hole = np.where(np.arange(48) == 5, np.nan, rows().column("width"))
    with pytest.raises(DataError, match="column 'width' has nan in row 5"):
        prepare(rows(width=hole, **sizes), DEPTH, RowRule(), card, None)
    half = np.where(np.arange(48) == 5, 4.5, rows().column("depth"))
    with pytest.raises(DataError, match=r"column 'depth' has 4\.5 in row 5; expected whole numbers"):
        prepare(rows(depth=half, **sizes), DEPTH, RowRule(), card, None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('name = "a"\nfloor = 3\n[[terms]]\ncoefficient = "c"\nfactors = []', "law key 'floor' came as 3"),
        ('name = "a"\n[[terms]]\ncoefficient = 1\nfactors = []', "term key 'coefficient' came as 1"),
        (
            'name = "a"\n[[terms]]\ncoefficient = "c"\nfactors = [{column = 2, exponent = "e"}]',
            "factor key 'column' came as 2",
        ),
    ],
)
def test_laws_whose_names_are_no_text_are_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        AdditiveLaw.from_toml(text)


def test_numbers_out_of_range_are_refused() -> None:
    for value in (math.inf, math.nan, 0.0):
        with pytest.raises(ConfigError, match="Huber delta"):
            Objective("log_huber", value)
    for ratio in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match="MLP ratio"):
            DataCard(mlp_ratio=ratio)
        with pytest.raises(ConfigError, match="MLP ratio"):
            ShapeTemplate(1000, 128, mlp_ratio=ratio)
        with pytest.raises(ConfigError, match="aspect came as"):
            Wish(Spending(flops=1e20), ShapeTemplate(1000, 128), aspect=ratio)
    for budget in (1e41, math.inf, math.nan):
        with pytest.raises(ConfigError, match="positive number of at most 1e"):
            Spending(flops=budget)


def test_tables_that_are_no_tables_say_so(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    for text, words in (
        ("a;b\n1;2\n", "separated by semicolons; expected commas"),
        ("a\tb\n1\t2\n", "separated by tabs"),
        ("a,b,a\n1,2,3\n", "names a twice"),
    ):
        table.write_text(text)
        with pytest.raises(DataError, match=words):
            read_columns(table)
    pytest.importorskip("pyarrow")
    damaged = tmp_path / "runs.parquet"
    damaged.write_bytes(b"PAR1" + b"\0" * 40)
    with pytest.raises(DataError, match="no readable Parquet table"):
        read_columns(damaged)


def test_a_column_of_text_that_the_law_does_not_read_is_noted() -> None:
    table = {"parameters": [1, 2], "tokens": [3, 4], "loss": [2, 1], "width": ["wide", "wider"], "rate": [0.1, 0.2]}
    data, notes = rows_from_table(table, CHINCHILLA, None)
    assert set(data.columns) == {"parameters", "tokens", "rate"}
    assert notes == ["column 'width' holds more than numbers and was not read; the law does without it"]
    nothing = AdditiveLaw.from_dict({"name": "flat", "floor": "L", "terms": [{"coefficient": "c", "factors": []}]})
    with pytest.raises(ConfigError, match="'flat' reads no column"):
        rows_from_table(table, nothing, None)
    with pytest.raises(DataError, match="'wide' in row 0"):
        rows_from_table({**table, "depth": [1, 2]}, DEPTH, None)


def test_a_convention_that_the_rows_do_not_allow_is_a_line_of_the_audit() -> None:
    data = rows(parameters=np.full(48, 1e5), flops=np.full(48, 1e18))
    conventions = standard_conventions(data, data, vocab_size=50_000)
    assert isinstance(conventions["embeddings not counted"], DataError)
    card = DataCard(vocab_size=50_000, embeddings_counted=True)
    prepared = prepare(data.with_column("flops", 6e5 * data.column("tokens")), DEPTH, RowRule(), card, None)
    _, result = analyze(DEPTH, prepared, card, Question(num_replicates=0, validate=False))
    row = next(row for row in result["audit"]["rows"] if row["name"] == "embeddings not counted")
    assert row["parameters"] is None
    assert "fewer parameters than its embedding" in row["reasons"][0]


class Answer:
    """A response that ends as it is told to."""

    def __init__(self, content: bytes | Exception) -> None:
        self.content = content

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *details: object) -> None:
        pass

    def read(self, size: int) -> bytes:
        if isinstance(self.content, Exception):
            raise self.content
        return self.content[:size]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (http.client.IncompleteRead(b"a"), "IncompleteRead.*check the connection"),
        (http.client.BadStatusLine("x"), "BadStatusLine.*check the connection"),
        (b"a" * 10_000_001, "is larger than 10,000,000 bytes"),
        (urllib.error.HTTPError("u", 404, "Not Found", Message(), None), "404 Not Found; the table may have moved"),
    ],
    ids=["cut short", "no answer", "too large", "absent"],
)
def test_broken_downloads_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes | Exception, words: str
) -> None:
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: Answer(answer))
    one = PublicTable("a.csv", "a.csv", "0" * 64, "nobody")
    monkeypatch.setattr(public_tables_module, "PUBLIC_TABLES", {"chinchilla": (one,)})
    assert "chinchilla" in PUBLIC_TABLES
    with pytest.raises(DataError, match=words):
        fetch("chinchilla", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_runs_without_a_result_are_counted_and_damaged_ones_named(tmp_path: Path) -> None:
    losses = {("pre", rounds): 2.5 for rounds in range(1, 4)}
    study = write_synthetic_study(tmp_path / "study", losses=losses, seeds=(0, 1), with_tuning=False)
    runs = sorted((study / "runs").iterdir())
    result_path(runs[0], "training").unlink()
    found = read_runs([study])
    assert found.data.num_rows == 5
    assert "1 of 6 runs have no training result and are left out" in found.notes
    path = result_path(runs[1], "training")
    training = json.loads(path.read_text())
    del training["final"]["report"]
    path.write_text(json.dumps(training))
    with pytest.raises(ResultError, match=f"training result of .*{runs[1].name} lacks 'report'"):
        read_runs([study])


def test_messages_are_written_for_people() -> None:
    assert RowRule(below_rank=1).words == "losses strictly below the 1st largest"
    assert [ordinal(n) for n in (2, 3, 13, 22)] == ["2nd", "3rd", "13th", "22nd"]
    flat = Observations({"x": np.ones(3)}, np.full(3, 2.0))
    with pytest.raises(DataError, match="no loss lies below the 1st largest"):
        flat.below_loss_rank(1)
    with pytest.raises(DataError, match=r"^loss is -1\.0 in row 1"):
        Observations({"x": np.ones(2)}, np.array([1.0, -1.0]))
    with pytest.raises(DataError, match=r"'width' has -1\.0 in row 0"):
        fit(DEPTH, rows(width=np.full(48, -1.0)))
