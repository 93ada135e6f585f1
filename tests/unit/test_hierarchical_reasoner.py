"""The example of a hierarchical reasoner: its Sudoku, its visits, its scales, and its table on 4 x 4 boards."""

import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from hierarchical_reasoner import cells, model, puzzles, sudoku, table, training
from hierarchical_reasoner.__main__ import main
from hierarchical_reasoner.page import write_table_page
from test_reports import Page

from depthscale.errors import ConfigError, DataError, PlanError, ResultError
from depthscale.residual import GroupScales, deeploop, loop_matched

SMALL = model.Shape(box=2, width=16, num_heads=2, fast_visits=3, num_cycles=2)


def board(text: str) -> sudoku.Board:
    return tuple(0 if character == "." else int(character) for character in text)


# Source: https://en.wikipedia.org/wiki/Sudoku, the article's first puzzle and its solution.
EASY = board("53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79")
EASY_SOLVED = board("534678912672195348198342567859761423426853791713924856961537284287419635345286179")
# Source: Arto Inkala's puzzle of 2012, published as the hardest.
HARD = board("8..........36......7..9.2...5...7.......457.....1...3...1....68..85...1..9....4..")


def test_the_search_finds_every_board_of_four_by_four() -> None:
    found = list(sudoku.Search((0,) * 16, 2).solutions())
    # Source: https://oeis.org/A107739, completed Sudoku grids of box size 2.
    assert len(found) == len(set(found)) == 288
    units = sudoku.geometry(2).units
    assert all({solution[cell] for cell in unit} == {1, 2, 3, 4} for solution in found for unit in units)


def test_known_puzzles_are_solved_and_rated() -> None:
    assert sudoku.solve(EASY, 3) == EASY_SOLVED
    assert sudoku.num_guesses(EASY, 3) == 0
    assert sudoku.has_unique_solution(HARD, 3)
    assert sudoku.num_guesses(HARD, 3) > 10
    assert not sudoku.has_unique_solution((0,) * 81, 3)
    # Two equal digits in the first row.
    assert sudoku.solve((5, 5, *EASY[2:]), 3) is None


def test_symmetric_images_keep_the_invariant_and_uniqueness() -> None:
    drawn = random.Random(0)
    solutions = [sudoku.random_solution(3, drawn) for _ in range(30)]
    for solution in solutions:
        image = sudoku.symmetric_image(solution, 3, drawn)
        assert image != solution
        assert all(len({image[c] for c in unit}) == 9 for unit in sudoku.geometry(3).units)
        assert sudoku.invariant(image, 3) == sudoku.invariant(solution, 3)
    assert len({sudoku.invariant(solution, 3) for solution in solutions}) == 30
    assert sudoku.has_unique_solution(sudoku.symmetric_image(EASY, 3, drawn), 3)


def test_puzzles_are_unique_rated_and_apart_across_splits(tmp_path: Path) -> None:
    made, sha256 = puzzles.load_or_make(tmp_path / "p.json", 3, {"train": 4, "tuning": 2, "report": 2}, seed=1)
    again, same = puzzles.load_or_make(tmp_path / "p.json", 3, {"train": 4, "tuning": 2, "report": 2}, seed=1)
    assert (again, same) == (made, sha256)
    rows = [row for split in made.values() for row in split]
    assert len(rows) == 4 * 8
    assert len({sudoku.invariant(row.solution, 3) for row in rows}) == len(rows)
    for row in rows:
        assert list(sudoku.Search(row.puzzle, 3).solutions()) == [row.solution]
        assert (row.guesses > 0) == (row.level == "guess")
        if row.level in puzzles.BLANKS:
            assert sudoku.blanks_of(row.puzzle) == round(puzzles.BLANKS[row.level] * 81)
    with pytest.raises(DataError, match="other settings"):
        puzzles.load_or_make(tmp_path / "p.json", 3, {"train": 4, "tuning": 2, "report": 2}, seed=2)


@pytest.mark.parametrize(("slow", "fast", "visits", "cycles"), [(1, 1, 4, 2), (2, 1, 3, 1), (1, 2, 5, 3)])
def test_traced_visits_are_the_papers_count(slow: int, fast: int, visits: int, cycles: int) -> None:
    shape = model.Shape(2, 16, 2, fast_blocks=fast, slow_blocks=slow, fast_visits=visits, num_cycles=cycles)
    _, counts, scales = model.build(shape, "deeploop", seed=0)
    # Source: arXiv 2607.13491, M_g = 2 (K_H + C_L K_L) under one-step truncation.
    assert counts.num_gradient_sublayer_visits == 2 * (slow + visits * fast)
    assert counts.unrolled_depth == cycles * (slow + visits * fast)
    # alpha = (2N)^(1/2) with N = M_g / 2.
    assert scales.groups[0].skip == pytest.approx(counts.num_gradient_sublayer_visits**0.5)


def test_scales_reach_each_module_and_gains_only_the_matrices_they_name() -> None:
    plain = model.build(SMALL, "unscaled", seed=3)[0]
    found, counts, _ = model.build(SMALL, "loop_matched", seed=3)
    expected = dict(zip((g.name for g in counts.groups), loop_matched(counts).groups, strict=True))
    assert expected["fast"].skip > expected["slow"].skip
    for name in model.MODULES:
        assert getattr(found, name)[0][0].skip == expected[name].skip
    gained = {weight for name in model.MODULES for weight in model.gained_weights(found, name)}
    assert len(gained) == 8
    for (name, before), (_, after) in zip(plain.named_parameters(), found.named_parameters(), strict=True):
        gain = expected[name.partition(".")[0]].gain if name in gained else 1.0
        torch.testing.assert_close(after, gain * before)
    with pytest.raises(PlanError, match="post-norm"):
        model.build(SMALL, "inverse_rounds", seed=0)


def test_gradient_is_that_of_the_last_cycle_from_given_states() -> None:
    reasoner = model.build(SMALL, "deeploop", seed=0)[0]
    given = torch.randint(0, 5, (3, 16), generator=torch.Generator().manual_seed(0))
    reasoner(given).square().sum().backward()
    truncated = {name: p.grad.clone() for name, p in reasoner.named_parameters() if p.grad is not None}
    reasoner.zero_grad()
    # By hand: states after the first cycle are constants, then one cycle.
    normed = model._norm(reasoner.digits(given))
    fast, slow = (model._norm(state).expand_as(normed) for state in reasoner.initial_states)
    for cycle in range(2):
        for _ in range(3):
            fast = reasoner.fast[0](model._norm(fast + slow + normed))
        slow = reasoner.slow[0](model._norm(slow + fast))
        if cycle == 0:
            fast, slow = fast.detach(), slow.detach()
    reasoner.head(slow).square().sum().backward()
    assert truncated
    for name, parameter in reasoner.named_parameters():
        if name in truncated:
            torch.testing.assert_close(parameter.grad, truncated[name])


def test_reordered_cells_reorder_the_answers() -> None:
    reasoner = model.Reasoner(model.Shape(3, 16, 2), dict.fromkeys(model.MODULES, GroupScales()))
    with torch.no_grad():
        for block in (*reasoner.fast, *reasoner.slow):
            block[0].sublayer.relation_bias.normal_()
    given = torch.tensor([EASY])
    order = sudoku.random_cell_order(3, random.Random(5))
    assert sorted(order) == list(range(81))
    answers = reasoner(given)
    torch.testing.assert_close(reasoner(given[:, order]), answers[:, order], rtol=1e-4, atol=1e-4)
    # An order that breaks the rows changes them, so that the comparison above can fail.
    assert not torch.allclose(reasoner(given.roll(1, 1)), answers.roll(1, 1), rtol=1e-2, atol=1e-2)


def test_augmented_boards_are_still_sudoku_and_blank_alike() -> None:
    given, solved = torch.tensor([EASY] * 8), torch.tensor([EASY_SOLVED] * 8)
    boards, answers = puzzles.augmented(given, solved, 9, torch.Generator().manual_seed(0))
    units = torch.tensor(sudoku.geometry(3).units)
    assert (answers[:, units].sort(dim=-1).values == torch.arange(1, 10)).all()
    assert (boards[boards > 0] == answers[boards > 0]).all()
    assert ((boards == 0).sum(dim=1) == 51).all()
    assert len({tuple(row.tolist()) for row in (boards == 0)}) == 2, "as given, and transposed"


def settings(**changes: Any) -> cells.Settings:
    base = cells.Settings(
        shape=SMALL, steps=12, batch=8, rules=("unscaled", "deeploop"), seeds=(1, 2), rates=(3e-3,), tuning_seed=101,
        tuning_share=0.5, max_extensions=1, train_per_level=12, tuning_per_level=4, report_per_level=6, puzzle_seed=0,
    )  # fmt: skip
    return replace(base, **changes)


def small_puzzles() -> puzzles.Puzzles:
    return puzzles.make_puzzles(2, {"train": 12, "tuning": 4, "report": 6}, seed=0)


def test_cells_are_kept_and_the_table_pairs_them(tmp_path: Path) -> None:
    asked, boards, said = settings(), small_puzzles(), []
    cells.write_settings(tmp_path, asked)

    def stop_at_third(line: str) -> None:
        said.append(line)
        if len(said) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cells.run_cells(tmp_path, asked, boards, stop_at_third)
    kept = {path.name for path in (tmp_path / "cells").iterdir()}
    assert len(kept) == 2
    said.clear()
    tuning, made = cells.run_cells(tmp_path, asked, boards, said.append)
    assert len(tuning) == 2
    assert len(made) == 4
    assert len(said) == 2 * (6 - len(kept))
    said.clear()
    assert cells.run_cells(tmp_path, asked, boards, said.append) == (tuning, made)
    assert said == []
    with pytest.raises(ResultError, match="other settings"):
        cells.write_settings(tmp_path, settings(steps=13))

    found = table.write_table(tmp_path, asked, tuning, made, puzzles.describe(boards), "0" * 64)
    assert found["num_gradient_sublayer_visits"] == 2 * (1 + 3)
    stored = json.loads((tmp_path / "results" / "hierarchical_reasoner.json").read_text())
    by_seed = [arm["levels"]["few"]["cell_accuracy"]["by_seed"] for arm in stored["arms"]]
    pair = next(p for p in stored["pairs"] if (p["level"], p["measure"]) == ("few", "cell_accuracy"))
    assert pair["mean"] == pytest.approx(sum(b - a for a, b in zip(*by_seed, strict=True)) / 2)
    assert all("not decided" in sentence for sentence in stored["verdict"]), "two pairs decide nothing"
    page = Page(write_table_page(tmp_path, found).read_text())
    assert "deeploop" in " ".join(page.words)


def test_rates_are_extended_at_an_edge_and_diverged_ones_never_chosen(tmp_path: Path) -> None:
    def cell(lr: float, loss: float, outcome: str = "finished") -> dict[str, Any]:
        return {"outcome": outcome, "levels": {"few": {"loss_nats": loss}}, "training": {"lr": lr}}

    assert cells.best_rate([cell(1e-3, 1.0), cell(3e-3, 0.5), cell(1e-2, 0.1, "diverged")]) == 3e-3
    asked = settings(rates=(1e-3, 2e-3), rules=("unscaled",), seeds=(1,), steps=4)
    tuning, _ = cells.run_cells(tmp_path, asked, small_puzzles(), lambda _: None)
    assert len(tuning) == 3, "either of two rates is at the edge"
    with pytest.raises(ConfigError, match="tuning seed"):
        settings(tuning_seed=1)


def test_it_learns_four_by_four() -> None:
    boards = puzzles.make_puzzles(2, {"train": 60, "tuning": 1, "report": 30}, seed=0)
    shape = model.Shape(2, 32, 4, fast_visits=2, num_cycles=2)
    found = training.train_cell(shape, "unscaled", training.Training(150, 16, 5e-3, 0, 12), boards, "report")
    # Chance is one in four.
    assert found["levels"]["few"]["cell_accuracy"] > 0.6
    assert found["curve"][-1][1] < found["curve"][0][1]


def test_scales_of_deeploop_are_of_gradient_visits_only() -> None:
    one, many = (replace(SMALL, num_cycles=cycles).counts() for cycles in (1, 4))
    assert deeploop(one).groups == deeploop(many).groups


def test_a_cell_without_a_finite_loss_is_not_the_best() -> None:
    def cell(lr: float, loss: float | None) -> dict[str, Any]:
        return {"outcome": "finished", "levels": {"few": {"loss_nats": loss}}, "training": {"lr": lr}}

    assert cells.best_rate([cell(1.0, None), cell(0.1, 1.2)]) == 0.1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": "1,a"}, "--seeds came as '1,a'"),
        ({"rates": "fast"}, "--rates came as 'fast'"),
        ({"rates": "0"}, "expected positive numbers"),
        ({"rates": "nan"}, "expected positive numbers"),
        ({"seeds": "-1"}, "expected whole numbers of 0 or more"),
        ({"width": 30}, "expected a multiple of the 4 heads"),
    ],
)
def test_bad_settings_are_one_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    sizes: dict[str, Any] = {"box": 2, "steps": 1, "batch": 1, "width": 8, "fast_visits": 1, "cycles": 1}
    numbers: dict[str, Any] = {"rules": "unscaled", "seeds": "1", "rates": "1e-3", "boards": 1, "held_out": 1}
    with pytest.raises((ConfigError, PlanError), match=message):
        main(tmp_path, **{**sizes, **numbers, **change})
    assert not list(tmp_path.iterdir())
