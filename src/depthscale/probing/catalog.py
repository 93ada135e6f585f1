"""Every quantity of the probe by name: its formula, over which layers it runs, and how its samples are binned."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

#: ``local`` needs three consecutive states; ``sublayer`` the parts of a block; ``end`` all states of a pass; ``exit``
#: the head at every layer.
QuantityGroup = Literal["local", "sublayer", "end", "exit"]
#: ``angle`` lies in [0, pi], ``cosine`` in [-1, 1], ``size`` anywhere.
QuantityScale = Literal["angle", "cosine", "size"]


@dataclass(frozen=True)
class Quantity:
    """One number per token and layer.

    Attributes:
        formula: with h_0 the embedding output, h_l the raw output of visit l of N, Dh_l = h_{l+1} - h_l.
        unit: ``radians``, ``nats``, or empty for plain numbers.
        extra_layers: entries beyond N; the first is l = 0.
        group: what it takes to compute it.
        scale: range of its values.
    """

    formula: str
    unit: str
    extra_layers: int
    group: QuantityGroup
    scale: QuantityScale


QUANTITIES = MappingProxyType(
    {
        "hidden_state_norm": Quantity("|h_l|", "", 1, "local", "size"),
        "update_norm": Quantity("|Dh_l|", "", 0, "local", "size"),
        "relative_update_norm": Quantity("|Dh_l| / |h_l|", "", 0, "local", "size"),
        "state_angle": Quantity("angle(h_l, h_{l+1})", "radians", 0, "local", "angle"),
        "update_angle": Quantity("angle(Dh_l, Dh_{l+1})", "radians", -1, "local", "angle"),
        "block_influence": Quantity("1 - cos(h_l, h_{l+1})", "", 0, "local", "size"),
        "attention_update_norm": Quantity("|attention's part of visit l + 1|", "", 0, "sublayer", "size"),
        "mlp_update_norm": Quantity("|the MLP's part of visit l + 1|", "", 0, "sublayer", "size"),
        "attention_mlp_angle": Quantity(
            "angle between the two parts of visit l + 1", "radians", 0, "sublayer", "angle"
        ),
        "attention_update_angle": Quantity(
            "angle between attention's parts of visits l + 1 and l + 2", "radians", -1, "sublayer", "angle"
        ),
        "mlp_update_angle": Quantity(
            "angle between the MLP's parts of visits l + 1 and l + 2", "radians", -1, "sublayer", "angle"
        ),
        "angle_to_end": Quantity("angle(h_l, h_N), h_N raw", "radians", 0, "end", "angle"),
        "angle_to_normed_end": Quantity("angle(h_l, final norm of h_N)", "radians", 1, "end", "angle"),
        "projection_on_total": Quantity("<h_l - h_0, h_N - h_0> / |h_N - h_0|^2", "", 1, "end", "size"),
        "update_total_cosine": Quantity("cos(Dh_l, h_N - h_0)", "", 0, "end", "cosine"),
        "logit_lens_loss": Quantity("next-token loss of head(final norm(h_l))", "nats", 1, "exit", "size"),
        "last_block_lens_loss": Quantity(
            "next-token loss of head(final norm(last block(h_l)))", "nats", 0, "exit", "size"
        ),
    }
)


def names_of(*groups: QuantityGroup) -> tuple[str, ...]:
    """Quantities of these groups, in the order of the table."""
    return tuple(name for name, quantity in QUANTITIES.items() if quantity.group in groups)


def num_layers(name: str, num_visits: int) -> int:
    """Entries of a quantity in a model of N visits."""
    return num_visits + QUANTITIES[name].extra_layers
