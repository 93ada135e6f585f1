"""``depthscale scale``: every rule's numbers for a plan."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from depthscale.plan import DepthPlan
    from depthscale.residual import ResidualScales


def scale(
    blocks: Annotated[int, typer.Option(help="K, distinct blocks that loop (of middle_loop: all layers).")],
    rounds: Annotated[int, typer.Option(help="R, rounds over them.")] = 1,
    prelude: Annotated[int, typer.Option(help="Blocks visited once before the loop.")] = 0,
    coda: Annotated[int, typer.Option(help="Blocks visited once after the loop.")] = 0,
    kind: Annotated[str, typer.Option(help="looped, middle_loop, each_repeated or stacked.")] = "looped",
    grad_rounds: Annotated[int | None, typer.Option(help="Backpropagate through the last rounds only.")] = None,
    rule: Annotated[str | None, typer.Option(help="Only this rule.")] = None,
    rule_argument: Annotated[
        list[str] | None, typer.Option(help="Argument of --rule, such as p=0.4; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Print the skip scale, init gain, branch scale and learning-rate multiplier of every residual rule."""
    from depthscale.residual import RULES, apply_rule
    from depthscale.runs.config_file import validate
    from depthscale.runs.model_config import PlanConfig

    tables = {"kind": kind, "blocks": blocks, "rounds": rounds, "prelude": prelude, "coda": coda}
    if grad_rounds is not None:
        tables["grad_rounds"] = grad_rounds
    plan = validate(PlanConfig, tables, "plan").build()
    arguments = _numbers(rule_argument or [])
    # Without a rule of its own, the family's arguments have no default worth showing.
    names = [rule] if rule else [name for name in RULES if name != "power"]
    rows = [(name, apply_rule(name, plan.counts(), arguments)) for name in names]
    if as_json:
        typer.echo(json.dumps({"plan": plan.to_dict(), "rules": [_as_data(plan, s) for _, s in rows]}, indent=1))
        return
    _print_table(plan, [scales for _, scales in rows])


def _numbers(assignments: list[str]) -> dict[str, float]:
    from depthscale.errors import ConfigError

    numbers: dict[str, float] = {}
    for assignment in assignments:
        name, separator, text = assignment.partition("=")
        try:
            numbers[name] = float(text)
        except ValueError:
            separator = ""
        if not separator:
            raise ConfigError(f"--rule-argument came as '{assignment}'; expected name=number, such as p=0.4")
    return numbers


def _bound(plan: DepthPlan, scales: ResidualScales) -> float:
    from depthscale.residual import first_order_bound

    return first_order_bound(plan.counts(), scales)


def _as_data(plan: DepthPlan, scales: ResidualScales) -> dict[str, Any]:
    import dataclasses

    return {
        "rule": scales.rule,
        "arguments": dict(scales.arguments),
        "aligned_bound": _bound(plan, scales),
        "groups": [
            {"name": group.name, "blocks": group.num_blocks, "visits": group.num_visits, **dataclasses.asdict(numbers)}
            for group, numbers in zip(plan.counts().groups, scales.groups, strict=True)
        ],
    }


def _print_table(plan: DepthPlan, rows: list[ResidualScales]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(
        f"K = {plan.num_blocks} blocks, R = {plan.num_rounds} rounds, N = {plan.unrolled_depth} block visits,"
        f" M = {plan.num_sublayer_visits} sublayer visits"
    )
    table = Table(caption="aligned bound: sum over sublayers of R * R * (beta * epsilon / alpha)^2, constant dropped")
    several = len(plan.segments) > 1
    for heading in ("rule", *(["blocks x visits"] if several else [])):
        table.add_column(heading)
    for heading in ("skip α", "gain β", "branch ε", "lr x", "aligned bound"):
        table.add_column(heading, justify="right")
    for scales in rows:
        groups = list(zip(plan.counts().groups, scales.groups, strict=True))
        for index, (group, numbers) in enumerate(groups):
            table.add_row(
                scales.rule if index == 0 else "",
                *([f"{group.num_blocks} x {group.num_visits}"] if several else []),
                f"{numbers.skip:.4g}",
                f"{numbers.gain:.4g}",
                f"{numbers.branch:.4g}",
                f"{numbers.lr_multiplier:.4g}",
                f"{_bound(plan, scales):.4g}" if index == 0 else "",
            )
    console.print(table)
    console.print("post, sandwich: α on the skip. pre: ε on the branch. β acts once, on initial v, o and MLP matrices.")
