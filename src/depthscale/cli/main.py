"""``depthscale``: the verbs, and how every error ends.

A user's error is one line on stderr and exit code 2; an interrupted run 128 + signal; anything unexpected is one
line with the path of a log that holds the traceback, and exit code 70.
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from pathlib import Path
from typing import NoReturn

import typer

from depthscale.cli import compare, report, scale, train
from depthscale.errors import DepthscaleError, RunInterruptedError

app = typer.Typer(
    name="depthscale",
    help="How deep, how often looped and how scaled should a transformer be? Build it, train it, compare it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("scale")(scale.scale)
app.command("train")(train.train)
app.command("compare")(compare.compare)
app.command("report")(report.report)


def _version(value: bool) -> None:
    if value:
        from depthscale import __version__

        typer.echo(f"depthscale {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    pass


def main() -> NoReturn:
    """Run the command line and exit."""
    try:
        app()
    except RunInterruptedError as error:
        _fail(str(error), 128 + error.signal_number)
    except DepthscaleError as error:
        _fail(str(error), 2)
    except KeyboardInterrupt:
        _fail("interrupted; finished work is kept", 130)
    except Exception as error:
        log = _write_log()
        _fail(f"unexpected {type(error).__name__}; this is a bug, please report it with {log}", 70)
    sys.exit(0)


def _fail(message: str, code: int) -> NoReturn:
    print(f"depthscale: {message}", file=sys.stderr)  # noqa: T201
    sys.exit(code)


def _write_log() -> Path:
    with tempfile.NamedTemporaryFile("w", prefix="depthscale-", suffix=".log", delete=False) as file:
        file.write(" ".join(sys.argv) + "\n\n" + traceback.format_exc())
        return Path(file.name)
