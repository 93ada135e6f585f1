"""Run the command line in this process, as a test does, and look at how it ended."""

import sys

import pytest

from depthscale.cli.main import main


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Exit code of ``depthscale ARGUMENTS``."""
    monkeypatch.setattr(sys, "argv", ["depthscale", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def one_line(text: str) -> str:
    """``text``, which must be one error line of ours."""
    assert text.startswith("depthscale: "), text
    assert text.count("\n") == 1, text
    assert "Traceback" not in text
    return text
