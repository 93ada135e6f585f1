"""One of the two processes of the fixture ``two_processes``."""

from typing import Any

import distributed_worker
import sharding_worker
from processes import report


def observations() -> dict[str, Any]:
    return {"sharding": sharding_worker.observations(), "training": distributed_worker.quick_observations()}


if __name__ == "__main__":
    report(observations)
