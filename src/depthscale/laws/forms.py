"""Several forms of law on the same rows: a prediction far away owes more to the form than to the parameters.

Forms that are a special case of the chosen one are kept only where the rows (by groups, where they have them) do not
reject them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scipy.stats import f as f_distribution

from depthscale.errors import DataError
from depthscale.laws.allocation.allocate import FEWEST_FORMS, Form
from depthscale.laws.certificate import FitError
from depthscale.laws.fitting import Fit, search
from depthscale.laws.frontier import block_parameters
from depthscale.laws.law import AdditiveLaw
from depthscale.laws.library import CHINCHILLA, WIDTH_DEPTH_TOKENS
from depthscale.laws.objective import Objective, ObjectiveKind
from depthscale.laws.observations import Observations
from depthscale.laws.profiling import deviance
from depthscale.laws.resampling import bootstrap
from depthscale.laws.standard_errors import relative_noise
from depthscale.laws.wald import group_p_value

#: A special case that the rows reject at this p-value is left out.
REJECTED = 0.01
#: A form whose residual variance is more times the chosen one's misses the rows and says nothing beyond them.
LARGEST_NOISE = 4.0
#: In the order in which they are tried beside the chosen one.
_OBJECTIVES: tuple[ObjectiveKind, ...] = ("log_huber", "log_squares", "raw_squares")
_OBJECTIVE_WORDS = {
    "log_squares": "squares of log loss",
    "log_huber": "Huber of log loss",
    "raw_squares": "squares of raw loss",
}


@dataclass(frozen=True)
class _Candidate:
    name: str
    law: AdditiveLaw
    data: Observations
    objective: Objective
    fixed: Mapping[str, float] = field(default_factory=dict)
    shared: Sequence[tuple[str, str]] = ()
    depth_offset: float = 0.0
    is_last_resort: bool = False

    @property
    def is_special_case(self) -> bool:
        """Nested in the chosen form."""
        return bool(self.fixed or self.shared)


def make_forms(
    chosen: Fit, depth_offset: float = 0.0, num_replicates: int = 1000, seed: int = 0
) -> tuple[list[Form], list[str]]:
    """The chosen form first, then every other that these rows allow.

    Args:
        chosen: a certified fit of an additive law.
        depth_offset: layers that its column ``depth`` leaves out.
        num_replicates: of each bootstrap, of groups where the rows have them.
        seed: of the draws.

    Returns:
        Forms with their resamples, and one line for each that was tried and left out.

    Raises:
        FitError: too many replicates of the chosen form itself are not certified.
    """
    law = chosen.law
    assert isinstance(law, AdditiveLaw), "fit files hold additive laws"
    clusters = chosen.data.groups is not None
    noise = relative_noise(chosen)
    forms: list[Form] = []
    left_out = []
    for candidate in _candidates(chosen, law, depth_offset):
        if candidate.is_last_resort and len(forms) >= FEWEST_FORMS:
            continue
        found = search(
            candidate.law, candidate.data, candidate.objective, fixed=candidate.fixed, shared=candidate.shared
        )
        if not found.certificate.holds:
            left_out.append(f"{candidate.name}: not certified")
            continue
        if candidate.is_special_case:
            p_value = group_p_value(chosen, candidate.shared, candidate.fixed)
            if p_value is None:
                degrees = len(candidate.fixed) + len(candidate.shared)
                spare = max(chosen.data.num_weighted_rows - chosen.num_free, 1)
                p_value = float(f_distribution.sf(float(deviance(chosen, found.total)) / degrees, degrees, spare))
            if p_value < REJECTED:
                left_out.append(f"{candidate.name}: rejected by the rows, p = {p_value:.1g}")
                continue
        worse = relative_noise(found) / noise if noise > 0 else 1.0
        if worse > LARGEST_NOISE:
            left_out.append(
                f"{candidate.name}: its residual variance is {worse:.0f} times that of {law.name}, as fitted"
            )
            continue
        draws = bootstrap(found, num_replicates, seed, clusters=clusters)
        if not draws.is_sound:
            words = f"{draws.num_discarded} of {num_replicates} replicates are not certified"
            if not forms:
                raise FitError(f"{words}; no interval of a shape can be given: the rows hardly determine '{law.name}'")
            left_out.append(f"{candidate.name}: {words}")
            continue
        forms.append(Form(candidate.name, found, draws, candidate.depth_offset))
    return forms, left_out


def _candidates(chosen: Fit, law: AdditiveLaw, depth_offset: float) -> list[_Candidate]:
    data, objective = chosen.data, chosen.objective
    found = [_Candidate(f"{law.name}, as fitted", law, data, objective, depth_offset=depth_offset)]
    if "depth" in law.columns:
        less = 0.0 if depth_offset else 2.0
        depth = data.column("depth") + depth_offset - less
        if (depth > 0).all():
            name = f"{law.name}, depth less {less:g}" if less else f"{law.name}, every layer counted"
            found.append(_Candidate(name, law, data.with_column("depth", depth), objective, depth_offset=less))
    if law.reads_once and set(law.columns) == set(WIDTH_DEPTH_TOKENS.columns):
        ones = {law.factor_of(column)[1].exponent: 1.0 for column in ("width", "depth")}
        name = "width and depth exponents held at 1"
        found.append(_Candidate(name, law, data, objective, fixed=ones, depth_offset=depth_offset))
    if len(law.exponents) == 2 and len(law.terms) == 2:
        pair = (law.exponents[0], law.exponents[1])
        found.append(_Candidate("both exponents equal", law, data, objective, shared=[pair]))
    if law.reads_once and {"blocks", "rounds"} <= set(law.columns):
        pair = (law.factor_of("blocks")[1].exponent, law.factor_of("rounds")[1].exponent)
        found.append(_Candidate("a round as good as a block", law, data, objective, shared=[pair]))
    if set(law.columns) != set(CHINCHILLA.columns) and "tokens" in data.columns:
        sized = _with_parameters(data, depth_offset)
        if sized is not None:
            found.append(_Candidate("parameters and tokens alone", CHINCHILLA, sized, objective))
    if set(law.columns) == set(CHINCHILLA.columns) and {"width", "depth"} <= set(data.columns):
        name = "width, depth and tokens"
        found.append(_Candidate(name, WIDTH_DEPTH_TOKENS, data, objective, depth_offset=depth_offset))
    others = [kind for kind in _OBJECTIVES if kind != objective.kind]
    for number, kind in enumerate(others):
        name = f"{law.name}, {_OBJECTIVE_WORDS[kind]}"
        other = Objective(kind, objective.delta)
        # The same formula once more: only where the rows leave too few forms that differ.
        found.append(_Candidate(name, law, data, other, depth_offset=depth_offset, is_last_resort=number > 0))
    return found


def _with_parameters(data: Observations, depth_offset: float) -> Observations | None:
    if "parameters" in data.columns:
        return data
    try:
        blocks = data.column("blocks") if "blocks" in data.columns else data.column("depth") + depth_offset
        return data.with_column("parameters", block_parameters(data.column("width"), blocks))
    except DataError:
        return None
