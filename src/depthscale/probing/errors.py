"""What can go wrong when a model is probed."""

from __future__ import annotations

from depthscale.errors import DepthscaleError


class ProbingError(DepthscaleError, ValueError):
    """A model, text or setting cannot be probed as given."""
