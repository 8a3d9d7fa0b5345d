from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import retexo_fl.additions.devices.sampling.workloads
from retexo_fl.additions.devices.sampling import (
    Adjacency,
    FullSampler,
    NeighbourSampler,
    Sample,
    Sampler,
    ShadowSampler,
    root_workloads,
)
from retexo_fl.errors import ConfigurationError, DatasetError
from tests.support.sampler_contract import random_adjacency

ROOTS = np.array([4, 17, 33, 2, 50])


class CountedCalls:
    """A sampler without a count of its own; remembers how often it was asked."""

    num_layers = 2

    def __init__(self, adjacency: Adjacency | None = None, *, seed: int = 0) -> None:
        self.adjacency = adjacency or random_adjacency()
        self._inner = NeighbourSampler(self.adjacency, (4, 3), seed=seed)
        self.spec = self._inner.spec
        self.calls = 0

    def sample(self, roots: np.ndarray, *, epoch: int, batch: int) -> Sample:
        self.calls += 1
        return self._inner.sample(roots, epoch=epoch, batch=batch)


def test_sampler_without_a_count_is_asked_for_each_root_alone() -> None:
    sampler = CountedCalls()
    counting = NeighbourSampler(random_adjacency(), (4, 3), seed=0)
    found = root_workloads(sampler, ROOTS, cache=None)
    assert found.dtype == np.float64
    assert sampler.calls == len(ROOTS)
    np.testing.assert_array_equal(found, root_workloads(counting, ROOTS, cache=None))


def test_full_neighbourhood_costs_the_edges_of_every_layer() -> None:
    # 0 <- 1 <- 2 <- 3: one edge for each target of each layer.
    chain = Adjacency.from_edges(np.array([1, 2, 3]), np.array([0, 1, 2]), num_nodes=4)
    found = root_workloads(FullSampler(chain, 2), np.array([0, 2, 3]), cache=None)
    assert found.tolist() == [1 + 2, 1 + 1, 0]


def test_shadow_costs_the_edges_of_the_scope_in_every_layer() -> None:
    square = Adjacency.from_edges(np.array([1, 0, 2]), np.array([0, 1, 0]), num_nodes=3)
    found = root_workloads(ShadowSampler(square, (2,), 5, seed=0), np.array([0, 2]), cache=None)
    assert found.tolist() == [15, 0]


def test_result_is_found_again(tmp_path: Path) -> None:
    sampler, again = CountedCalls(), CountedCalls()
    first = root_workloads(sampler, ROOTS, cache=tmp_path / "new")
    second = root_workloads(again, ROOTS, cache=tmp_path / "new")
    np.testing.assert_array_equal(first, second)
    assert again.calls == 0
    (file,) = (tmp_path / "new").iterdir()
    np.testing.assert_array_equal(np.load(file), first)


def test_another_sampler_graph_or_root_has_another_file(tmp_path: Path) -> None:
    samplers: list[tuple[Sampler, np.ndarray]] = [
        (CountedCalls(), ROOTS),
        (CountedCalls(seed=1), ROOTS),
        (CountedCalls(random_adjacency(seed=1)), ROOTS),
        (CountedCalls(), ROOTS[::-1]),
        (CountedCalls(), ROOTS[:4]),
        (FullSampler(random_adjacency(), 2), ROOTS),
    ]
    for number, (sampler, roots) in enumerate(samplers, 1):
        found = root_workloads(sampler, roots, cache=tmp_path)
        np.testing.assert_array_equal(found, root_workloads(sampler, roots, cache=None))
        assert len(list(tmp_path.iterdir())) == number


@pytest.mark.parametrize("damage", ["cut", "empty", "bit", "other array", "text"])
def test_damaged_file_is_made_again(tmp_path: Path, damage: str) -> None:
    expected = root_workloads(CountedCalls(), ROOTS, cache=tmp_path)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[-40] ^= 1
    if damage == "other array":
        retexo_fl.additions.devices.sampling.workloads._write(file, np.zeros(3))
    else:
        damaged = {"cut": whole[:-9], "empty": b"", "bit": bytes(flipped), "text": b"x" * 300}
        file.write_bytes(damaged[damage])
    sampler = CountedCalls()
    np.testing.assert_array_equal(root_workloads(sampler, ROOTS, cache=tmp_path), expected)
    assert sampler.calls == len(ROOTS)
    assert file.read_bytes() == whole


def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigurationError, match="workloads: .*cannot be written"):
        root_workloads(CountedCalls(), ROOTS, cache=tmp_path / "file" / "below")


def test_root_given_twice_is_refused() -> None:
    with pytest.raises(DatasetError, match="roots: 4 is given twice"):
        root_workloads(CountedCalls(), np.array([4, 4]), cache=None)


def test_many_roots_are_counted_in_several_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = ShadowSampler(random_adjacency(), (3, 2), 2, seed=0)
    at_once = root_workloads(sampler, np.arange(40), cache=None)
    monkeypatch.setattr(retexo_fl.additions.devices.sampling.workloads, "_AT_ONCE", 7)
    np.testing.assert_array_equal(root_workloads(sampler, np.arange(40), cache=None), at_once)
