"""Token clusters while a probe runs: a reader of its tokens, and the result it ends in."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from depthscale.probing.clusters import token_groups
from depthscale.probing.quantities import TokenQuantities
from depthscale.probing.token_vectors import CAPACITY, TokenVectors

RESULT_KIND = "probe_clusters"
ANGLES = "state_angle"

DEFINITIONS = {
    "vector": "of each token the angles theta(h_l, h_{l+1}), one feature a layer, radians",
    "stop depth": "share of the bulk layers after which 90 % of the sum of a token's bulk angles lies behind it",
    "bulk": "all layers but the first and the last; all of fewer than 4",
    "share_interval": "95 % over random halves of the documents",
}


class ClusterReader:
    """Takes in every token that a probe measures; its quantities must include ``state_angle``.

    Args:
        capacity: tokens that are kept for the test.
        seed: of which tokens are kept, and of the resamples.
    """

    def __init__(self, capacity: int = CAPACITY, seed: int = 0) -> None:
        self.capacity, self.seed = capacity, seed
        self.vectors: TokenVectors | None = None

    def add(self, tokens: TokenQuantities, documents: Tensor) -> None:
        """A micro-batch; ``documents`` numbers the document of each row of its batch."""
        angles = tokens.values[ANGLES].T.double().cpu().numpy()
        if self.vectors is None:
            self.vectors = TokenVectors(angles.shape[1], self.capacity, self.seed)
        self.vectors.add(
            angles,
            tokens.positions.cpu().numpy(),
            tokens.token_ids.cpu().numpy(),
            documents.cpu()[tokens.rows.cpu()].numpy(),
        )

    def result(self, tokenizer: Any = None) -> dict[str, Any]:
        """What the tokens say, as plain data.

        Args:
            tokenizer: names the tokens of the small group; None leaves their ids.

        Raises:
            DataError: no or too few tokens came.
        """
        vectors = TokenVectors(1) if self.vectors is None else self.vectors
        found = token_groups(vectors, self.seed).to_dict()
        for group in (found["small"], found["large"]):
            if group is not None:
                group["top_tokens"] = [
                    {"id": token, "count": count, "text": None if tokenizer is None else tokenizer.decode([token])}
                    for token, count in group["top_tokens"]
                ]
        return {"definitions": DEFINITIONS, "seed": self.seed, "capacity": self.capacity, **found}
