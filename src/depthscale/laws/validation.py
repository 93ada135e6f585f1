"""Does the law predict rows it has not seen? Held-out rows, held-out architectures, the largest budgets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as t_distribution

from depthscale.errors import ConfigError
from depthscale.laws.fitting import Fit, search
from depthscale.laws.observations import Observations
from depthscale.laws.standard_errors import relative_noise, robust_covariance

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

_SAME = 1e-9


@dataclass(frozen=True)
class HeldOut:
    """Errors on rows that were left out.

    Attributes:
        kind: rows, groups or extrapolation.
        num_splits: fits that were certified and count.
        num_refused: fits that were not.
        train_error, test_error: mean |L^ / L - 1| over splits and rows.
        bias: mean ln(L^ / L) over held-out rows; its sign says which way the law errs.
        coverage: share of held-out rows inside the prediction interval (parameters and row noise).
        level: that the interval aims at.
    """

    kind: str
    num_splits: int
    num_refused: int
    train_error: float
    test_error: float
    bias: float
    coverage: float
    level: float


def validate_rows(fit: Fit, num_splits: int = 10, share: float = 0.2, seed: int = 0, level: float = 0.95) -> HeldOut:
    """Leave a random share of the rows out, ``num_splits`` times.

    Rows of one architecture are on both sides, so this flatters the law; see :func:`validate_groups`.
    """
    if not 0 < share < 1:
        raise ConfigError(f"held-out share came as {share!r}; expected a number between 0 and 1")
    generator = np.random.default_rng(seed)
    count = fit.data.num_rows
    size = max(round(share * count), 1)
    tests = []
    for _ in range(num_splits):
        mask = np.zeros(count, dtype=np.bool_)
        mask[generator.choice(count, size, replace=False)] = True
        tests.append(mask)
    return _validate(fit, "rows", tests, level)


def validate_groups(fit: Fit, num_splits: int = 10, seed: int = 0, level: float = 0.95) -> HeldOut:
    """Leave whole groups (architectures) out, each group once."""
    codes = fit.data.group_codes
    count = fit.data.num_groups
    if fit.data.groups is None or count < 2:
        raise ConfigError("rows came without groups; use Observations.grouped_by(['width', 'depth'])")
    order = np.random.default_rng(seed).permutation(count)
    folds = np.array_split(order, min(num_splits, count))
    return _validate(fit, "groups", [np.isin(codes, fold) for fold in folds], level)


def validate_extrapolation(fit: Fit, by: str, share: float = 0.2, level: float = 0.95) -> HeldOut:
    """Fit the smaller values of column ``by`` (a budget) and predict the largest ``share`` of rows.

    Where more rows than that share the largest value, as in an isoFLOP design, all of its rows are predicted.

    Raises:
        ConfigError: every row has the same value, or no split gave a certified fit.
    """
    if not 0 < share < 1:
        raise ConfigError(f"held-out share came as {share!r}; expected a number between 0 and 1")
    values = fit.data.column(by)
    # A budget that is computed differs from its equals in the last digits.
    beyond = values > np.quantile(values, 1 - share) * (1 + _SAME)
    if not beyond.any():
        beyond = values >= values.max() * (1 - _SAME)
    if beyond.all():
        raise ConfigError(
            f"every row has {by} = {float(values.max()):.4g}; expected two budgets or more, the largest to be predicted"
        )
    return _validate(fit, "extrapolation", [beyond], level)


def prediction_errors(fit: Fit, data: Observations) -> tuple[Array, Array]:
    """ln L^ at other rows [n] and its standard error, parameters and row noise together."""
    covariance = robust_covariance(fit).matrix
    predicted, slopes = predict_with_slopes(fit, data)
    variance = np.einsum("np,pq,nq->n", slopes, covariance, slopes)
    return np.log(predicted), np.sqrt(variance + relative_noise(fit))


def predict_with_slopes(fit: Fit, data: Observations) -> tuple[Array, Array]:
    """Loss at other rows [n] and d ln loss / d working parameters [n, P]."""
    there = fit.law.bind(data.columns, data.loss)
    back = np.asarray(np.linalg.inv(there.transform), dtype=np.float64)
    u = (back @ (fit.working - there.offset))[None]
    predicted = there.predict(u)[0]
    return predicted * there.loss_scale, (there.jacobian(u)[0] / predicted[:, None]) @ back


def _validate(fit: Fit, kind: str, tests: list[Mask], level: float) -> HeldOut:
    train, test, bias, inside, refused = [], [], [], [], 0
    for mask in tests:
        part = search(fit.law, fit.data.take(~mask), fit.objective, fixed=fit.fixed)
        if not part.certificate.holds:
            refused += 1
            continue
        held = fit.data.take(mask)
        logs, errors = prediction_errors(part, held)
        misses = logs - np.log(held.loss)
        quantile = t_distribution.ppf((1 + level) / 2, max(part.data.num_weighted_rows - part.num_free, 1))
        train.append(np.abs(np.expm1(np.log(part.predicted / part.data.loss))))
        test.append(np.abs(np.expm1(misses)))
        bias.append(misses)
        inside.append(np.abs(misses) <= quantile * errors)
    if not test:
        raise ConfigError(f"none of {len(tests)} {kind} splits gave a certified fit; expected more rows per fit")
    return HeldOut(
        kind,
        len(test),
        refused,
        float(np.concatenate(train).mean()),
        float(np.concatenate(test).mean()),
        float(np.concatenate(bias).mean()),
        float(np.concatenate(inside).mean()),
        level,
    )
