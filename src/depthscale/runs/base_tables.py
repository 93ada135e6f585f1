"""The tables of a run from which every run of a study starts."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from depthscale.runs.config_file import validate
from depthscale.runs.config_part import ConfigPart
from depthscale.runs.data_config import DataConfig


class BaseTables(ConfigPart):
    """``[plan]``, ``[model]``, ``[data]`` and ``[train]`` as given, before an arm's own are merged into them."""

    plan: dict[str, Any]
    model: dict[str, Any]
    data: dict[str, Any] = Field(default_factory=dict)
    train: dict[str, Any]

    def data_config(self) -> DataConfig:
        """The data of every run: arms change the model and its training, not the text."""
        return validate(DataConfig, self.data, "data")
