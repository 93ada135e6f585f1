"""``depthscale``: the verbs, and how every error ends.

A user's error is one line on stderr and exit code 2; an interrupted run 128 + signal; anything unexpected is one
line with the path of a log that holds the traceback, and exit code 70.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import traceback
from pathlib import Path
from types import FrameType
from typing import NoReturn

import typer
from typer.exceptions import TyperException

from depthscale.cli import (
    align,
    allocate,
    compare,
    compare_laws,
    evaluate,
    export,
    fetch,
    fit,
    generate,
    intervene,
    probe,
    report,
    scale,
    sweep,
    toy,
    trace,
    train,
)
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
app.command("evaluate")(evaluate.evaluate)
app.command("generate")(generate.generate)
app.command("export")(export.export)
app.command("fit")(fit.fit)
app.command("compare-laws")(compare_laws.compare_laws)
app.command("allocate")(allocate.allocate)
app.command("fetch")(fetch.fetch)
app.command("align")(align.align)
app.command("probe")(probe.probe)
app.command("intervene")(intervene.intervene)
app.command("trace")(trace.trace)
app.command("sweep")(sweep.sweep)
app.command("toy")(toy.toy)


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
    signal.signal(signal.SIGTERM, _terminated)
    try:
        # Not standalone: the library's own endings are boxes of several lines, and silence on Ctrl-C.
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except RunInterruptedError as error:
        _fail(str(error), 128 + error.signal_number)
    except DepthscaleError as error:
        _fail(str(error), 2)
    except TyperException as error:
        _fail(f"{' '.join(error.format_message().split())} See depthscale {_verb()}--help", 2)
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except Exception as error:
        log = _write_log()
        _fail(f"unexpected {type(error).__name__}; this is a bug, please report it with {log}", 70)
    if code == 128 + signal.SIGINT:
        _fail("interrupted; finished work is kept", code)
    sys.exit(code if isinstance(code, int) else 0)


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise RunInterruptedError("terminated; finished work is kept", number)


def _verb() -> str:
    """The verb given, with a space after it, if it is one."""
    given = sys.argv[1] if len(sys.argv) > 1 else ""
    return f"{given} " if any(command.name == given for command in app.registered_commands) else ""


def _fail(message: str, code: int) -> NoReturn:
    print(f"depthscale: {message}", file=sys.stderr)  # noqa: T201
    sys.exit(code)


def _write_log() -> Path:
    with tempfile.NamedTemporaryFile("w", prefix="depthscale-", suffix=".log", delete=False) as file:
        file.write(" ".join(sys.argv) + "\n\n" + traceback.format_exc())
        return Path(file.name)
