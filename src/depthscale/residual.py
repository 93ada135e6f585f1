"""Residual scaling rules: pure functions from visit counts to finished numbers.

A residual sublayer with skip scale alpha, init gain beta and branch scale epsilon computes

    post      x <- Norm(alpha * x + f(x))          sandwich  x <- Norm(alpha * x + f(Norm(x)))
    pre       x <- x + epsilon * f(Norm(x))

alpha and epsilon act in every forward pass. beta multiplies the initial weights of the value, output and MLP
matrices once and is gone after the first step. No rule is known by name to the model.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from depthscale.errors import PlanError, unknown_name
from depthscale.plan import SUBLAYERS_PER_BLOCK, VisitCounts

NormPlacement = Literal["post", "sandwich", "pre"]
NORM_PLACEMENTS: tuple[NormPlacement, ...] = ("post", "sandwich", "pre")


@dataclass(frozen=True)
class GroupScales:
    """Finished numbers for one group of blocks.

    Attributes:
        skip: alpha, multiplies the skip at every visit.
        gain: beta, multiplies the initial value, output and MLP matrices, once.
        branch: epsilon, multiplies the branch at every visit.
        lr_multiplier: factor on the learning rate of the group's matrices.
    """

    skip: float = 1.0
    gain: float = 1.0
    branch: float = 1.0
    lr_multiplier: float = 1.0

    def __post_init__(self) -> None:
        for name in ("skip", "gain", "branch", "lr_multiplier"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise PlanError(f"{name} came out as {value!r}; expected a positive finite number")

    @property
    def relative_branch(self) -> float:
        """beta * epsilon / alpha, the size of one matrix's effect on the stream at initialization."""
        return self.gain * self.branch / self.skip


@dataclass(frozen=True)
class ResidualScales:
    """What a rule answers: one :class:`GroupScales` per group of the counts, with the rule as provenance."""

    rule: str
    arguments: Mapping[str, float]
    groups: tuple[GroupScales, ...]


# -- the rules -----------------------------------------------------------------------------------------


def unscaled(counts: VisitCounts) -> ResidualScales:
    """alpha = beta = epsilon = 1: the plain residual stream, pre-norm's usual baseline."""
    return ResidualScales("unscaled", {}, tuple(GroupScales() for _ in counts.groups))


def power(counts: VisitCounts, p: float, c: float = 2.0, d: float = 8.0) -> ResidualScales:
    """alpha = (c * N)^p and beta = (d * N)^-p, the family that holds DeepNorm and DeepLoop.

    N is the number of block visits *that carry gradient*, over the whole model, and every group gets the same
    pair. With groups of K_g blocks visited R_g times and aligned visits, the bound is then at most
    max_g R_g / (8 N) at p = 1/2, which is no larger than that of the group that loops most taken alone.

    Args:
        counts: visits per group.
        p: exponent; 1/4 is DeepNorm, 1/2 DeepLoop.
        c: constant of the skip scale, positive.
        d: constant of the init gain, positive.

    Source: DeepLoop, arXiv 2607.13491, section 3 and appendix C (c = 2, d = 8 kept over the sweep).

    Example:
        >>> from depthscale.plan import DepthPlan
        >>> scales = power(DepthPlan.looped(12, 3).counts(), p=0.5)
        >>> round(scales.groups[0].skip, 3), round(scales.groups[0].gain, 4)
        (8.485, 0.0589)
    """
    if not math.isfinite(p):
        raise PlanError(f"exponent p came as {p!r}; expected a finite number such as 0.5")
    if not (c > 0 and d > 0):
        raise PlanError(f"constants came as c={c!r}, d={d!r}; expected positive numbers")
    depth = counts.gradient_depth
    try:
        scales = GroupScales(skip=(c * depth) ** p, gain=(d * depth) ** -p)
    except OverflowError as error:
        raise PlanError(f"exponent p came as {p!r}, which overflows at N = {depth}; expected about 0 to 1") from error
    return ResidualScales("power", {"p": p, "c": c, "d": d}, tuple(scales for _ in counts.groups))


def deepnorm(counts: VisitCounts) -> ResidualScales:
    """alpha = (2N)^(1/4), beta = (8N)^(-1/4): bounded first-order change for *untied* depth.

    N as in :func:`power`: all visits that carry gradient, as if each were a block of its own, which is what
    DeepNorm would say of the unrolled model.

    Source: DeepNet, arXiv 2203.00555, decoder-only row of table 1; used as the p = 1/4 arm in arXiv 2607.13491.
    """
    return ResidualScales("deepnorm", {}, power(counts, 0.25).groups)


def deeploop(counts: VisitCounts) -> ResidualScales:
    """alpha = (2N)^(1/2), beta = (8N)^(-1/2): bounded first-order change for tied depth with aligned visits.

    N as in :func:`power`. For hierarchical reasoners the paper counts gradient-carrying visits only,
    M_g = 2 (K_H + C_L * K_L) under one-step truncation, hence N = M_g / 2.

    Source: DeepLoop, arXiv 2607.13491.

    Example:
        >>> from depthscale.plan import DepthPlan
        >>> scales = deeploop(DepthPlan.looped(12, 7).counts())
        >>> round(scales.groups[0].skip, 2), round(scales.groups[0].gain, 4)
        (12.96, 0.0386)
    """
    return ResidualScales("deeploop", {}, power(counts, 0.5).groups)


def alpha_only(counts: VisitCounts) -> ResidualScales:
    """DeepLoop's skip scale with ordinary initial weights; N as in :func:`power`."""
    return ResidualScales("alpha_only", {}, tuple(GroupScales(skip=g.skip) for g in deeploop(counts).groups))


def beta_only(counts: VisitCounts) -> ResidualScales:
    """DeepLoop's init gain with an unscaled skip; N as in :func:`power`."""
    return ResidualScales("beta_only", {}, tuple(GroupScales(gain=g.gain) for g in deeploop(counts).groups))


def loop_matched(counts: VisitCounts) -> ResidualScales:
    """alpha = (2K)^(1/4) * R^(1/2), beta = (8K)^(-1/4) * R^(-1/2): DeepNorm at R = 1, flat in R when aligned.

    K counts all distinct blocks and R is each group's own number of gradient-carrying visits, so a prelude
    keeps DeepNorm's scales and the aligned bound sum_j R_j * R_j * (beta/alpha)^2 is 1/2 at every R.
    A group without gradient visits is scaled as if it had one.

    Source: depthscale (ours); no paper proposes it.
    """
    k = counts.num_blocks
    groups = tuple(
        GroupScales(
            skip=(2 * k) ** 0.25 * math.sqrt(max(group.num_gradient_visits, 1)),
            gain=(8 * k) ** -0.25 / math.sqrt(max(group.num_gradient_visits, 1)),
        )
        for group in counts.groups
    )
    return ResidualScales("loop_matched", {}, groups)


def inverse_rounds(counts: VisitCounts, scale: float = 1.0, reference_blocks: float = 12.0) -> ResidualScales:
    """epsilon = scale / R * (K / reference_blocks)^(-1/2), with learning rate x (K / reference_blocks)^(-1/2).

    For pre-norm loops. K counts all distinct blocks, R is each group's own number of *forward* visits, since
    what the rule holds still is the size of the stream, which every visit adds to.

    Source: arXiv 2606.18524, in the form of its code (its formula is scale / (R * sqrt(K))).
    """
    if not (scale > 0 and reference_blocks > 0):
        raise PlanError(
            f"inverse_rounds came with scale={scale!r}, reference_blocks={reference_blocks!r};"
            " expected positive numbers"
        )
    depth_factor = (counts.num_blocks / reference_blocks) ** -0.5
    groups = tuple(
        GroupScales(branch=scale / group.num_visits * depth_factor, lr_multiplier=depth_factor)
        for group in counts.groups
    )
    return ResidualScales("inverse_rounds", {"scale": scale, "reference_blocks": reference_blocks}, groups)


def smelt(counts: VisitCounts) -> ResidualScales:
    """epsilon = 1 / r inside a span that is visited r times, 1 elsewhere; r is the group's forward visits.

    Source: SMELT, arXiv 2609.01343 (r = 2).
    """
    return ResidualScales("smelt", {}, tuple(GroupScales(branch=1 / g.num_visits) for g in counts.groups))


RULES: Mapping[str, Callable[..., ResidualScales]] = MappingProxyType(
    {
        "unscaled": unscaled,
        "deepnorm": deepnorm,
        "deeploop": deeploop,
        "power": power,
        "alpha_only": alpha_only,
        "beta_only": beta_only,
        "loop_matched": loop_matched,
        "inverse_rounds": inverse_rounds,
        "smelt": smelt,
    }
)


def apply_rule(name: str, counts: VisitCounts, arguments: Mapping[str, Any] | None = None) -> ResidualScales:
    """Look a rule up by name and apply it.

    Raises:
        PlanError: unknown rule or argument (the nearest name is suggested), or a required one is missing.
    """
    if name not in RULES:
        raise PlanError(unknown_name("rule", name, RULES))
    rule = RULES[name]
    arguments = dict(arguments or {})
    parameters = list(inspect.signature(rule).parameters.values())[1:]
    known = [parameter.name for parameter in parameters]
    for key, value in arguments.items():
        if key not in known:
            raise PlanError(
                unknown_name(f"argument of rule '{name}'", key, known)
                if known
                else f"rule '{name}' takes no arguments; it came with '{key}'"
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise PlanError(f"argument '{key}' of rule '{name}' came as {value!r}; expected a number")
    missing = [q.name for q in parameters if q.default is q.empty and q.name not in arguments]
    if missing:
        raise PlanError(f"rule '{name}' needs {', '.join(missing)}, for example --rule-argument {missing[0]}=0.5")
    return rule(counts, **arguments)


def require_placement(scales: ResidualScales, placement: str) -> None:
    """Refuse scales that a norm placement would silently ignore.

    Raises:
        PlanError: skip != 1 on ``pre``, or branch != 1 on ``post`` or ``sandwich``.
    """
    if placement not in NORM_PLACEMENTS:
        raise PlanError(unknown_name("norm placement", placement, NORM_PLACEMENTS))
    if placement == "pre" and any(group.skip != 1 for group in scales.groups):
        raise PlanError(
            f"rule '{scales.rule}' scales the skip, which a pre-norm block ignores;"
            " use placement 'post' or 'sandwich', or rule 'inverse_rounds' for pre-norm loops"
        )
    if placement != "pre" and any(group.branch != 1 for group in scales.groups):
        raise PlanError(
            f"rule '{scales.rule}' scales the branch, which a {placement}-norm block ignores;"
            " use placement 'pre', or rule 'deeploop' for post-norm loops"
        )


# -- what the rules are for ------------------------------------------------------------------------------


def exponent_threshold(gamma: float) -> float:
    """The smallest exponent p that keeps the first-order change bounded as R grows, (1 + gamma) / 4.

    gamma is the growth exponent of the visit alignment, kappa_R ~ R^gamma, in [0, 1]. Holds only where each
    visit's own maps stay of the order beta / alpha as R grows.

    Source: DeepLoop, arXiv 2607.13491, section 3.

    Example:
        >>> exponent_threshold(0.0), exponent_threshold(1.0)
        (0.25, 0.5)
    """
    if not 0 <= gamma <= 1:
        raise PlanError(f"gamma came as {gamma!r}; expected 0 (orthogonal visits) to 1 (aligned visits)")
    return (1 + gamma) / 4


def first_order_bound(counts: VisitCounts, scales: ResidualScales, kappa: Sequence[float] | None = None) -> float:
    """sum_j R_j * kappa_j * (beta_j / alpha_j)^2 over physical sublayers j, up to the paper's constant.

    Args:
        counts: visits per group; R_j is the group's gradient-carrying visits.
        scales: one entry per group; beta / alpha stands for beta * epsilon / alpha under a branch scale.
        kappa: visit alignment of each group, within [0, R_j]; default R_j, the aligned worst case.

    Returns:
        A pure number: 1 / (8K) for ``deeploop`` and 1/2 for ``loop_matched`` when aligned, 1/2 for
        ``deepnorm`` on untied depth.

    Source: DeepLoop, arXiv 2607.13491 (||dF|| <= C'' * M * kappa_R * (beta/alpha)^2).
    """
    if len(scales.groups) != len(counts.groups):
        raise PlanError(f"{len(scales.groups)} scales came for {len(counts.groups)} groups; expected one each")
    alignment = [float(g.num_gradient_visits) for g in counts.groups] if kappa is None else list(kappa)
    if len(alignment) != len(counts.groups):
        raise PlanError(f"{len(alignment)} kappas came for {len(counts.groups)} groups; expected one each")
    total = 0.0
    for group, group_scales, kappa_j in zip(counts.groups, scales.groups, alignment, strict=True):
        if not 0 <= kappa_j <= group.num_gradient_visits:
            raise PlanError(
                f"kappa of group '{group.name}' came as {kappa_j!r};"
                f" expected 0 to its {group.num_gradient_visits} gradient visits"
            )
        sublayers = SUBLAYERS_PER_BLOCK * group.num_blocks
        total += sublayers * group.num_gradient_visits * kappa_j * group_scales.relative_branch**2
    return total
