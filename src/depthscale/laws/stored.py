"""Fits in files: full precision, so that what is read back predicts exactly what was fitted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depthscale.errors import ResultError
from depthscale.laws.fitting import Fit
from depthscale.laws.law import AdditiveLaw

Array = NDArray[np.float64]


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


def to_json(fit: Fit) -> str:
    """One certified fit as JSON text.

    Raises:
        FitError: the fit has no certificate.
    """
    return json.dumps(fit.to_dict(), allow_nan=False)


def from_json(text: str) -> StoredFit:
    """Read what :func:`to_json` wrote.

    Raises:
        ResultError: the text is no stored fit.
    """
    try:
        record = json.loads(text)
        law = AdditiveLaw.from_dict(record["law"])
        parameters = {name: float(record["parameters"][name]) for name in law.parameters}
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ResultError(f"text is no stored fit ({error!r}); expected what laws.to_json writes") from error
    if not record.get("certificate", {}).get("holds"):
        raise ResultError("the stored fit has no certificate that holds; fit the rows again")
    return StoredFit(law, parameters, record)
