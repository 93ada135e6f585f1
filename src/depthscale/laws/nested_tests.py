"""May two arms share these parameters? Refits with some of them common, against the fit in which none is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import f as f_distribution

from depthscale.laws.fitting import Fit, search
from depthscale.laws.joint import JointLaw
from depthscale.laws.law import AdditiveLaw
from depthscale.laws.profiling import deviance
from depthscale.laws.wald import group_p_value

_LEVEL = 0.05


@dataclass(frozen=True)
class NestedTest:
    """Does sharing these parameters between the arms cost more than chance?

    Attributes:
        shared: names that are made common.
        deviance: (SS_shared / SS_free - 1) (n - P); under Huber its robust counterpart. None where refused.
        degrees: constraints.
        p_value: of F(degrees, n - P) at deviance / degrees; rows count as independent. None where refused.
        group_p_value: of a Wald test in which groups count (:mod:`~depthscale.laws.wald`); None without groups, or with
            too few of them for that many constraints. It needs no fit in which anything is shared.
        refused: which fit is not certified and why; None where it is.
    """

    shared: tuple[str, ...]
    deviance: float | None
    degrees: int
    p_value: float | None
    group_p_value: float | None
    refused: str | None = None

    @property
    def is_rejected(self) -> bool:
        """The arms differ in these parameters at 5 %, by groups where rows have them."""
        p_value = self.p_value if self.group_p_value is None else self.group_p_value
        return p_value is not None and p_value < _LEVEL

    @property
    def verdict(self) -> str:
        """``differ``, ``no difference shown``, or ``not certified`` where neither can be said."""
        if self.is_rejected:
            return "differ"
        return "no difference shown" if self.refused is None else "not certified"


def hypotheses(law: AdditiveLaw) -> tuple[tuple[str, ...], ...]:
    """Sets of parameters that may be asked to be common, each once.

    A coefficient is the term's value where its columns are 1, so that on its own it would be compared at a place that
    the columns' units choose: it is asked only together with its exponents.

    Example:
        >>> from depthscale.laws.library import CHINCHILLA
        >>> [" ".join(names) for names in hypotheses(CHINCHILLA)]
        ['E', 'alpha', 'beta', 'A alpha', 'B beta', 'alpha beta', 'E A B alpha beta']
    """
    singles = [*([law.floor] if law.floor else []), *law.exponents]
    terms = [(term.coefficient, *(factor.exponent for factor in term.factors)) for term in law.terms]
    sets = [*((name,) for name in singles), *terms, law.exponents, law.parameters]
    return tuple(dict.fromkeys(names for names in sets if names))


def nested_test(joint: Fit, law: JointLaw, shared: Sequence[str]) -> NestedTest:
    """Refit with ``shared`` common to all arms and compare; a refit that is refused says so in the answer.

    Of a coefficient without its exponents the answer depends on the units of the columns (:func:`hypotheses`).
    """
    pairs = law.pairs(shared)
    degrees = len(pairs)
    by_groups = group_p_value(joint, pairs)
    restricted = search(law, joint.data, joint.objective, shared=pairs)
    if not restricted.certificate.holds:
        reasons = "; ".join(restricted.certificate.reasons)
        refused = f"the fit in which the arms share {', '.join(shared)} is not certified: {reasons}"
        return NestedTest(tuple(shared), None, degrees, None, by_groups, refused)
    rise = float(deviance(joint, restricted.total))
    spare = max(joint.data.num_weighted_rows - joint.num_free, 1)
    alone = float(f_distribution.sf(rise / degrees, degrees, spare))
    return NestedTest(tuple(shared), rise, degrees, alone, by_groups)
