"""What every part of a configuration is: frozen, and strict about its keys."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class ConfigPart(BaseModel):
    """Base of every part: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
