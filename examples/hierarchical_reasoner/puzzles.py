"""Puzzles by level and split: made once from a seed, held-out boards apart from training's up to symmetry."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from depthscale.errors import DataError
from depthscale.runs.files import atomic_write_text

from .sudoku import Board, blanks_of, dig, invariant, num_guesses, random_solution

#: What each level asks.
LEVELS: Mapping[str, str] = MappingProxyType(
    {
        "few": "37 % of the cells blank, singles alone solve it",
        "some": "55 % of the cells blank, singles alone solve it",
        "singles": "no digit can be taken away, singles alone solve it",
        "guess": "no digit can be taken away, singles alone do not solve it",
    }
)
#: Blank cells of the levels that are not dug to the end, as a share of all.
BLANKS: Mapping[str, float] = MappingProxyType({"few": 0.37, "some": 0.55})
SPLITS = ("train", "tuning", "report")


@dataclass(frozen=True)
class Puzzle:
    """One puzzle with its only solution and its difficulty in guesses."""

    level: str
    puzzle: Board
    solution: Board
    guesses: int


Puzzles = dict[str, list[Puzzle]]


def levels_of(box: int) -> tuple[str, ...]:
    """Levels of a box size: a 4 x 4 puzzle needs no guess."""
    return tuple(level for level in LEVELS if box >= 3 or level != "guess")


def make_puzzles(box: int, per_level: Mapping[str, int], seed: int) -> Puzzles:
    """Draw the splits one after the other.

    No two puzzles share a solution up to symmetry, within a split or across, as told by :func:`invariant`; 4 x 4
    boards have only two solutions up to symmetry, so that there only the puzzles themselves differ.

    Args:
        per_level: puzzles of each level in each split.
    """
    drawn = random.Random(seed)
    seen: set[object] = set()
    made: Puzzles = {}
    for split in SPLITS:
        wanted = dict.fromkeys(levels_of(box), per_level[split])
        made[split] = []
        while any(wanted.values()):
            solution = random_solution(box, drawn)
            cells = len(solution)
            # Dug to the end unless a level with a share of blanks is drawn.
            aim = drawn.choice([level for level, number in wanted.items() if number])
            puzzle = dig(solution, box, round(BLANKS.get(aim, 1.0) * cells), drawn)
            guesses = num_guesses(puzzle, box)
            level = aim if aim in BLANKS else "guess" if guesses else "singles"
            key: object = invariant(solution, box) if box >= 3 else puzzle
            refused = key in seen or (level in BLANKS and (guesses or blanks_of(puzzle) < round(BLANKS[level] * cells)))
            if refused or not wanted.get(level):
                continue
            seen.add(key)
            wanted[level] -= 1
            made[split].append(Puzzle(level, puzzle, solution, guesses))
    return made


def load_or_make(path: Path, box: int, per_level: Mapping[str, int], seed: int) -> tuple[Puzzles, str]:
    """The puzzles of a file, made and written if it is not there, and the SHA-256 of what it holds.

    Raises:
        DataError: the file holds puzzles of other settings.
    """
    settings = {"box": box, "per_level": dict(per_level), "seed": seed}
    if not path.exists():
        made = make_puzzles(box, per_level, seed)
        splits = {split: [_row(puzzle) for puzzle in puzzles] for split, puzzles in made.items()}
        atomic_write_text(path, json.dumps({"settings": settings, "splits": splits}))
    text = path.read_text(encoding="utf-8")
    stored = json.loads(text)
    if stored["settings"] != settings:
        raise DataError(
            f"{path} holds puzzles of other settings, {stored['settings']}, asked were {settings}; choose another --out"
        )
    puzzles = {split: [_puzzle(row) for row in rows] for split, rows in stored["splits"].items()}
    return puzzles, hashlib.sha256(text.encode()).hexdigest()


def describe(puzzles: Puzzles) -> list[dict[str, Any]]:
    """Per split and level: number, blanks and guesses."""
    found = []
    for split, rows in puzzles.items():
        for level in dict.fromkeys(row.level for row in rows):
            at = [row for row in rows if row.level == level]
            blanks = [blanks_of(row.puzzle) for row in at]
            guesses = sorted(row.guesses for row in at)
            found.append(
                {
                    "split": split,
                    "level": level,
                    "number": len(at),
                    "mean_blanks": sum(blanks) / len(at),
                    "median_guesses": guesses[len(at) // 2],
                    "most_guesses": guesses[-1],
                }
            )
    return found


def as_tensors(puzzles: Sequence[Puzzle]) -> tuple[Tensor, Tensor]:
    """Puzzles and solutions, ``int64[number, cells]``; 0 is a blank."""
    given = np.array([row.puzzle for row in puzzles], dtype=np.int64)
    solved = np.array([row.solution for row in puzzles], dtype=np.int64)
    return torch.from_numpy(given), torch.from_numpy(solved)


def augmented(given: Tensor, solved: Tensor, side: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Digits of each board renamed at random, half of the boards transposed.

    Reordering rows and columns would add nothing: it reorders the model's answers alike.
    """
    names = torch.rand(len(given), side, generator=generator).argsort(dim=1) + 1
    names = torch.cat([torch.zeros(len(given), 1, dtype=names.dtype), names], dim=1)
    transposed = torch.arange(side * side).view(side, side).T.flatten()
    turned = torch.rand(len(given), 1, generator=generator) < 0.5
    order = torch.where(turned, transposed, torch.arange(side * side))
    return names.gather(1, given.gather(1, order)), names.gather(1, solved.gather(1, order))


def _row(puzzle: Puzzle) -> list[Any]:
    return [puzzle.level, "".join(map(str, puzzle.puzzle)), "".join(map(str, puzzle.solution)), puzzle.guesses]


def _puzzle(row: Sequence[Any]) -> Puzzle:
    level, puzzle, solution, guesses = row
    return Puzzle(level, tuple(map(int, puzzle)), tuple(map(int, solution)), guesses)
