"""The exponent of loss over depth, fitted by ``depthscale.laws`` in three forms that one interval covers.

    power            c depth^-a
    floored          c depth^-a + L_0                           a floor that the rows choose
    teacher_limited  c (depth^-a - teacher depth^-a)            nothing is left to learn at the teacher's depth

A form whose residual variance is more than four times the best one's misses the rows and is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depthscale.laws import AdditiveLaw, Factor, Law, Observations, Term, parameter, profile, search
from depthscale.laws.forms import LARGEST_NOISE
from depthscale.laws.standard_errors import relative_noise
from depthscale.toy.teacher_limited_law import TeacherLimitedLaw

Array = NDArray[np.float64]

#: Fewer depths, or a narrower range of them, give no exponent.
MIN_DEPTHS = 6
MIN_RANGE = 8.0
LEVEL = 0.95

_TERM = Term("c", (Factor("depth", "a"),))
POWER = AdditiveLaw("power", (_TERM,))
FLOORED = AdditiveLaw("floored", (_TERM,), floor="L_0")


@dataclass(frozen=True)
class FormFit:
    """One form on one curve.

    Attributes:
        form: ``power``, ``floored`` or ``teacher_limited``.
        kept: whether the interval covers it.
        reason: why not.
        exponent: a, None unless certified.
        lower, upper: profile interval of a; infinite (null in a file) where the rows leave it open.
        parameters: natural units, None unless certified.
        residual: root mean square of ln(predicted / measured), degrees of freedom counted.
    """

    form: str
    kept: bool
    reason: str | None
    exponent: float | None = None
    lower: float | None = None
    upper: float | None = None
    parameters: dict[str, float] | None = None
    residual: float | None = None


@dataclass(frozen=True)
class Exponent:
    """The exponent of one curve.

    Attributes:
        value: of the form with the smallest residual; None where there is none.
        reason: why there is none.
        lower, upper: from the lowest end of a kept form, or a single replicate's own exponent, to the highest.
        form: whose value it is.
        forms: all three.
        of_replicates: each replicate's own exponent in that form, where it is certified.
    """

    value: float | None
    reason: str | None
    lower: float | None = None
    upper: float | None = None
    form: str | None = None
    forms: tuple[FormFit, ...] = ()
    of_replicates: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a result file."""
        return asdict(self)


def exponent_refused(depths: Sequence[int]) -> str | None:
    """Why depths such as these give no exponent, or None.

    Example:
        >>> exponent_refused([6, 12])
        '2 depths from 6 to 12; an exponent takes at least 6 depths over a factor of 8'
    """
    distinct = sorted(set(depths))
    if not distinct:
        return "no depth has a finite loss"
    if len(distinct) >= MIN_DEPTHS and distinct[-1] >= MIN_RANGE * distinct[0]:
        return None
    many = f"{len(distinct)} depths from {distinct[0]} to {distinct[-1]}" if len(distinct) > 1 else "one depth only"
    return f"{many}; an exponent takes at least {MIN_DEPTHS} depths over a factor of {MIN_RANGE:g}"


def fit_exponent(depths: Sequence[int], losses: Array, teacher_depth: int) -> Exponent:
    """Fit the mean curve of several replicates, and each of them.

    Args:
        depths: [D], ascending.
        losses: [replicates, D], positive and finite.
        teacher_depth: of the teacher, in the unit of ``depths``.
    """
    refusal = exponent_refused(depths)
    if refusal is not None:
        return Exponent(None, refusal)
    mean = np.exp(np.log(losses).mean(axis=0))
    found = {law.name: _fit_form(law, _rows(depths, mean)) for law in (POWER, FLOORED)}
    law = TeacherLimitedLaw(float(teacher_depth))
    if max(depths) < teacher_depth:
        found[law.name] = _fit_form(law, _rows(depths, mean))
    else:
        found[law.name] = FormFit(law.name, False, "students are as deep as the teacher")
    certified = [form for form in found.values() if form.residual is not None]
    if not certified:
        reasons = "; ".join(f"{form.form}: {form.reason}" for form in found.values())
        return Exponent(None, f"no form is certified ({reasons})", forms=tuple(found.values()))
    # Rows on a law to rounding would reject every other form for nothing.
    best = min(certified, key=lambda form: max(form.residual or 0.0, 1e-9))
    forms = tuple(_kept(form, max(best.residual or 0.0, 1e-9)) for form in found.values())
    laws: dict[str, Law] = {POWER.name: POWER, FLOORED.name: FLOORED, law.name: law}
    singles = [search(laws[best.form], _rows(depths, row)) for row in losses] if len(losses) > 1 else []
    own = tuple(single.parameters["a"] for single in singles if single.certificate.holds)
    ends = [(form.lower, form.upper) for form in forms if form.kept]
    return Exponent(
        value=best.exponent,
        reason=None,
        lower=min(*(-np.inf if low is None else low for low, _ in ends), *own, best.exponent or 0.0),
        upper=max(*(np.inf if high is None else high for _, high in ends), *own, best.exponent or 0.0),
        form=best.form,
        forms=forms,
        of_replicates=own,
    )


def _rows(depths: Sequence[int], losses: Array) -> Observations:
    return Observations({"depth": np.array(depths, dtype=np.float64)}, losses)


def _fit_form(law: Law, rows: Observations) -> FormFit:
    found = search(law, rows)
    if not found.certificate.holds:
        return FormFit(law.name, False, "; ".join(found.certificate.reasons))
    interval = profile(found, [parameter(found, "a")], LEVEL)[0]
    values = found.parameters
    residual = float(np.sqrt(relative_noise(found)))
    return FormFit(law.name, True, None, values["a"], interval.lower, interval.upper, values, residual)


def _kept(form: FormFit, best: float) -> FormFit:
    if form.residual is None or form.residual**2 <= LARGEST_NOISE * best**2:
        return form
    times = form.residual**2 / best**2
    reason = f"its residual variance is {times:.0f} times the best form's"
    return FormFit(form.form, False, reason, form.exponent, form.lower, form.upper, form.parameters, form.residual)
