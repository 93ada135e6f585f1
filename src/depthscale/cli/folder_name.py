"""Folders named after what the user named."""

from __future__ import annotations


def slug(name: str) -> str:
    """The name of a model, a revision or an arm as the name of a folder."""
    return "".join(letter if letter.isalnum() or letter in "-._" else "-" for letter in name).strip("-.") or "model"
