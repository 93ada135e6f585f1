"""Streaming statistics against whole arrays, memory, corpora to rows, and tables."""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from probe_models import make_model, random_ids
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from depthscale.probing.catalog import QUANTITIES, names_of
from depthscale.probing.corpus import RowCounts, document_batches, special_tokens
from depthscale.probing.errors import ProbingError
from depthscale.probing.located import locate
from depthscale.probing.profile import QUANTILE_LEVELS, Profile
from depthscale.probing.quantities import TokenQuantities, measure_tokens
from depthscale.probing.results import position_ranges
from depthscale.probing.revisions import RevisionWeights, repeated_weights, step_of
from depthscale.probing.states import TokenBatch
from depthscale.probing.token_file import TokenFile
from depthscale.statistics.angles import angle
from depthscale.statistics.histograms import StreamingHistogram, even_edges, signed_log_edges
from depthscale.statistics.moments import StreamingClusteredMean, StreamingMoments, StreamingPositionMeans
from depthscale.training.tokenizer import byte_tokenizer

# -- angles ----------------------------------------------------------------------------------------------


def test_angle_of_a_vector_with_itself_is_zero_and_finite() -> None:
    """arccos(1.0000001) is not a number, and arccos in float32 is 0 or 3.5e-4 near 0."""
    x = torch.randn(1000, 33, generator=torch.Generator().manual_seed(0))
    assert float(angle(x, x).abs().max()) == 0.0
    assert float(angle(x, 3 * x).max()) < 1e-6
    torch.testing.assert_close(angle(x, -x), torch.full((1000,), math.pi), rtol=0, atol=1e-6)


def test_small_angles_keep_their_digits_in_every_dtype() -> None:
    x = torch.zeros(3, 64)
    x[:, 0] = 1.0
    y = x.clone()
    y[:, 1] = torch.tensor([1e-2, 1e-4, 1e-6])
    torch.testing.assert_close(angle(x, y), torch.tensor([1e-2, 1e-4, 1e-6]), rtol=4e-5, atol=0)
    # 2**-6 is exact in bfloat16; a cosine in bfloat16 would be 1.
    y[:, 1] = 2.0**-6
    found = angle(x.bfloat16(), y.bfloat16())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.full((3,), math.atan(2.0**-6)), rtol=1e-5, atol=0)


def test_angles_of_huge_and_tiny_vectors_do_not_overflow() -> None:
    x, y = torch.tensor([3e30, 0.0]), torch.tensor([1e-30, 1e-30])
    assert angle(x, y).item() == pytest.approx(math.pi / 4, rel=1e-6)
    assert angle(x, torch.zeros(2)).isnan().item()


# -- accumulators ------------------------------------------------------------------------------------------


def chunks(values: Tensor, sizes: tuple[int, ...]) -> Iterator[Tensor]:
    yield from values.split(list(sizes), dim=1)


@pytest.mark.parametrize("sizes", [(1000,), (1, 999), (333, 333, 334), (500, 0, 500)])
def test_moments_equal_those_of_the_whole(sizes: tuple[int, ...]) -> None:
    values = torch.randn(3, 1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values = values * torch.tensor([[1.0], [1e-3], [5.0]]) + torch.tensor([[0.0], [1e4], [-2.0]])
    values[2, 7] = float("nan")
    moments = StreamingMoments(3)
    for part in chunks(values, sizes):
        moments.add(part)
    whole = values.numpy()
    np.testing.assert_allclose(moments.mean, np.nanmean(whole, axis=1), rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(moments.variance, np.nanvar(whole, axis=1, ddof=1), rtol=1e-9)
    np.testing.assert_array_equal(moments.maximum, np.nanmax(whole, axis=1))
    assert moments.num_undefined.tolist() == [0, 0, 1]
    assert moments.count.tolist() == [1000, 1000, 999]


def test_moments_without_samples_are_unknown() -> None:
    moments = StreamingMoments(2)
    moments.add(torch.tensor([[float("nan")], [2.0]]))
    assert moments.mean.isnan().tolist() == [True, False]
    assert moments.variance.isnan().tolist() == [True, True]


def test_standard_error_is_by_document() -> None:
    """Ten equal tokens a document: the error must be that of the document means, not sqrt(10) less."""
    means = torch.randn(1, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    clustered = StreamingClusteredMean(1)
    for start in range(0, 200, 50):
        part = means[:, start : start + 50].repeat_interleave(10, dim=1)
        clustered.add(part, torch.arange(50).repeat_interleave(10))
    assert clustered.num_clusters.tolist() == [200]
    assert clustered.mean.item() == pytest.approx(means.mean().item(), rel=1e-12)
    assert clustered.standard_error.item() == pytest.approx(means.std().item() / math.sqrt(200), rel=1e-12)


def test_position_means() -> None:
    table = StreamingPositionMeans(2, 4)
    table.add(torch.tensor([[1.0, 3.0, 5.0], [1.0, float("nan"), 0.0]]), torch.tensor([0, 2, 2]))
    assert table.mean[0, [0, 2]].tolist() == [1.0, 4.0]
    assert table.mean[1, 2].item() == 0.0
    assert table.mean[0, [1, 3]].isnan().all()


def test_quantiles_are_right_to_a_bin() -> None:
    values = torch.randn(2, 20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).exp()
    values[1] *= -3
    histogram = StreamingHistogram(2, signed_log_edges(1e-8, 1e8))
    for part in values.split(999, dim=1):
        histogram.add(part)
    found, want = histogram.quantiles(QUANTILE_LEVELS), np.quantile(values.numpy(), QUANTILE_LEVELS, axis=1).T
    np.testing.assert_allclose(found, want, rtol=0.024)
    assert int(histogram.counts.sum()) == 40_000
    angles = StreamingHistogram(1, even_edges(0.0, math.pi, 1440))
    angles.add(torch.tensor([[0.0, math.pi, -0.1, 4.0]]))
    assert angles.counts[0, 0].item() == angles.counts[0, -1].item() == 2


# -- the profile ---------------------------------------------------------------------------------------


def test_profile_equals_statistics_of_all_tokens_at_once() -> None:
    located = locate(make_model("pythia"))
    profile, kept = Profile(16), []
    for seed in range(6):
        rows = random_ids(3, 16, seed)
        mask = torch.ones_like(rows)
        mask[0, 10:] = 0
        for tokens in measure_tokens(located, TokenBatch(rows, mask), tuple(QUANTITIES), state_bytes=1):
            profile.add(tokens)
            kept.append(tokens)
    assert profile.num_tokens == 6 * (9 + 15 + 15)
    for name, summary in profile.to_dict().items():
        whole = torch.cat([tokens.values[name] for tokens in kept], dim=1).double().numpy()
        np.testing.assert_allclose(summary["mean"], whole.mean(axis=1), rtol=1e-10)
        np.testing.assert_allclose(summary["standard_deviation"], whole.std(axis=1, ddof=1), rtol=1e-7, atol=1e-12)
        np.testing.assert_allclose(summary["minimum"], whole.min(axis=1))
        scale = QUANTITIES[name].scale
        for level, values in summary["quantiles"].items():
            # Quantiles between two samples are a matter of convention, so the neighbors bound them.
            low = np.quantile(whole, float(level), axis=1, method="inverted_cdf")
            near = {"angle": math.pi / 1440, "cosine": 0.002, "size": 0.05 * np.abs(low).max()}[scale]
            np.testing.assert_allclose(values, low, atol=near + 0.02 * np.abs(whole).max())
        assert summary["num_documents"] == 18
        by_position, count = profile.mean_by_position(name)
        assert count[0].sum() == profile.num_tokens
        assert count[0, 15] == 0
        first = np.concatenate([tokens.values[name][0][tokens.positions == 0].numpy() for tokens in kept])
        assert by_position[0, 0].item() == pytest.approx(first.mean(), rel=1e-6)


def test_micro_batches_do_not_change_the_numbers() -> None:
    located = locate(make_model("llama"))
    batch = TokenBatch(random_ids(5, 12))
    (whole,) = measure_tokens(located, batch, tuple(QUANTITIES))
    parts = list(measure_tokens(located, batch, tuple(QUANTITIES), state_bytes=1))
    assert len(parts) == 5
    for name in whole.values:
        joined = torch.cat([part.values[name] for part in parts], dim=1)
        torch.testing.assert_close(joined, whole.values[name], rtol=1e-5, atol=2e-6)
    assert torch.equal(torch.cat([part.rows for part in parts]), whole.rows)


def live_bytes() -> int:
    """Of every tensor that Python holds."""
    gc.collect()
    return sum(kept.nbytes for kept in gc.get_objects() if issubclass(type(kept), Tensor))


def test_memory_does_not_grow_with_the_tokens() -> None:
    """200 batches against 20: what is held grows under 5 %; holding on to the values would be seen."""
    located = locate(make_model("gpt2"))

    def held_after(num_batches: int, keep: list[TokenQuantities] | None = None) -> int:
        before, profile = live_bytes(), Profile(16)
        for seed in range(num_batches):
            for tokens in measure_tokens(located, TokenBatch(random_ids(2, 16, seed)), names_of("local")):
                profile.add(tokens)
                if keep is not None:
                    keep.append(tokens)
        return live_bytes() - before

    few, many = held_after(20), held_after(200)
    assert 0 < many < 1.05 * few
    assert held_after(200, []) > 1.05 * few


def test_a_state_of_zeros_has_no_relative_update() -> None:
    """Infinity would be the mean of all other tokens too."""
    model = make_model("llama")
    with torch.no_grad():
        model.get_input_embeddings().weight[5] = 0.0
    ids = random_ids(1, 8)
    ids[0, 2] = 5
    (found,) = measure_tokens(locate(model), TokenBatch(ids), names_of("local"))
    for name in ("relative_update_norm", "state_angle", "block_influence"):
        assert found.values[name][0].isnan().tolist() == [position == 2 for position in range(7)], name
    profile = Profile(8)
    profile.add(found)
    summary = profile.to_dict()["relative_update_norm"]
    assert summary["num_undefined"][0] == 1
    assert summary["maximum"][0] < 1e6


# -- texts to rows -----------------------------------------------------------------------------------------


def rows_of(texts: list[str], bos: str = "never", **options: int) -> tuple[list[list[int]], RowCounts]:
    tokenizer = byte_tokenizer()
    tokenizer.bos_token = "<|endoftext|>"
    counts = RowCounts()
    settings = {"context_length": 16, "batch_tokens": 64, **options}
    special = special_tokens(tokenizer, bos)  # type: ignore[arg-type]
    found: dict[int, list[int]] = {}
    for rows in document_batches(tokenizer, texts, special, counts=counts, **settings):  # type: ignore[arg-type]
        for row, document in enumerate(rows.documents.tolist()):
            found[document] = rows.batch.input_ids[row][rows.batch.real[row]].tolist()
    return [found[index] for index in sorted(found)], counts


def test_every_document_is_a_row_and_holds_the_whole_text() -> None:
    texts = ["alpha beta", "x", "gamma <|endoftext|> delta", "", "ab"]
    rows, counts = rows_of(texts, context_length=64)
    assert [bytes(row).decode() for row in rows] == ["alpha beta", "gamma <|endoftext|> delta", "ab"]
    assert (counts.documents, counts.one_token, counts.empty, counts.bos) == (3, 1, 1, 0)
    assert counts.tokens == sum(len(row) - 1 for row in rows)


def test_bos_is_put_once_and_counted_even_where_the_text_names_it() -> None:
    rows, counts = rows_of(["<|endoftext|>ab", "c"], bos="always", context_length=64)
    assert [row.count(256) for row in rows] == [1, 1]
    assert [row[0] for row in rows] == [256, 256]
    assert bytes(rows[0][1:]).decode() == "<|endoftext|>ab"
    assert (counts.bos, counts.documents, counts.one_token) == (2, 2, 0)
    assert rows_of(["ab"], bos="auto")[1].bos == 0


def test_asking_for_a_bos_that_is_not_there_is_refused_and_pads_are_found() -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer().backend_tokenizer)
    with pytest.raises(ProbingError, match="no beginning-of-sequence token; use --bos never"):
        special_tokens(tokenizer, "always")
    found = special_tokens(tokenizer, "auto")
    assert (found.bos, found.pad, found.pad_source) == (None, 0, "token 0")
    assert special_tokens(byte_tokenizer(), "never").pad_source in ("pad token", "end-of-text token")


def test_limits_are_met_exactly() -> None:
    texts = ["abcdefghij" for _ in range(9)]
    assert rows_of(texts, max_tokens=20)[1].tokens == 20
    assert rows_of(texts, max_documents=4)[1].documents == 4
    rows, counts = rows_of(["a" * 40], context_length=8)
    assert (len(rows[0]), counts.cut) == (8, 1)
    with pytest.raises(ProbingError, match=r"no document of at least two tokens \(1 of one token, 1 empty\)"):
        rows_of(["a", ""])


# -- what is kept ----------------------------------------------------------------------------------------


def test_single_tokens_go_to_parquet_in_chunks(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    located = locate(make_model("gpt2"))
    names, kept = ("state_angle", "logit_lens_loss"), []
    with TokenFile(tmp_path / "tokens.parquet", names) as file:
        for number, wanted in enumerate((names, names[:1])):
            for tokens in measure_tokens(located, TokenBatch(random_ids(2, 6, number)), wanted):
                file.add(tokens, torch.tensor([10 * number, 10 * number + 1]))
                kept.append(tokens)
        assert not (tmp_path / "tokens.parquet").exists()
    table = parquet.read_table(tmp_path / "tokens.parquet")
    assert table.num_rows == 20
    assert table["document"].to_pylist() == [0] * 5 + [1] * 5 + [10] * 5 + [11] * 5
    angles = torch.tensor(table["state_angle"].to_pylist()).T
    torch.testing.assert_close(angles, torch.cat([tokens.values["state_angle"] for tokens in kept], dim=1))
    assert table["logit_lens_loss"].null_count == 10
    with pytest.raises(RuntimeError), TokenFile(tmp_path / "broken.parquet", names):
        raise RuntimeError
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tokens.parquet"]


def test_position_ranges_cover_every_position_once() -> None:
    for length in (1, 3, 4, 5, 63, 64, 1000):
        covered = [p for first, last in position_ranges(length) for p in range(first, last + 1)]
        assert covered == list(range(length))


def test_checkpoints_that_share_a_matrix_are_flagged() -> None:
    def made(name: str, **hashes: str) -> RevisionWeights:
        return RevisionWeights(name, step_of(name), hashes, "|".join(hashes.values()))

    frozen = {"frozen": "f"}
    series = [
        made("step1", a="1", b="9", **frozen),
        made("step2", a="2", b="2", **frozen),
        made("step1000", a="3", b="9", **frozen),
    ]
    assert repeated_weights(series) == {"step1": ["step1000"], "step1000": ["step1"]}
    assert repeated_weights(series[1:]) == {}
    assert repeated_weights([series[0], made("main", a="1", b="9", **frozen)]) == {"step1": ["main"], "main": ["step1"]}
    assert repeated_weights(series[:1]) == {}


def test_zero_vectors_are_counted_and_left_out() -> None:
    tokens = TokenQuantities(
        {"state_angle": torch.tensor([[1.0, float("nan"), 2.0]])}, torch.zeros(3).long(), torch.arange(3), torch.ones(3)
    )
    profile = Profile(4)
    profile.add(tokens)
    found = profile.to_dict()["state_angle"]
    assert (found["mean"], found["num_undefined"]) == ([1.5], [1])
    assert json.loads(json.dumps(found))["num_tokens"] == 2
