"""Rows of mini-batches on a device that keeps some; here the device is the CPU."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from retexo_fl.additions.devices.sampling import feature_cache
from retexo_fl.additions.devices.sampling.adjacency import Adjacency
from retexo_fl.additions.devices.sampling.base import Sampler
from retexo_fl.additions.devices.sampling.features import FeatureStore
from retexo_fl.additions.devices.sampling.gns import GnsSampler
from retexo_fl.additions.devices.sampling.neighbour import NeighbourSampler
from retexo_fl.additions.devices.training import device_rows
from retexo_fl.additions.devices.training.device_rows import CacheChoice, DeviceRows
from retexo_fl.additions.devices.training.sampled import SampledBatch, SampledModel, SampledSums
from retexo_fl.additions.devices.training.sampled_task import (
    ROUND,
    STEP,
    SampledSettings,
    SampledTask,
)
from retexo_fl.additions.devices.training.sampler_choice import SamplerChoice
from retexo_fl.additions.devices.workers.share_runner import ShareRunner
from retexo_fl.additions.devices.workers.task import Share
from retexo_fl.config import make_config
from retexo_fl.errors import DeviceFailed
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.training.recipe import objective_of
from tests.support.sampled import SmallClient, small_client

NODES, EPOCHS, BATCHES, ROW_BYTES = 200, 4, 5, 3 * 4
CPU = torch.device("cpu")
DRAWS = np.random.default_rng(3)
FEATURES = DRAWS.normal(size=(NODES, 3)).astype(np.float32)
EDGES = DRAWS.integers(0, NODES, (2, 2000))
ADJACENCY = Adjacency.from_edges(*EDGES, num_nodes=NODES)
NEIGHBOUR = NeighbourSampler(ADJACENCY, (3, 2), seed=1)


def gns(cache_epochs: int = 1) -> GnsSampler:
    return GnsSampler(ADJACENCY, (3, 2), seed=1, cache_share=0.2, cache_epochs=cache_epochs)


def rows_of(
    sampler: Sampler, policy: str = "degree", sharers: int = 1
) -> tuple[DeviceRows, FeatureStore]:
    store = FeatureStore(FEATURES)
    choice = CacheChoice(policy=policy, sharers=sharers)
    return DeviceRows(store, CPU, sampler, choice), store


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let caches of this process hold so many rows."""

    def leave(rows: int) -> None:
        monkeypatch.setattr(device_rows, "budget_bytes", lambda device: rows * ROW_BYTES)

    return leave


CASES = {"lru": (NEIGHBOUR, "lru"), "degree": (NEIGHBOUR, "degree"), "gns": (gns(), "degree")}


@pytest.mark.parametrize(("sampler", "policy"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("places", [0, 17, NODES])
@pytest.mark.each_choice
def test_rows_are_those_of_the_nodes_that_a_mini_batch_reads(
    sampler: Sampler, policy: str, places: int, room: Callable[[int], None]
) -> None:
    room(places)
    rows, _ = rows_of(sampler, policy)
    for epoch in range(EPOCHS):
        for batch in range(BATCHES):
            roots = np.arange(batch, NODES, BATCHES)
            nodes = sampler.sample(roots, epoch=epoch, batch=batch).nodes
            np.testing.assert_array_equal(rows.of(nodes, epoch).rows.numpy(), FEATURES[nodes])
    assert (rows.counts.hits > 0) == (places > 0)


@pytest.mark.parametrize("cache_epochs", [1, 2])
def test_cache_of_gns_is_that_of_the_epoch(cache_epochs: int) -> None:
    sampler = gns(cache_epochs)
    rows, store = rows_of(sampler)
    before = np.empty(0, np.int64)
    for epoch in range(EPOCHS):
        cached = sampler.cached_nodes(epoch)
        assert epoch % cache_epochs or not np.array_equal(cached, before)
        others = np.setdiff1d(np.arange(NODES), cached)
        hits, misses, read = rows.counts.hits, rows.counts.misses, store.rows_read
        rows.of(np.arange(NODES), epoch)
        assert rows.counts.hits - hits == len(cached)
        assert rows.counts.misses - misses == len(others)
        # What the last epoch's cache held already is not copied again.
        assert store.rows_read - read == len(others) + len(np.setdiff1d(cached, before))
        before = cached


def test_cache_of_gns_is_as_large_as_its_draws() -> None:
    sampler = gns()
    rows, _ = rows_of(sampler)
    sizes = [len(sampler.cached_nodes(epoch)) for epoch in range(100)]
    assert max(sizes) <= rows.capacity < 2 * np.mean(sizes)


def test_rows_of_the_largest_degree_stay(room: Callable[[int], None]) -> None:
    room(40)
    rows, store = rows_of(NEIGHBOUR)
    degrees = np.bincount(ADJACENCY.indices, minlength=NODES)
    largest = np.argsort(-degrees, kind="stable")[:40]
    found = [rows.of(largest, 0) for _ in range(2)]
    assert (rows.counts.hits, store.rows_read) == (80, 40)
    found.append(rows.of(np.setdiff1d(np.arange(NODES), largest), 1))
    assert (rows.counts.hits, store.rows_read) == (80, NODES)
    # What fills the cache is copied for who comes first.
    others = (NODES - 40) * ROW_BYTES
    assert [one.hits for one in found] == [40, 40, 0]
    assert [one.copied_bytes for one in found] == [40 * ROW_BYTES, 0, others]


def test_tasks_of_a_process_share_what_was_free_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    free = [2 * NODES * ROW_BYTES]
    monkeypatch.setattr(feature_cache, "_budgets", {})
    monkeypatch.setattr(feature_cache, "free_bytes", lambda device: free[0])
    # Half of what is free for all caches: a quarter of the nodes for each of four.
    first, _ = rows_of(NEIGHBOUR, sharers=4)
    free[0] //= 8
    others = [rows_of(NEIGHBOUR, "lru", sharers=4)[0] for _ in range(3)]
    assert [rows.capacity for rows in (first, *others)] == [NODES // 4] * 4


# ---- short of memory -----------------------------------------------------------------------------


@pytest.mark.parametrize(("sampler", "policy"), CASES.values(), ids=CASES)
def test_a_smaller_cache_brings_the_same_rows(
    sampler: Sampler, policy: str, room: Callable[[int], None]
) -> None:
    room(10)
    rows, _ = rows_of(sampler, policy)
    nodes = DRAWS.permutation(NODES)[:50]
    said: list[str] = []
    for _ in range(10):
        np.testing.assert_array_equal(rows.of(nodes, 0).rows.numpy(), FEATURES[nodes])
        if not rows.retreat():
            break
        said.extend(rows.notes())
    assert said == [
        f"out of memory; the feature cache holds {now} instead of {before}"
        for before, now in [(10, "5 rows"), (5, "2 rows"), (2, "1 row"), (1, "0 rows")]
    ]


def test_a_table_that_finds_no_memory_is_made_smaller(
    monkeypatch: pytest.MonkeyPatch, room: Callable[[int], None]
) -> None:
    room(NODES)
    empty = torch.empty

    def scarce(size: tuple[int, int], **keys: object) -> torch.Tensor:
        if size[0] > 60:
            raise torch.OutOfMemoryError("tried to allocate too much")
        return empty(size, **keys)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(torch, "empty", scarce)
    rows, _ = rows_of(NEIGHBOUR, "lru")
    assert rows.capacity == 50
    assert rows.notes() == ("out of memory; the feature cache holds 50 rows instead of 200",)


@pytest.mark.parametrize(("sampler", "policy"), CASES.values(), ids=CASES)
def test_rows_that_never_came_are_not_taken_for_kept(
    sampler: Sampler, policy: str, monkeypatch: pytest.MonkeyPatch, room: Callable[[int], None]
) -> None:
    """Another thread may ask before the one that found no memory has made room."""
    room(50)
    rows, store = rows_of(sampler, policy)
    nodes = np.arange(40)

    def no_memory(ids: np.ndarray, out: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("tried to allocate too much")

    with monkeypatch.context() as patch:
        patch.setattr(store, "gather", no_memory)
        with pytest.raises(torch.OutOfMemoryError):
            rows.of(nodes, 0)
    for _ in range(2):
        np.testing.assert_array_equal(rows.of(nodes, 0).rows.numpy(), FEATURES[nodes])
    assert rows.capacity > 0


class ShortOfMemory(SampledModel):
    """Finds no memory a number of times, and names the rows that a device kept then."""

    failures = 0

    def sums(
        self, weights: torch.Tensor, batch: SampledBatch, dropout: KeyedDropout
    ) -> SampledSums:
        if self.failures:
            self.failures -= 1
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 3 GiB")
        return super().sums(weights, batch, dropout)


def task_of(made: SmallClient, sampler: Sampler) -> tuple[SampledTask, ShortOfMemory]:
    model = ShortOfMemory(made.shape, hashes=made.inputs.own_hashes, labels=made.nodes.labels)
    store = FeatureStore(made.rows)
    choice = SamplerChoice(
        kind="neighbour", fanouts=(3, 2), layers=2, seed=1, cache_share=0.1, cache_epochs=1
    )
    cache = CacheChoice(policy="lru")
    settings = SampledSettings(
        shape=made.shape,
        choice=choice,
        objective=objective_of(make_config({})),
        dropout=0.3,
        seed=0,
        buffers=1,
        cache=cache,
    )
    return SampledTask(sampler, model, DeviceRows(store, CPU, sampler, cache), settings), model


def share_of(made: SmallClient, batch: int) -> Share:
    numbers = {ROUND: 1, STEP: batch}
    return Share(epoch=0, batch=batch, items=made.nodes.train[batch::7], numbers=numbers)


def test_a_mini_batch_short_of_memory_keeps_fewer_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = small_client("sage", layers=2)
    monkeypatch.setattr(device_rows, "budget_bytes", lambda device: 4 * made.rows[0].nbytes)
    sampler = NeighbourSampler(made.adjacency, (3, 2), seed=1)
    task, model = task_of(made, sampler)
    weights = torch.from_numpy(made.weights())
    prepared = task.prepare(share_of(made, 0))
    expected = task.sums(weights, prepared)
    assert expected.notes == ()
    model.failures = 2
    found = task.sums(weights, prepared)
    assert expected.gradient_sum is not None
    assert found.gradient_sum is not None
    assert torch.equal(found.gradient_sum, expected.gradient_sum)
    assert [note.split("holds ")[1] for note in found.notes] == [
        "2 rows instead of 4",
        "1 row instead of 2",
    ]
    assert task.sums(weights, prepared).notes == ()
    model.failures = 9
    with pytest.raises(
        DeviceFailed, match=r"^out of memory for a mini-batch.*; expected .*batch-nodes"
    ):
        task.sums(weights, prepared)


# ---- several threads -----------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", [NEIGHBOUR, gns()], ids=["neighbour", "gns"])
def test_several_threads_get_rows_at_once(sampler: Sampler, room: Callable[[int], None]) -> None:
    room(30)
    rows, _ = rows_of(sampler, "lru")
    together = threading.Barrier(4)

    def ask(seed: int) -> None:
        draws = np.random.default_rng(seed)
        together.wait(10)
        for epoch in range(20):
            nodes = draws.integers(0, NODES, 60)
            np.testing.assert_array_equal(rows.of(nodes, epoch % 2).rows.numpy(), FEATURES[nodes])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(ask, range(4)))


def test_what_several_threads_prepare_has_the_bits_of_one() -> None:
    made = small_client("sage", layers=2)
    sampler = NeighbourSampler(made.adjacency, (3, 2), seed=1)
    weights = torch.from_numpy(made.weights())
    shares = [share_of(made, batch) for batch in range(7)]
    gradients = []
    for ahead, preparers in [(0, 1), (3, 3)]:
        task, _ = task_of(made, sampler)
        runner = ShareRunner(task, CPU, ahead=ahead, preparers=preparers)
        runner.announce(0, shares)
        sums = torch.zeros_like(weights)
        found = []
        for _ in shares:
            runner.run(0, weights, sums)
            found.append(sums.clone())
        runner.close()
        gradients.append(torch.stack(found))
    assert torch.equal(*gradients)
