"""What can go wrong when visits are measured."""

from __future__ import annotations

from depthscale.errors import DepthscaleError


class AlignmentError(DepthscaleError, ValueError):
    """A module, batch or set of points cannot be measured as given."""
