"""How much an exponent owes to conventions: rows dropped, depth - k, embeddings, attention FLOPs, objective.

Each convention is changed alone against the same base. The spread over conventions stands beside the statistical
error; where it is larger, the error understates what is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from depthscale.errors import ConfigError, DataError
from depthscale.laws.fitting import DEFAULT_OBJECTIVE, fit, search
from depthscale.laws.law import Law
from depthscale.laws.objective import Objective
from depthscale.laws.observations import Observations, ordinal
from depthscale.laws.standard_errors import robust_covariance

#: Ranks of the loss at which rows are cut; 40 is arXiv 2602.05970's, 5 rows is arXiv 2404.10102's.
ROWS_CUT_AT_RANK = (5, 20, 40, 60)
#: Layers that the depth may leave out; each is tried that the base does not have.
DEPTH_OFFSETS = (0.0, 1.0, 2.0)
OBJECTIVES: Mapping[str, Objective] = {
    "squares of log loss": Objective("log_squares"),
    "Huber of log loss": Objective("log_huber"),
    "squares of raw loss": Objective("raw_squares"),
}


@dataclass(frozen=True)
class AuditRow:
    """One convention.

    Attributes:
        name: what was changed.
        num_rows: rows that were fitted.
        parameters: natural units; None where the fit is not certified.
        reasons: why it is not.
    """

    name: str
    num_rows: int
    parameters: dict[str, float] | None
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Audit:
    """Every convention beside the base.

    Attributes:
        base: parameters of the base.
        errors: sandwich errors of the base, by groups where it has them, natural units.
        rows: one per convention.
    """

    base: dict[str, float]
    errors: dict[str, float]
    rows: tuple[AuditRow, ...]

    def spread(self, name: str) -> float:
        """Largest minus smallest estimate over the base and the certified conventions."""
        values = [self.base[name], *(row.parameters[name] for row in self.rows if row.parameters)]
        return max(values) - min(values)


def audit(
    law: Law,
    base: Observations,
    conventions: Mapping[str, Observations | DataError],
    objective: Objective = DEFAULT_OBJECTIVE,
) -> Audit:
    """Fit the base, each convention's rows, and the base under every other objective.

    Args:
        law: what is fitted.
        base: rows of the base convention.
        conventions: name to rows, or to the reason why there are none; see :func:`standard_conventions`.
        objective: of the base and the conventions.

    Raises:
        FitError: the base is not certified.
    """
    reference = fit(law, base, objective)
    rows = [_row(law, name, data, objective) for name, data in conventions.items()]
    rows += [_row(law, name, base, other) for name, other in OBJECTIVES.items() if other != objective]
    return Audit(reference.parameters, robust_covariance(reference).errors, tuple(rows))


def standard_conventions(
    everything: Observations,
    base: Observations,
    depth: str | None = "depth",
    vocab_size: int | None = None,
    context_length: int | None = None,
    depth_offset: float = 0.0,
    tokens_derived: bool = False,
) -> dict[str, Observations | DataError]:
    """The conventions that these columns allow, each changed alone.

    Args:
        everything: all rows, none dropped: other cuts are made from it.
        base: the rows that are fitted. With columns ``parameters`` (totals) and ``width`` the embedding can be left
            out; where their tokens were derived from ``flops``, they are counted again, with attention too.
        depth: column that depth - k applies to; None where the law has none.
        vocab_size: rows of the embedding, to leave it out of ``parameters``.
        context_length: T, to count attention in the FLOPs.
        depth_offset: layers that the column ``depth`` of the rows leaves out already.
        tokens_derived: tokens are no column of the table but FLOPs / (6 * parameters); a table's own stay.
    """
    conventions: dict[str, Observations | DataError] = {"no row dropped": everything}
    for rank in ROWS_CUT_AT_RANK:
        if rank < everything.num_rows // 2:
            name = f"losses below the {ordinal(rank)} largest"
            conventions[name] = _attempt(partial(everything.below_loss_rank, rank))
    if depth is not None:
        for offset in DEPTH_OFFSETS:
            if offset == depth_offset:
                continue
            values = base.column(depth) + depth_offset - offset
            if (values > 0).all():
                name = f"{depth} - {offset:g}" if offset else "every layer counted"
                conventions[name] = base.with_column(depth, values)
    if vocab_size is not None and {"parameters", "width"} <= set(base.columns):
        leave_out = without_embeddings if tokens_derived else without_embedding_parameters
        conventions["embeddings not counted"] = _attempt(partial(leave_out, base, vocab_size))
    if tokens_derived and context_length is not None and {"parameters", "flops", "width", "depth"} <= set(base.columns):
        counted = partial(with_attention_flops, base, context_length, depth_offset)
        conventions["attention counted in FLOPs"] = _attempt(counted)
    return conventions


def without_embeddings(data: Observations, vocab_size: int) -> Observations:
    """parameters - V * width, and tokens = flops / (6 * that), for rows whose tokens were derived so.

    Raises:
        DataError: the table alone is larger than a row's parameters.
    """
    less = without_embedding_parameters(data, vocab_size)
    return less.with_column("tokens", data.column("flops") / (6 * less.column("parameters")))


def without_embedding_parameters(data: Observations, vocab_size: int) -> Observations:
    """parameters - V * width; tokens stay. One tied table is assumed.

    Raises:
        DataError: the table alone is larger than a row's parameters.
    """
    parameters = data.column("parameters") - vocab_size * data.column("width")
    if (parameters <= 0).any():
        row = int(np.argmin(parameters))
        raise DataError(
            f"row {row} has fewer parameters than its embedding of {vocab_size} rows; expected"
            " total parameters and the model's own vocabulary"
        )
    return data.with_column("parameters", parameters)


def with_attention_flops(data: Observations, context_length: int, depth_offset: float = 0.0) -> Observations:
    """tokens = flops / (6 N + 12 l m T): attention at full T^2, as ``depthscale.budget`` counts it."""
    attention = 12 * (data.column("depth") + depth_offset) * data.column("width") * context_length
    return data.with_column("tokens", data.column("flops") / (6 * data.column("parameters") + attention))


def _attempt(work: Callable[[], Observations]) -> Observations | DataError:
    """A convention that these rows do not allow says why instead of ending the audit."""
    try:
        return work()
    except DataError as error:
        return error


def _row(law: Law, name: str, data: Observations | DataError, objective: Objective) -> AuditRow:
    if isinstance(data, DataError):
        return AuditRow(name, 0, None, (str(data),))
    try:
        found = search(law, data, objective)
    except (ConfigError, DataError) as error:
        return AuditRow(name, data.num_rows, None, (str(error),))
    holds = found.certificate.holds
    return AuditRow(name, data.num_rows, found.parameters if holds else None, found.certificate.reasons)
