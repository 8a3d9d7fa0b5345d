from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.layers.sparse import SparseRows


def hashes(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**63, count).astype(np.uint64)


def mask(dropout: KeyedDropout, rows: int = 4000, columns: int = 64) -> np.ndarray:
    kept = dropout.dense(torch.ones(rows, columns), hashes(rows))
    return kept.numpy() > 0


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dense_drops_rate_in_all_and_in_each_column_and_row(rate: float) -> None:
    kept = mask(KeyedDropout(rate=rate, seed=1, stage=0, round=1))
    # Five standard errors of a binomial share.
    for share, count in (
        (kept.mean(), kept.size),
        (kept.mean(axis=0), kept.shape[0]),
        (kept.mean(axis=1), kept.shape[1]),
    ):
        error = 5 * np.sqrt(rate * (1 - rate) / count)
        assert np.abs(share - (1 - rate)).max() < error


def test_dense_columns_and_rounds_are_uncorrelated() -> None:
    one = mask(KeyedDropout(rate=0.5, seed=1, stage=0, round=1)).astype(float)
    other = mask(KeyedDropout(rate=0.5, seed=1, stage=0, round=2)).astype(float)
    columns = np.corrcoef(np.hstack([one, other]).T) - np.eye(128)
    assert np.abs(columns).max() < 6 / np.sqrt(len(one))


@pytest.mark.parametrize("changed", [{"seed": 2}, {"stage": 1}, {"round": 2}, {"step": 1}], ids=str)
def test_dense_changes_with_every_part_of_its_key(changed: dict[str, int]) -> None:
    key = {"seed": 1, "stage": 0, "round": 1, "step": 0}
    one = mask(KeyedDropout(rate=0.5, **key))
    other = mask(KeyedDropout(rate=0.5, **{**key, **changed}))
    assert 0.45 < (one != other).mean() < 0.55


def test_dense_depends_on_nodes_not_on_their_order() -> None:
    dropout = KeyedDropout(rate=0.4, seed=1, stage=0, round=1)
    rows, keys = torch.rand(50, 9), hashes(50)
    order = np.random.default_rng(1).permutation(50)
    whole = dropout.dense(rows, keys)
    torch.testing.assert_close(
        dropout.dense(rows[torch.from_numpy(order)], keys[order]),
        whole[torch.from_numpy(order)],
        rtol=0,
        atol=0,
    )


def test_dense_scales_what_it_keeps() -> None:
    kept = KeyedDropout(rate=0.75, seed=1, stage=0, round=1).dense(torch.ones(9, 9), hashes(9))
    assert set(kept.flatten().tolist()) == {0.0, 4.0}


def test_sparse_drops_the_entries_that_dense_drops() -> None:
    dense = torch.rand(30, 11) * (torch.rand(30, 11) < 0.3)
    rows = SparseRows.from_scipy(csr_array(dense.numpy()), torch.float32)
    dropout, keys = KeyedDropout(rate=0.5, seed=1, stage=2, round=7), hashes(30)
    result = torch.zeros(30, 11)
    result[rows.pattern.rows, rows.pattern.columns] = dropout.sparse(rows, keys)
    torch.testing.assert_close(result, dropout.dense(dense, keys), rtol=0, atol=0)
    # Other devices draw the same mask where the rows are.
    factors = dropout.sparse_factors_on_device(rows, keys)
    torch.testing.assert_close(factors * rows.values, dropout.sparse(rows, keys), rtol=0, atol=0)


def test_attention_tells_source_from_target() -> None:
    dropout = KeyedDropout(rate=0.5, seed=1, stage=0, round=1)
    one, other = hashes(3000, 1), hashes(3000, 2)
    there = dropout.attention(torch.ones(3000, 4), one, other)
    back = dropout.attention(torch.ones(3000, 4), other, one)
    assert 0.45 < (there != back).float().mean() < 0.55


def test_masks_are_those_that_were_recorded() -> None:
    """Clients of any version drop the same values; one bit each, the first first."""
    dropout = KeyedDropout(rate=0.5, seed=1, stage=2, round=3, step=4)
    dense = dropout.dense(torch.ones(4, 16), np.arange(4, dtype=np.uint64)) > 0
    ends = np.arange(32, dtype=np.uint64)
    attention = dropout.attention(torch.ones(32, 2), ends, ends[::-1]) > 0
    found = [np.packbits(mask.numpy()).tobytes().hex() for mask in (dense, attention)]
    assert found == ["420c68425e41dce3", "eaa260797c007ffa"]


def test_rate_zero_changes_nothing() -> None:
    rows = torch.rand(5, 3)
    assert KeyedDropout(rate=0.0, seed=1, stage=0, round=1).dense(rows, hashes(5)) is rows
