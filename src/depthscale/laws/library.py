"""The laws of the papers by name, and the coefficients they print."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from depthscale.errors import ConfigError, unknown_name
from depthscale.laws.law import AdditiveLaw, Factor, Term

#: c_m / m^alpha_m + c_l / l^alpha_l + c_D / D^alpha_D + L_0; arXiv 2602.05970.
WIDTH_DEPTH_TOKENS = AdditiveLaw(
    "width_depth_tokens",
    (
        Term("c_m", (Factor("width", "alpha_m"),)),
        Term("c_l", (Factor("depth", "alpha_l"),)),
        Term("c_D", (Factor("tokens", "alpha_D"),)),
    ),
    floor="L_0",
)

#: E + A / N^alpha + B / D^beta; Hoffmann et al. 2022, arXiv 2203.15556.
CHINCHILLA = AdditiveLaw(
    "chinchilla",
    (Term("A", (Factor("parameters", "alpha"),)), Term("B", (Factor("tokens", "beta"),))),
    floor="E",
)

#: E + A (1 - S)^b / F^a + K / D^c; ``active_share`` is 1 - S. SMELT, arXiv 2609.01343.
SMELT = AdditiveLaw(
    "smelt",
    (
        Term("A", (Factor("flops_per_token", "a"), Factor("active_share", "b", "power"))),
        Term("K", (Factor("tokens", "c"),)),
    ),
    floor="E",
)

#: E + A * N(R)^-a + B * D^-b, ``unrolled_parameters`` N(R) as the loop counts them. Parcae, arXiv 2604.12946.
LOOPED_CHINCHILLA = AdditiveLaw(
    "looped_chinchilla",
    (Term("A", (Factor("unrolled_parameters", "a"),)), Term("B", (Factor("tokens", "b"),))),
    floor="E",
)

#: Width, effective depth K * R^phi, tokens: c_l K^-alpha_l R^-alpha_R, with phi = alpha_R / alpha_l.
EFFECTIVE_DEPTH = AdditiveLaw(
    "effective_depth",
    (
        Term("c_m", (Factor("width", "alpha_m"),)),
        Term("c_l", (Factor("blocks", "alpha_l"), Factor("rounds", "alpha_R"))),
        Term("c_D", (Factor("tokens", "alpha_D"),)),
    ),
    floor="L_0",
)

#: c x^-a + floor on one column; with the floor at zero a plain power.
POWER_WITH_FLOOR = AdditiveLaw("power_with_floor", (Term("c", (Factor("x", "a"),)),), floor="L_0")

#: c x^a without a floor: growth, such as kappa ~ R^gamma.
GROWTH = AdditiveLaw("growth", (Term("c", (Factor("x", "a", "power"),)),))

#: L_inf + Z * exp(-z R): loss over rounds at test time. Parcae, arXiv 2604.12946.
SATURATING = AdditiveLaw("saturating", (Term("Z", (Factor("rounds", "z", "decay"),)),), floor="L_inf")

LAWS: Mapping[str, AdditiveLaw] = MappingProxyType(
    {
        law.name: law
        for law in (
            WIDTH_DEPTH_TOKENS,
            CHINCHILLA,
            SMELT,
            LOOPED_CHINCHILLA,
            EFFECTIVE_DEPTH,
            POWER_WITH_FLOOR,
            GROWTH,
            SATURATING,
        )
    }
)

#: Table of SMELT, arXiv 2609.01343, as printed (rounded); C = F * D.
SMELT_PRINTED: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "baseline": MappingProxyType({"E": 1.4439, "A": 1.366e3, "K": 1.975e6, "a": 0.3703, "b": 0.1530, "c": 0.6594}),
        "smelt": MappingProxyType({"E": 1.4493, "A": 1.963e3, "K": 5.264e6, "a": 0.3892, "b": 0.1460, "c": 0.7011}),
    }
)


def get_law(name: str) -> AdditiveLaw:
    """Look a law up by name.

    Raises:
        ConfigError: no such law; the nearest name is suggested.
    """
    if name not in LAWS:
        raise ConfigError(unknown_name("law", name, LAWS))
    return LAWS[name]
