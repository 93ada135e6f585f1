"""Configurations that come with the package: a folder of TOML files, and a source that names one of them or a path."""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from depthscale.errors import ConfigError, unknown_name
from depthscale.runs.config_file import read_toml, validate, with_overrides

ModelT = TypeVar("ModelT", bound=BaseModel)


def packaged_presets(package: str, folder: str = "presets") -> dict[str, Path]:
    """The TOML files of a folder of the package, by name."""
    place = Path(str(importlib.resources.files(package) / folder))
    return {path.stem: path for path in sorted(place.glob("*.toml"))}


def read_preset_or_file(
    model: type[ModelT], source: str, presets: Mapping[str, Path], overrides: Sequence[str]
) -> ModelT:
    """A configuration by preset name or path, with ``--set`` overrides laid over it.

    Raises:
        ConfigError: unknown preset (the nearest is suggested), missing file, or a fault in it.
    """
    path = presets.get(source, Path(source))
    if source not in presets and not path.suffix:
        raise ConfigError(unknown_name("preset", source, presets))
    return validate(model, with_overrides(read_toml(path), overrides), str(path))
