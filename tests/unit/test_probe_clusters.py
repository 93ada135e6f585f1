"""Groups of tokens: one group where there is one, a planted 0.4 % where it was planted."""

from __future__ import annotations

import numpy as np
import pytest

from depthscale.errors import DataError
from depthscale.probing.clusters import token_groups
from depthscale.probing.depth_use import stop_depths
from depthscale.probing.gap import FEWEST, find_gap
from depthscale.probing.token_vectors import TokenVectors

NUM_LAYERS = 24
EARLY_ID = 3


def angle_vectors(
    seed: int, share: float, num_documents: int = 50, length: int = 250
) -> tuple[TokenVectors, np.ndarray]:
    """Tokens that turn evenly, with levels of their own, and a share (all first tokens among it) that stops early."""
    draw = np.random.default_rng(seed)
    count = num_documents * length
    vectors = 0.15 * draw.gamma(20, 1 / 20, size=(count, 1)) * np.exp(0.25 * draw.normal(size=(count, NUM_LAYERS)))
    vectors[:, 0] = 1.4 + 0.05 * draw.normal(size=count)
    vectors[:, -1] = 1.2 + 0.1 * draw.normal(size=count)
    positions = np.tile(np.arange(length), num_documents)
    documents = np.repeat(np.arange(num_documents), length)
    token_ids = draw.integers(10, 1000, size=count)
    early = np.zeros(count, dtype=bool)
    early[np.flatnonzero(positions == 0)[: round(share * count)]] = True
    vectors[early, 5:-1] *= 0.02
    token_ids[early] = EARLY_ID
    gathered = TokenVectors(NUM_LAYERS)
    for first in range(0, count, 1500):
        part = slice(first, first + 1500)
        gathered.add(vectors[part], positions[part], token_ids[part], documents[part])
    np.testing.assert_allclose(gathered.mean, vectors.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(gathered.covariance, np.cov(vectors, rowvar=False), rtol=1e-9, atol=1e-15)
    return gathered, early


def test_a_planted_group_of_four_tokens_in_a_thousand_is_recovered() -> None:
    gathered, early = angle_vectors(0, 0.004)
    found = token_groups(gathered)
    assert found.num_groups == 2
    assert found.small is not None
    assert found.small.num_tokens == early.sum()
    assert found.share == pytest.approx(0.004)
    assert found.share_interval is not None
    assert found.share_interval[0] <= 0.004 <= found.share_interval[1]
    assert found.small.first_share == 1.0
    assert found.small.positions[0] == 1.0
    assert found.small.top_tokens[0] == (EARLY_ID, early.sum())
    assert found.small.stop_depth is not None
    assert found.large.stop_depth is not None
    assert found.small.stop_depth < found.large.stop_depth - 0.1
    assert found.stability is not None
    assert found.stability.jaccard > 0.9
    assert found.stability.found > 0.9


@pytest.mark.parametrize("seed", range(3))
def test_tokens_of_one_kind_are_one_group(seed: int) -> None:
    gathered, _ = angle_vectors(seed, 0.0, num_documents=12)
    found = token_groups(gathered)
    assert found.num_groups == 1
    assert found.share is None
    assert found.small is None
    assert found.large.num_tokens == gathered.num_tokens


@pytest.mark.parametrize(
    "unimodal",
    [
        lambda draw, n: draw.normal(size=n),
        lambda draw, n: draw.uniform(size=n),
        lambda draw, n: draw.exponential(size=n),
        lambda draw, n: draw.standard_t(2, size=n),
        lambda draw, n: np.abs(draw.normal(size=n)) ** 3,
        lambda draw, n: np.where(draw.random(n) < 0.5, draw.normal(size=n), 5 * draw.normal(size=n)),
    ],
    ids=["normal", "uniform", "exponential", "heavy tails", "pole at zero", "two widths"],
)
def test_no_gap_is_seen_in_one_mode(unimodal: object) -> None:
    # Level 1 % shared among four features: 60 samples give 0.15 false alarms at most on average.
    draw = np.random.default_rng(5)
    assert sum(find_gap(unimodal(draw, 800)) is not None for _ in range(60)) <= 1  # type: ignore[operator]


def test_a_gap_does_not_depend_on_unit_order_or_sign() -> None:
    draw = np.random.default_rng(1)
    values = np.concatenate([draw.normal(size=3000), draw.normal(9, 0.4, size=30)])
    found, scaled, mirrored = find_gap(values), find_gap(1e-6 * values[::-1] + 5), find_gap(-values)
    assert found is not None
    assert scaled is not None
    assert mirrored is not None
    assert found.num_below == scaled.num_below == 3000
    assert mirrored.num_below == 30
    assert scaled.cut == pytest.approx(1e-6 * found.cut + 5, rel=1e-9)
    assert found.is_deep


def test_a_shoulder_is_no_second_group() -> None:
    draw = np.random.default_rng(2)
    found = find_gap(np.concatenate([draw.normal(-1.25, 1, size=40_000), draw.normal(1.25, 1, size=40_000)]))
    assert found is not None
    # Densities at 0 and at the modes of this mixture: 0.1826 and 0.2007 (the formula, by hand).
    assert found.valley == pytest.approx(0.1826 / 0.2007, abs=0.25)
    assert not found.is_deep


def test_equal_vectors_of_equal_contexts_are_counted_once_beside_the_number() -> None:
    gathered, _ = angle_vectors(3, 0.0, num_documents=10)
    fixed = np.full((60, NUM_LAYERS), 0.01)
    gathered.add(fixed, np.zeros(60, int), np.zeros(60, int), np.arange(60) % 10)
    found = token_groups(gathered)
    assert found.small is not None
    assert (found.small.num_tokens, found.small.num_distinct) == (60, 1)


def test_the_sample_is_bounded_and_uniform() -> None:
    gathered = TokenVectors(1, capacity=200)
    for part in np.arange(10_000).reshape(100, 100):
        gathered.add(part[:, None].astype(float), part, part, part)
    assert gathered.num_tokens == 10_000
    assert len(gathered.sample) == 200
    # Mean of 200 of 0 ... 9999: 5000 with a standard error of 204.
    assert abs(gathered.sample.vectors.mean() - 5000) < 4 * 204


def test_angles_that_do_not_exist_are_left_out_and_counted() -> None:
    gathered, _ = angle_vectors(0, 0.0, num_documents=10)
    before = gathered.num_tokens
    gathered.add(np.full((3, NUM_LAYERS), np.nan), np.zeros(3, int), np.zeros(3, int), np.zeros(3, int))
    assert (gathered.num_tokens, gathered.num_invalid) == (before, 3)
    assert token_groups(gathered, num_resamples=2).num_invalid == 3


def test_too_few_documents_give_no_interval() -> None:
    gathered, _ = angle_vectors(0, 0.004, num_documents=4, length=250)
    found = token_groups(gathered)
    assert found.share_interval is None
    assert found.stability is None


def test_bad_input_is_refused_in_one_line() -> None:
    with pytest.raises(DataError, match=f"at least {FEWEST}"):
        token_groups(TokenVectors(4))
    with pytest.raises(DataError, match=r"expected \[tokens, 4\]"):
        TokenVectors(4).add(np.zeros((2, 3)), np.zeros(2, int), np.zeros(2, int), np.zeros(2, int))
    with pytest.raises(DataError, match="not finite"):
        find_gap(np.full(FEWEST, np.nan))


def test_a_token_that_never_turns_has_no_stop_depth() -> None:
    assert np.isnan(stop_depths(np.zeros((1, 6)))).all()
