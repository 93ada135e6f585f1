"""Critical values of the gap test (``depthscale.probing.gap``): quantiles of its statistic under the uniform law.

python benchmarks/probe_gap_levels.py        about 13 minutes on one core
"""

import time

import numpy as np

from depthscale.probing import gap

SIZES = ((50, 20_000), (200, 20_000), (1_000, 20_000), (5_000, 12_000), (25_000, 6_000))


def main() -> None:
    """One line per sample size: critical value, and its standard error from ten parts."""
    level = gap.LEVEL / gap.NUM_FEATURES
    for size, draws in SIZES:
        began = time.perf_counter()
        generator = np.random.default_rng(size)
        largest = np.array([gap.largest_statistic(generator.random(size)) for _ in range(draws)])
        parts = [np.quantile(part, 1 - level) for part in largest.reshape(10, -1)]
        critical, error = np.quantile(largest, 1 - level), np.std(parts, ddof=1) / np.sqrt(10)
        print(f"n = {size}: {critical:.3f} ({error:.3f}), {draws} samples, {time.perf_counter() - began:.0f} s")  # noqa: T201


if __name__ == "__main__":
    main()
