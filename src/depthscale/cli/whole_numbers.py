"""Options that take whole numbers by commas."""

from __future__ import annotations

from depthscale.errors import ConfigError


def whole_numbers(option: str, text: str, lowest: int = 1, highest: int | None = None) -> list[int]:
    """The numbers in the order given, or one line that says what the option expects.

    Raises:
        ConfigError: a part is no whole number, or one out of bounds.
    """
    parts = [part.strip() for part in text.split(",")]
    # Ten digits are beyond every bound; Python refuses to read thousands of them.
    numbers = [int(part) for part in parts if part.isdecimal() and len(part) < 10]
    if len(numbers) < len(parts) or min(numbers) < lowest or (highest is not None and max(numbers) > highest):
        upper = "" if highest is None else f" and at most {highest}"
        raise ConfigError(
            f"{option} came as '{text}'; expected whole numbers of at least {lowest}{upper}, such as 1,2,4"
        )
    return numbers
