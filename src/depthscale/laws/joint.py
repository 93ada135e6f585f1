"""One law fitted to several arms at once, so that parameters can be shared between them and tested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depthscale.errors import ConfigError, DataError
from depthscale.laws.bound import BoundLaw
from depthscale.laws.law import AdditiveLaw
from depthscale.laws.observations import Observations

Array = NDArray[np.float64]
Values = NDArray[Any]

ARM_COLUMN = "arm"


@dataclass(frozen=True)
class JointLaw:
    """The same form per arm with parameters of its own, named ``alpha_l[looped]``.

    Attributes:
        base: the form.
        arms: names; rows carry their arm's number in the column ``arm``, in ascending order.
    """

    base: AdditiveLaw
    arms: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.arms) < 2 or len(set(self.arms)) != len(self.arms):
            raise ConfigError(f"arms came as {self.arms!r}; expected at least two different names")

    @property
    def name(self) -> str:
        """How reports name it."""
        return f"{self.base.name}[{', '.join(self.arms)}]"

    @property
    def parameters(self) -> tuple[str, ...]:
        """Arm by arm."""
        return tuple(arm_parameter(name, arm) for arm in self.arms for name in self.base.parameters)

    @property
    def columns(self) -> tuple[str, ...]:
        """The form's columns and the arm's number."""
        return (*self.base.columns, ARM_COLUMN)

    def pairs(self, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
        """Constraints that make ``names`` common to all arms."""
        return tuple(
            (arm_parameter(name, self.arms[0]), arm_parameter(name, arm)) for name in names for arm in self.arms[1:]
        )

    def bind(self, columns: Mapping[str, Array], loss: Array, loss_scale: float | None = None) -> BoundLaw:
        """Every arm's law on its own rows."""
        if ARM_COLUMN not in columns:
            raise DataError(f"rows came without the column '{ARM_COLUMN}'; make them with join_arms")
        codes = columns[ARM_COLUMN]
        if (np.diff(codes) < 0).any() or set(np.unique(codes)) != set(range(len(self.arms))):
            raise DataError(f"column '{ARM_COLUMN}' must ascend over 0 to {len(self.arms) - 1}; use join_arms")
        scale = float(np.median(loss)) if loss_scale is None else loss_scale
        bound = []
        for number in range(len(self.arms)):
            rows = codes == number
            part = {name: columns[name][rows] for name in self.base.columns}
            bound.append(self.base.bind(part, loss[rows], scale))
        return BoundLaw.joined(bound)


def arm_parameter(name: str, arm: str) -> str:
    """The joint law's name for one arm's parameter.

    Example:
        >>> arm_parameter("alpha_l", "looped")
        'alpha_l[looped]'
    """
    return f"{name}[{arm}]"


def of_arm(parameters: Mapping[str, Values], base: AdditiveLaw, arm: str) -> dict[str, Values]:
    """One arm's parameters under the form's own names."""
    return {name: parameters[arm_parameter(name, arm)] for name in base.parameters}


def join_arms(data: Sequence[Observations], names: Sequence[str] = ()) -> Observations:
    """Rows of all arms below each other with the column ``arm``.

    Groups made of columns are made again over all arms, labels from elsewhere are kept: a group that has rows in
    several arms (the same seed, the same cell of a grid) is drawn as a whole by the cluster bootstrap, which makes it
    paired.

    Args:
        data: rows of each arm.
        names: of the arms, for messages; none counts them from 0.
    """
    if len({tuple(sorted(part.columns)) for part in data}) != 1:
        raise DataError("arms came with different columns; expected the same in each")
    if len({part.groups is None for part in data}) != 1:
        raise DataError(_unlike_groups(data, names or [str(number) for number in range(len(data))]))
    if len({part.weights is None for part in data}) != 1:
        raise DataError("some arms came with weights and some without; expected all or none")
    if len({part.grouped_on for part in data}) != 1:
        raise DataError("arms were grouped by different columns; expected the same in each")
    names = list(data[0].columns)
    columns = {name: np.concatenate([part.columns[name] for part in data]) for name in names}
    columns[ARM_COLUMN] = np.repeat(np.arange(float(len(data))), [part.num_rows for part in data])
    joined = Observations(
        columns,
        np.concatenate([part.loss for part in data]),
        None if data[0].weights is None else np.concatenate([part.row_weights for part in data]),
        np.concatenate([part.groups for part in data if part.groups is not None])
        if data[0].groups is not None
        else None,
    )
    # Codes that each arm made from its own rows mean nothing in the other: number them over both.
    return joined.grouped_by(data[0].grouped_on) if data[0].grouped_on else joined


def _unlike_groups(data: Sequence[Observations], names: Sequence[str]) -> str:
    """Which arm has groups and which has none, and what to do about it."""
    found = ", ".join(
        f"'{name}' with {part.num_rows} rows has {'none' if part.groups is None else part.num_groups}"
        for name, part in zip(names, data, strict=True)
    )
    return (
        f"one arm has groups and another has none ({found}); an arm of few architectures gets none:"
        " give it more rows, or take all rows as independent with --independent-rows"
    )
