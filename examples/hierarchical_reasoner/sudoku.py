"""Sudoku of box size n (n = 3: 9 x 9 cells): solve, rate, generate, and tell puzzles apart up to symmetry.

A board is a tuple of (n * n)^2 digits, row by row, 0 for a blank.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Board = tuple[int, ...]


@dataclass(frozen=True)
class Geometry:
    """Which cells belong together.

    Attributes:
        side: digits, and cells of a row.
        units: rows, columns and boxes, in this order.
        peers: of each cell, the others of its three units.
    """

    box: int
    side: int
    units: tuple[tuple[int, ...], ...]
    units_of: tuple[tuple[int, ...], ...]
    peers: tuple[tuple[int, ...], ...]

    @property
    def num_cells(self) -> int:
        """Cells of the board."""
        return self.side**2


@functools.cache
def geometry(box: int) -> Geometry:
    """The board of box size ``box``."""
    side = box * box
    rows = [tuple(side * r + c for c in range(side)) for r in range(side)]
    columns = [tuple(side * r + c for r in range(side)) for c in range(side)]
    boxes = [
        tuple(side * (box * band + r) + box * stack + c for r in range(box) for c in range(box))
        for band in range(box)
        for stack in range(box)
    ]
    units = (*rows, *columns, *boxes)
    units_of = tuple(tuple(u for u, unit in enumerate(units) if cell in unit) for cell in range(side * side))
    peers = tuple(
        tuple(sorted({other for u in units_of[cell] for other in units[u]} - {cell})) for cell in range(side * side)
    )
    return Geometry(box, side, units, units_of, peers)


class Search:
    """Depth-first search with naked and hidden singles; counts its guesses.

    Attributes:
        num_guesses: values tried where no single was left; 0 for a puzzle that singles alone solve.
    """

    def __init__(self, board: Board, box: int, order: random.Random | None = None) -> None:
        self.geometry = geometry(box)
        self.board = board
        self.order = order
        self.num_guesses = 0

    def solutions(self) -> Iterator[Board]:
        """Every solution, lazily."""
        everything = (1 << self.geometry.side) - 1
        masks = [everything] * self.geometry.num_cells
        for cell, digit in enumerate(self.board):
            if digit and not self._place(masks, cell, 1 << (digit - 1)):
                return
        yield from self._from(masks)

    def _from(self, masks: list[int]) -> Iterator[Board]:
        if not self._hidden_singles(masks):
            return
        open_cells = [(mask.bit_count(), cell) for cell, mask in enumerate(masks) if mask & (mask - 1)]
        if not open_cells:
            yield tuple(mask.bit_length() for mask in masks)
            return
        _, cell = min(open_cells)
        choices = [1 << digit for digit in range(self.geometry.side) if masks[cell] >> digit & 1]
        if self.order:
            self.order.shuffle(choices)
        for bit in choices:
            self.num_guesses += 1
            copy = list(masks)
            if self._place(copy, cell, bit):
                yield from self._from(copy)

    def _place(self, masks: list[int], cell: int, bit: int) -> bool:
        """Put one digit and follow naked singles; False where a cell has no digit left."""
        if not masks[cell] & bit:
            return False
        masks[cell] = bit
        waiting = [cell]
        while waiting:
            at = waiting.pop()
            bit = masks[at]
            for peer in self.geometry.peers[at]:
                mask = masks[peer]
                if mask & bit:
                    mask ^= bit
                    if not mask:
                        return False
                    masks[peer] = mask
                    if not mask & (mask - 1):
                        waiting.append(peer)
        return True

    def _hidden_singles(self, masks: list[int]) -> bool:
        """Place digits that fit in one cell of a unit only, until there is none; False on contradiction."""
        everything = (1 << self.geometry.side) - 1
        again = True
        while again:
            again = False
            for unit in self.geometry.units:
                once = twice = 0
                for cell in unit:
                    mask = masks[cell]
                    twice |= once & mask
                    once |= mask
                if once != everything:
                    return False
                singles = once & ~twice
                for cell in unit:
                    mask = masks[cell]
                    bit = mask & singles
                    if bit and mask & (mask - 1):
                        if bit & (bit - 1) or not self._place(masks, cell, bit):
                            return False
                        again = True
        return True


def solve(puzzle: Board, box: int) -> Board | None:
    """The first solution, or None."""
    return next(Search(puzzle, box).solutions(), None)


def has_unique_solution(puzzle: Board, box: int) -> bool:
    """Whether there is exactly one solution."""
    found = Search(puzzle, box).solutions()
    return next(found, None) is not None and next(found, None) is None


def num_guesses(puzzle: Board, box: int) -> int:
    """Difficulty: guesses of the whole search tree, 0 where naked and hidden singles alone solve the puzzle."""
    search = Search(puzzle, box)
    for _ in search.solutions():
        pass
    return search.num_guesses


def random_solution(box: int, drawn: random.Random) -> Board:
    """A full board: the first box at random, the rest by a search in random order."""
    shape = geometry(box)
    board = [0] * shape.num_cells
    first_box = shape.units[2 * shape.side]
    for cell, digit in zip(first_box, drawn.sample(range(1, shape.side + 1), shape.side), strict=True):
        board[cell] = digit
    return next(Search(tuple(board), box, drawn).solutions())


def dig(solution: Board, box: int, most_blanks: int, drawn: random.Random) -> Board:
    """Blank cells in random order while the solution stays the only one, at most ``most_blanks`` of them."""
    puzzle = list(solution)
    cells = list(range(len(solution)))
    drawn.shuffle(cells)
    blanks = 0
    for cell in cells:
        if blanks == most_blanks:
            break
        digit, puzzle[cell] = puzzle[cell], 0
        if has_unique_solution(tuple(puzzle), box):
            blanks += 1
        else:
            puzzle[cell] = digit
    return tuple(puzzle)


def invariant(solution: Board, box: int) -> tuple[object, ...]:
    """What no symmetry of Sudoku changes: two boards with different invariants are no images of each other.

    For each pair of rows of a band the permutation that takes the digits of one row to those of the other has cycles;
    their lengths survive any renaming of digits and any order of columns. The multiset over pairs, over bands, and the
    same for columns, in either order, survives the whole group (renaming, orders of bands, stacks, rows and columns,
    transposition). Equal invariants do not make two boards images, so refusing equal ones errs on the safe side.
    """
    units = geometry(box).units
    side = box * box
    halves = [
        tuple(
            sorted(
                tuple(
                    sorted(
                        _cycle_lengths([solution[c] for c in lines[i]], [solution[c] for c in lines[j]])
                        for i in range(box * band, box * band + box)
                        for j in range(i + 1, box * band + box)
                    )
                )
                for band in range(box)
            )
        )
        for lines in (units[:side], units[side : 2 * side])
    ]
    return tuple(sorted(halves))


def _cycle_lengths(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    step = dict(zip(first, second, strict=True))
    lengths = []
    while step:
        length, digit = 0, next(iter(step))
        while digit in step:
            digit = step.pop(digit)
            length += 1
        lengths.append(length)
    return tuple(sorted(lengths))


def random_cell_order(box: int, drawn: random.Random) -> list[int]:
    """Cells in an order that keeps Sudoku's rules: bands, stacks and the lines within them reordered at random."""

    def lines() -> list[int]:
        groups = drawn.sample(range(box), box)
        return [box * group + line for group in groups for line in drawn.sample(range(box), box)]

    rows, columns = lines(), lines()
    return [box * box * row + column for row in rows for column in columns]


def symmetric_image(board: Board, box: int, drawn: random.Random) -> Board:
    """A random image: digits renamed, cells reordered, perhaps transposed."""
    side = box * box
    names = [0, *drawn.sample(range(1, side + 1), side)]
    order = random_cell_order(box, drawn)
    if drawn.random() < 0.5:
        order = [side * (cell % side) + cell // side for cell in order]
    return tuple(names[board[cell]] for cell in order)


def blanks_of(puzzle: Board) -> int:
    """Blank cells."""
    return Counter(puzzle)[0]
