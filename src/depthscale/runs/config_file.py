"""TOML in and out: read a configuration, override it from the command line, write it back resolved."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import tomli_w
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from depthscale.errors import ConfigError, ResultError, unknown_name
from depthscale.runs.files import atomic_write_text

ModelT = TypeVar("ModelT", bound=BaseModel)


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file as plain data.

    Raises:
        ConfigError: the file is missing or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"no configuration at {path}; give the path of a TOML file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}; expected a UTF-8 TOML file") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


def with_overrides(tables: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """``tables`` with ``section.key=value`` assignments applied; a value is TOML, or else a bare string.

    Example:
        >>> with_overrides({"train": {"lr": 0.1}}, ["train.lr=1e-3", "data.corpus=stdlib"])
        {'train': {'lr': 0.001}, 'data': {'corpus': 'stdlib'}}
    """
    result = copy.deepcopy(dict(tables))
    for override in overrides:
        key, separator, text = override.partition("=")
        parts = key.strip().split(".")
        if not separator or not all(parts):
            raise ConfigError(f"--set came as '{override}'; expected section.key=value, such as train.lr=1e-3")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        merge(result, _nest(parts, value))
    return result


def merge(base: dict[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """``patch`` laid over ``base`` in place, table by table; anything that is no table replaces."""
    for key, value in patch.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), dict):
            merge(base[key], value)
        else:
            base[key] = copy.deepcopy(value)
    return base


def validate(model: type[ModelT], tables: Mapping[str, Any], source: str) -> ModelT:
    """``tables`` as ``model``, with every fault named in one line.

    Raises:
        ConfigError: an unknown key (the nearest is suggested), a missing one, or a value out of range.
    """
    try:
        return model.model_validate(dict(tables))
    except ValidationError as error:
        faults = "; ".join(_describe(model, detail) for detail in error.errors())
        raise ConfigError(f"{source}: {faults}") from error


def write_toml(path: Path, config: BaseModel) -> None:
    """``config`` with every default spelled out; None is left out, as TOML has no null."""
    atomic_write_text(path, tomli_w.dumps(config.model_dump(mode="json", exclude_none=True)))


def keep_settings(path: Path, config: BaseModel) -> None:
    """Write ``config``, or see that an earlier start wrote the same: one directory holds one thing.

    Raises:
        ResultError: the file says other settings.
        ConfigError: it cannot be read as such settings.
    """
    if not path.exists():
        write_toml(path, config)
    elif validate(type(config), read_toml(path), str(path)) != config:
        raise ResultError(f"{path} is of other settings; choose another --out, or delete that folder")


def _nest(parts: Sequence[str], value: Any) -> dict[str, Any]:
    for part in reversed(parts):
        value = {part: value}
    return dict(value)


def _describe(model: type[BaseModel], detail: ErrorDetails) -> str:
    location = detail["loc"]
    key = ".".join(str(part) for part in location)
    if detail["type"] == "extra_forbidden":
        return unknown_name(
            "key", key, [".".join([*map(str, location[:-1]), name]) for name in _fields_at(model, location[:-1])]
        )
    if detail["type"] == "missing":
        return f"'{key}' is missing; set it in the file or with --set {key}=…"
    message = detail["msg"].removeprefix("Value error, ")
    if not key:
        return message
    return f"{key} = {detail['input']!r}: {message}" if _is_plain(detail["input"]) else f"{key}: {message}"


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float | bool)


def _fields_at(model: type[BaseModel], location: Sequence[int | str]) -> list[str]:
    """Field names of the model that ``location`` leads to; positions in lists are passed over."""
    for part in location:
        if not isinstance(part, str) or part not in model.model_fields:
            continue
        candidates = [model.model_fields[part].annotation]
        while candidates:
            candidate = candidates.pop()
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                model = candidate
                break
            candidates.extend(get_args(candidate))
    return list(model.model_fields)
