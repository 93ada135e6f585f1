"""Tables of what ``depthscale fit`` and ``depthscale allocate`` found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from depthscale.laws.preparation import shown_rows
from depthscale.reports.fit_words import allocation_sentences, card_lines, ends, error_words, sentences, value


def plain_console() -> Console:
    """A console that shows the user's own names as they are: ``[looped]`` is an arm and no style."""
    return Console(markup=False, emoji=False)


def print_rows(card: Mapping[str, Any], notes: Sequence[str], findings: Sequence[Mapping[str, Any]]) -> None:
    """The data card, what was done to the rows and what is odd about them: what a refused fit has to show too."""
    console = plain_console()
    console.print("Data card: " + "; ".join(f"{name}: {answer}" for name, answer in card_lines(card)))
    for note in notes:
        console.print(f"Rows: {note}.", soft_wrap=True)
    for finding in findings:
        where = f" (rows {shown_rows(tuple(finding['rows']))})" if finding["rows"] else ""
        console.print(f"Look at: {finding['message']}{where}.", soft_wrap=True)


def print_fit(result: Mapping[str, Any]) -> None:
    """The data card and what is odd about the rows, then the answers."""
    print_rows(result["card"], result["notes"], result["findings"])
    console = plain_console()
    _print_parameters(console, result)
    _print_audit(console, result)
    for lead, rest in sentences(result):
        console.print(f"{lead}: {rest}", soft_wrap=True, highlight=False)
    if result["envelope"] is not None:
        console.print(_envelope_words(result["envelope"]), soft_wrap=True, highlight=False)
    for curve in result["isoflop"]:
        bias = "none" if curve["bias"] is None else f"{100 * curve['bias']:+.1f} %"
        console.print(
            f"IsoFLOP {curve['flops']:.2g}: {curve['column']} {value(curve['optimum'])}, parabola's bias {bias}"
            f" ({curve['verdict']})",
            soft_wrap=True,
            highlight=False,
        )
    for warning in result["warnings"]:
        console.print(f"Warning: {warning}.", soft_wrap=True, style="yellow")


def print_allocation(result: Mapping[str, Any]) -> None:
    """Title, shape and everything around it."""
    console = plain_console()
    console.print(result["title"], style="bold", soft_wrap=True, highlight=False)
    for warning in result["warnings"]:
        console.print(f"Warning: {warning}.", soft_wrap=True, style="yellow")
    for lead, rest in allocation_sentences(result):
        console.print(f"{lead}: {rest}", soft_wrap=True, highlight=False)
    table = Table(caption="shapes within 1 % of the least loss, the best width of some depths")
    for heading in ("width", "blocks", "rounds", "parameters", "tokens", "loss", "above best"):
        table.add_column(heading, justify="right")
    for shape in result["near_optimum"]["shapes"]:
        table.add_row(
            *(f"{shape[name]:.0f}" for name in ("width", "blocks", "rounds")),
            *(f"{shape[name]:.4g}" for name in ("parameters", "tokens")),
            f"{shape['loss']:.4f}",
            f"{100 * shape['above_best']:.2f} %",
        )
    console.print(table)
    table = Table(caption="predicted loss of the shape under each form of law")
    table.add_column("form")
    table.add_column("loss", justify="right")
    for name, loss in result["form_losses"].items():
        table.add_row(name, f"{loss:.4f}")
    console.print(table)
    for note in result["notes"]:
        console.print(f"Note: {note}.", soft_wrap=True)


def _print_parameters(console: Console, result: Mapping[str, Any]) -> None:
    level = f"{100 * result['level']:g} %"
    table = Table(caption=f"interval: {result['interval_kind']}. Natural units of the columns")
    table.add_column("parameter", overflow="fold")
    for heading in ("estimate", f"{level} interval", f"{level} profile", "sd of replicates"):
        table.add_column(heading, justify="right")
    for index, row in enumerate([*result["parameters"], *result["derived"]]):
        table.add_row(
            row["name"],
            f"{row['estimate']:.6g}",
            ends(row["interval"]),
            ends(row["profile"]),
            "-" if row["bootstrap_sd"] is None else value(row["bootstrap_sd"], 3),
            end_section=index == len(result["parameters"]) - 1,
        )
    console.print(table)


def _print_audit(console: Console, result: Mapping[str, Any]) -> None:
    audit = result["audit"]
    names = [factor["exponent"] for term in result["fit"]["law"]["terms"] for factor in term["factors"]]
    table = Table(
        caption=f"one convention changed at a time; standard error: {error_words(result['fit'], result['rows'])}"
    )
    table.add_column("convention")
    for heading in ("rows", *names):
        table.add_column(heading, justify="right")
    base = result["fit"]["parameters"]
    table.add_row("as fitted", str(result["rows"]["fitted"]), *(value(base[name]) for name in names))
    for row in audit["rows"]:
        found = row["parameters"]
        cells = [value(found[name]) for name in names] if found else ["not certified"] * len(names)
        table.add_row(row["name"], str(row["num_rows"]), *cells)
    table.add_section()
    table.add_row("spread", "", *(value(audit["spread"][name], 3) for name in names))
    table.add_row("standard error", "", *(value(audit["errors"][name], 3) for name in names))
    console.print(table)


def _envelope_words(envelope: Mapping[str, Any]) -> str:
    if envelope["parameters"] is None:
        return f"Best rate of each setting ({envelope['num_rows']} rows): not certified."
    numbers = ", ".join(f"{name} = {value(number)}" for name, number in envelope["parameters"].items())
    return f"Best rate of each setting ({envelope['num_rows']} rows, biased down): {numbers}"
