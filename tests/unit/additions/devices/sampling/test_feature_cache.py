from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retexo_fl.additions.devices.sampling.feature_cache import (
    CachePolicy,
    FeatureCache,
    FixedOrder,
    by_degree,
    rows_that_fit,
)
from retexo_fl.additions.devices.sampling.features import FeatureStore
from retexo_fl.additions.devices.sampling.lru import LruOrder

NUM_NODES, WIDTH = 30, 3
CPU = torch.device("cpu")
DEVICES = [
    CPU,
    pytest.param(torch.device("cuda"), marks=pytest.mark.gpu),
]
FEATURES = np.random.default_rng(4).normal(size=(NUM_NODES, WIDTH)).astype(np.float32)


def cache(policy: CachePolicy, device: torch.device = CPU) -> tuple[FeatureCache, FeatureStore]:
    store = FeatureStore(FEATURES)
    return FeatureCache(store, device, policy), store


ids_lists = st.lists(st.lists(st.integers(0, NUM_NODES - 1), max_size=40), max_size=8)


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=100, deadline=None)
@given(capacity=st.integers(0, NUM_NODES), asked=ids_lists)
def test_rows_are_those_of_the_store_and_misses_are_read_there(
    device: torch.device, capacity: int, asked: list[list[int]]
) -> None:
    found, store = cache(LruOrder(NUM_NODES, capacity), device)
    for ids in asked:
        rows = found.rows(np.array(ids, np.int64))
        assert rows.device.type == device.type
        np.testing.assert_array_equal(rows.cpu().numpy(), FEATURES[ids])
    assert found.counts.misses == store.rows_read
    assert found.counts.hits + found.counts.misses == sum(map(len, asked))
    assert found.counts.bytes_copied == store.bytes_read


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=100, deadline=None)
@given(
    capacity=st.integers(0, NUM_NODES),
    fills=st.lists(st.lists(st.integers(0, NUM_NODES - 1), unique=True), max_size=6),
    ids=st.lists(st.integers(0, NUM_NODES - 1)),
)
def test_filled_cache_holds_what_it_was_given_last(
    device: torch.device, capacity: int, fills: list[list[int]], ids: list[int]
) -> None:
    found, store = cache(FixedOrder(NUM_NODES, capacity), device)
    kept: set[int] = set()
    copied = 0
    for fill in fills:
        found.fill(np.array(fill, np.int64))
        now = set(fill[:capacity])
        copied += len(now - kept)
        kept = now
    assert found.counts.refreshed == copied == store.rows_read
    rows = found.rows(np.array(ids, np.int64))
    np.testing.assert_array_equal(rows.cpu().numpy(), FEATURES[ids])
    assert found.counts.hits == sum(node in kept for node in ids)
    assert store.rows_read == copied + found.counts.misses


def test_rows_go_where_the_caller_wants_them() -> None:
    found, _ = cache(LruOrder(NUM_NODES, 5))
    out = torch.empty(4, WIDTH)
    assert found.rows(np.array([1, 2, 3, 1]), out) is out
    np.testing.assert_array_equal(out.numpy(), FEATURES[[1, 2, 3, 1]])


def test_counts_tell_the_share_of_hits_and_the_bytes_copied() -> None:
    found, _ = cache(FixedOrder(NUM_NODES, 10))
    assert found.counts.hit_rate == 0
    found.fill(np.arange(10))
    found.rows(np.array([0, 1, 2, 20]))
    assert found.counts.hit_rate == 0.75
    assert found.counts.bytes_copied == (10 + 1) * WIDTH * 4


def test_static_order_prefers_large_degrees_and_small_ids() -> None:
    assert by_degree(np.array([1, 5, 2, 5, 9]), 4).tolist() == [4, 1, 3, 2]


def test_policy_that_chooses_by_itself_cannot_be_filled() -> None:
    found, _ = cache(LruOrder(NUM_NODES, 5))
    with pytest.raises(AssertionError, match="choose their rows themselves"):
        found.fill(np.arange(3))


@pytest.mark.parametrize("device", DEVICES)
def test_size_is_taken_from_the_free_memory(device: torch.device) -> None:
    whole, half = (rows_that_fit(device, 2**20, share=share) for share in (1.0, 0.5))
    assert 0 < half < whole
