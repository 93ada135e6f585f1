"""Fits in files: full precision, so that what is read back predicts exactly what was fitted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depthscale.errors import ConfigError, ResultError
from depthscale.laws.fitting import Fit, fit
from depthscale.laws.law import AdditiveLaw
from depthscale.laws.objective import Objective
from depthscale.laws.observations import Observations

Array = NDArray[np.float64]

#: Relative difference of parameters that a minimum found again may show: far above rounding, far below an error bar.
_SAME = 1e-4


@dataclass(frozen=True)
class StoredFit:
    """A certified fit without its rows.

    Attributes:
        law: the form.
        parameters: natural units.
        record: all that was written, certificate and data digest included.
    """

    law: AdditiveLaw
    parameters: dict[str, float]
    record: Mapping[str, Any]

    def predict(self, columns: Mapping[str, Array]) -> Array:
        """Loss [n] at other rows."""
        return self.law.predict(self.parameters, columns)

    def again(self, rows: Observations) -> Fit:
        """Fit the stored rows again and check that this is the stored fit.

        Raises:
            ResultError: the rows are not those that were fitted, or another minimum comes out.
            FitError: the minimum is not certified.
        """
        # Fits of an older version kept no digest of their groups.
        same_groups = self.record.get("groups_sha256", rows.group_digest) == rows.group_digest
        if rows.digest != self.record.get("data_sha256") or not same_groups:
            raise ResultError("the stored rows are not those of the stored fit; run 'depthscale fit' again")
        try:
            objective = Objective(**self.record["objective"])
        except (KeyError, TypeError, ConfigError) as error:
            raise ResultError(f"the stored fit names no objective ({error}); run 'depthscale fit' again") from error
        found = fit(self.law, rows, objective)
        for name, value in found.parameters.items():
            stored = self.parameters[name]
            if not abs(value - stored) <= _SAME * max(abs(value), abs(stored)):
                raise ResultError(
                    f"the stored {name} = {stored:.6g} is not the minimum of the stored rows ({value:.6g});"
                    " run 'depthscale fit' again"
                )
        return found


def to_json(fit: Fit) -> str:
    """One certified fit as JSON text.

    Raises:
        FitError: the fit has no certificate.
    """
    return json.dumps(fit.to_dict(), allow_nan=False)


def from_json(text: str) -> StoredFit:
    """Read what :func:`to_json` wrote.

    Raises:
        ResultError: the this is no stored fit.
    """
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise ResultError(f"this is no stored fit ({error!r}); expected what laws.to_json writes") from error
    return from_record(record)


def from_record(record: Any) -> StoredFit:
    """Read what :meth:`Fit.to_dict` gave.

    Raises:
        ResultError: it is no stored fit, or one without a certificate.
    """
    try:
        law = AdditiveLaw.from_dict(record["law"])
        parameters = {name: float(record["parameters"][name]) for name in law.parameters}
        holds = record.get("certificate", {}).get("holds")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ResultError(f"this is no stored fit ({error!r}); expected what laws.to_json writes") from error
    if not holds:
        raise ResultError("the stored fit has no certificate that holds; fit the rows again")
    return StoredFit(law, parameters, record)
