"""What a client's devices have read by caches, by round and by device, against counts by hand."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from retexo_fl.additions.devices.sampling.base import Sampler
from retexo_fl.additions.devices.sampling.features import FeatureStore
from retexo_fl.additions.devices.sampling.gns import GnsSampler
from retexo_fl.additions.devices.training import device_rows, sampled_task
from retexo_fl.additions.devices.training.cache_counts import CacheCounter, counts_as_numbers
from retexo_fl.additions.devices.training.client_devices import ClientDevices
from retexo_fl.additions.devices.training.device_rows import CacheChoice, DeviceRows, ReadRows
from retexo_fl.additions.devices.training.sampled_trainer import SampledTrainer
from retexo_fl.run_log.cached_rows import CachedRows
from retexo_fl.training.rounds import run_alone
from tests.support.sampled import SmallClient, small_client
from tests.unit.additions.devices.training.test_sampled_trainer import trainer

pytestmark = pytest.mark.usefixtures("forked_workers")

CPU = torch.device("cpu")
PLACES = 7

client = cache(small_client)


def reached(made: SmallClient, roots: np.ndarray, hops: int) -> int:
    """Count the nodes from which some root hears over so many edges."""
    adjacency = made.adjacency
    hears = np.eye(adjacency.num_nodes, dtype=bool)
    targets = np.repeat(np.arange(adjacency.num_nodes), np.diff(adjacency.indptr))
    hears[targets, adjacency.indices] = True
    found = np.isin(np.arange(adjacency.num_nodes), roots)
    for _ in range(hops):
        found = hears[found].sum(axis=0) > 0
    return int(found.sum())


def counted(of: SampledTrainer, made: SmallClient, number: int) -> tuple[int, ...]:
    return run_alone(of.update_steps(made.weights(), round_number=number, dropout=0.3)).cached


def test_a_cache_by_degree_hits_its_rows_in_every_mini_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mini-batch of all train nodes reads all nodes; the largest degrees are among them."""
    made = client("gcn")
    row_bytes, nodes = made.rows[0].nbytes, made.adjacency.num_nodes
    monkeypatch.setattr(device_rows, "budget_bytes", lambda device: PLACES * row_bytes)

    def cached(store: FeatureStore, sampler: Sampler, buffers: int) -> DeviceRows:
        return DeviceRows(store, CPU, sampler, CacheChoice(policy="degree"))

    monkeypatch.setattr(sampled_task, "_HostRows", cached)
    assert reached(made, made.nodes.train, 3) == nodes
    of = trainer(made, ClientDevices("cpu", threads=1), sampler="full", batch_nodes=nodes)
    missed = (nodes - PLACES) * row_bytes
    for number in (1, 2, 3):
        copied = missed + (number == 1) * PLACES * row_bytes
        assert counted(of, made, number) == (1, PLACES, nodes - PLACES, 0, copied)


def test_a_cpu_hits_who_is_in_the_cache_of_the_epoch_and_copies_all() -> None:
    made = client("gcn")
    nodes = np.arange(made.adjacency.num_nodes)
    sampler = GnsSampler(made.adjacency, (3, 2), seed=1, cache_share=0.3)
    rows = sampled_task._HostRows(FeatureStore(made.rows), sampler, 2)
    caches = [sampler.cached_nodes(epoch) for epoch in range(4)]
    assert len({cached.tobytes() for cached in caches}) == len(caches)
    for epoch, cached in enumerate(caches):
        found = rows.of(nodes, epoch)
        assert (found.hits, found.copied_bytes) == (len(cached), made.rows.nbytes)
        assert rows.of(np.setdiff1d(nodes, cached), epoch).hits == 0


@pytest.mark.parametrize("steps", [1, 3])
def test_without_a_cache_nothing_is_counted(steps: int, caplog: pytest.LogCaptureFixture) -> None:
    made = client("gcn")
    of = trainer(made, ClientDevices("cpu", threads=1), sampler="neighbour", steps=steps)
    with caplog.at_level(logging.INFO):
        assert counted(of, made, 1) == ()
        of.close()
    assert not [text for text in caplog.messages if text.startswith("cache ")]


@pytest.mark.parametrize("devices", ["cpu", "cpu:2"])
def test_workers_count_what_they_read_each(
    devices: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    made, used = client("gcn"), ClientDevices(devices, threads=1)
    of = trainer(made, used, sampler="gns", steps=3, workloads=tmp_path)
    try:
        with caplog.at_level(logging.INFO):
            rounds = [CachedRows.of(counted(of, made, number)) for number in (1, 2)]
            of.close()
    finally:
        used.close()
    row_bytes = made.rows[0].nbytes
    for found in rounds:
        assert found.batches == 3
        assert 0 < found.hits < found.rows
        assert (found.gpu_bytes, found.cpu_bytes) == (0, found.rows * row_bytes)
    total = rounds[0] + rounds[1]
    (line,) = [text for text in caplog.messages if text.startswith("cache ")]
    assert line == (
        f"cache client=3 device=cpu batches=6 rows={total.rows} hits={total.hits} "
        f"misses={total.misses} copied_bytes={total.cpu_bytes}"
    )


def test_what_goes_to_a_gpu_is_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    rows = torch.empty(5, 2, device="meta")
    gpu = counts_as_numbers(ReadRows(rows=rows, hits=3, copied_bytes=16))
    assert gpu == {"hits meta": 3.0, "misses meta": 2.0, "copied_bytes meta": 16.0}
    cpu = counts_as_numbers(ReadRows(rows=torch.empty(2, 2), hits=1, copied_bytes=8))
    assert counts_as_numbers(ReadRows(rows=rows)) == {}
    counter = CacheCounter(4)
    counter.add({"loss_sum": 1.0})
    assert counter.taken() == ()
    counter.add({"loss_sum": 1.0, **gpu, **cpu})
    counter.add(gpu)
    assert counter.taken() == (2, 7, 5, 32, 8)
    assert counter.taken() == ()
    with caplog.at_level(logging.INFO):
        counter.log()
        counter.log()
    assert caplog.messages == [
        "cache client=4 device=cpu batches=1 rows=2 hits=1 misses=1 copied_bytes=8",
        "cache client=4 device=meta batches=2 rows=10 hits=6 misses=4 copied_bytes=32",
    ]
