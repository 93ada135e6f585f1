"""Cells of an alignment study whose alignment follows known powers of R, as their workers would have written them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from depthscale.alignment.kappa import Alignment, SublayerAlignment
from depthscale.plan import DepthPlan
from depthscale.residual import apply_rule
from depthscale.runs.alignment_config import AlignmentRun, AlignmentStudyFile
from depthscale.runs.config_file import merge, validate

TABLES: Mapping[str, Any] = {
    "plan": {"blocks": 1},
    "model": {
        "hidden_size": 32,
        "num_attention_heads": 2,
        "mlp": "gelu",
        "norm_placement": "post",
        "rule": "deeploop",
    },
    "train": {"steps": 200, "batch_rows": 4, "lr": 1e-3, "schedule": "constant"},
    "measure": {"steps": [0, 200], "rows": [4]},
    "study": {
        "name": "synthetic",
        "base": "deeploop",
        "rounds": [1, 2, 4, 8],
        "seeds": [1, 2, 3],
        "table_rounds": 4,
        "arms": [
            {"name": "deeploop", "varies": "base: deeploop, post", "measure": {"one_step": [0]}},
            {
                "name": "deepnorm",
                "varies": "rule: deepnorm",
                "model": {"rule": "deepnorm"},
                "measure": {"one_step": [0]},
            },
            {"name": "untied", "varies": "untied", "plan": {"kind": "stacked"}},
        ],
    },
}


def study_file(**study: Any) -> AlignmentStudyFile:
    """The synthetic study, with keys of ``[study]`` replaced."""
    tables: dict[str, Any] = {}
    merge(tables, TABLES)
    merge(tables, {"study": study})
    return validate(AlignmentStudyFile, tables, "test")


def gamma_of(cell: AlignmentRun, step: int) -> float:
    """gamma(p) = 1.25 - p, so that p* = (1 + gamma(p*)) / 4 is 0.45; visits of blocks of their own do not align."""
    if cell.plan.kind == "stacked":
        return 0.0
    return 1.25 - (cell.exponent or 0.25)


def cell_results(
    file: AlignmentStudyFile, gamma: Callable[[AlignmentRun, int], float] = gamma_of, map_growth: float = 0.0
) -> list[dict[str, Any]]:
    """Every cell's result; ``map_growth`` is the exponent of max ||U|| in units of beta/alpha."""
    return [_cell(cell, gamma, map_growth) for cell in file.cells()]


def _cell(cell: AlignmentRun, gamma: Callable[[AlignmentRun, int], float], map_growth: float) -> dict[str, Any]:
    rounds, seed = cell.plan.rounds, cell.train.seed
    counts = DepthPlan.looped(cell.plan.blocks, rounds).counts()
    unit = apply_rule(cell.model.rule, counts, cell.model.rule_arguments).groups[0].relative_branch
    noise = random.Random(f"{cell.arm} {rounds} {seed}")
    points = []
    for step in cell.measure.steps:
        for index, rows in enumerate(cell.measure.rows):
            alignment = _alignment(rounds, gamma(cell, step), unit, map_growth, noise)
            kinds = ["loss", "adam"] if step and index == 0 else ["loss"]
            points += [
                {
                    "step": step,
                    "batch_rows": rows,
                    "loss_nats": 5.0 - step / 100,
                    **alignment.to_dict(),
                    "gradient_of": kind,
                }
                for kind in kinds
            ]
    return {
        "arm": cell.arm,
        "rounds": rounds,
        "seed": seed,
        "rule": cell.model.rule,
        "rule_arguments": cell.model.rule_arguments,
        "exponent": cell.exponent,
        "norm_placement": cell.model.norm_placement,
        "plan_kind": cell.plan.kind,
        "num_blocks": cell.plan.blocks,
        "hidden_size": cell.model.hidden_size,
        "num_attention_heads": cell.model.num_attention_heads,
        "mlp": cell.model.mlp,
        "optimizer": cell.measure.optimizer,
        "tokens": cell.measure.tokens,
        "lr": cell.train.lr,
        "relative_branch": unit,
        "split": cell.measure.split,
        "tokens_per_training_step": 512,
        "outcome": "finished",
        "points": points,
        "one_steps": [_one_step(points, step, optimizer) for step in cell.measure.one_step for optimizer in _RATES],
        "training_loss_nats": [],
        "unigram_loss_nats": 3.0,
        "data": {
            "corpus": "synthetic",
            "corpus_sha256": "0" * 64,
            "tokenizer": "bytes",
            "tokenizer_sha256": "1" * 64,
            "context_length": 128,
        },
    }


_RATES = {"sgd": 1e-2, "adamw": 1e-4}


def _alignment(rounds: int, gamma: float, unit: float, map_growth: float, noise: random.Random) -> Alignment:
    """Two sublayers with kappa = R^gamma, shared evenly by U and G, a little noise from R = 2 on."""

    def sublayer(name: str, kind: Any, size: float) -> SublayerAlignment:
        kappa = rounds**gamma * (1 + 0.005 * noise.uniform(-1, 1) * (rounds > 1))
        part = (rounds * kappa) ** 0.5
        map_max, gradient_max = size * unit * rounds**map_growth, 0.1 * size * unit
        return SublayerAlignment(
            name=name,
            kind=kind,
            num_visits=rounds,
            kappa=kappa,
            kappa_standard_error=None,
            kappa_common=kappa * size**2,
            map_part=part,
            gradient_part=part,
            map_sum=part * map_max,
            map_max=map_max,
            gradient_sum=part * gradient_max,
            gradient_max=gradient_max,
            relative_branch=unit,
        )

    return Alignment((sublayer("block0.attention", "attention", 0.5), sublayer("block0.mlp", "mlp", 1.0)), "loss",
                     "frobenius", 2)  # fmt: skip


def _one_step(points: list[dict[str, Any]], step: int, optimizer: str) -> dict[str, Any]:
    """A step whose change is just its bound over 2."""
    point = next(p for p in points if p["step"] == step)
    lengths = {
        s["name"]: _RATES["sgd"] * s["gradient_sum"] if optimizer == "sgd" else _RATES["adamw"]
        for s in point["sublayers"]
    }
    terms = {s["name"]: s["map_sum"] * lengths[s["name"]] for s in point["sublayers"]}
    bound = sum(terms.values())
    return {
        "step": step,
        "batch_rows": point["batch_rows"],
        "optimizer": optimizer,
        "lr": _RATES[optimizer],
        "actual": bound / 2,
        "first_order": bound / 2,
        "bound": bound,
        "terms": terms,
        "lengths": lengths,
        "all_parameters": bound,
        "largest_relative_change_of_a_norm": 0.0,
    }
