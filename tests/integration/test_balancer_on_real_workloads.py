from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from retexo_fl.additions.devices.sampling import (
    Adjacency,
    CountingSampler,
    FullSampler,
    NeighbourSampler,
    ShadowSampler,
    root_workloads,
)
from retexo_fl.additions.devices.workers.balancer import Balancer
from retexo_fl.additions.devices.workers.plan import EpochPlan
from tests.support.data import data_dir
from tests.support.simulated_devices import ShareCost, cost_of, epoch_seconds

pytestmark = pytest.mark.real_graphs

NUM_ROOTS, BATCH_SIZE = 4096, 512
#: An epoch's own draws differ from those that workloads were recorded from.
DRAWS = 2
SPEEDS = [(1, 2), (1, 4), (1, 8), (8, 1)]
Speeds = Callable[[int], Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What roots of a real graph cost a sampler.

    Attributes:
        sampler: That was asked.
        roots: (n,) node ids.
        workloads: (n,) aggregations, as recorded before training.
        costs: (n,) aggregations in epochs to come.
    """

    sampler: FullSampler | NeighbourSampler | ShadowSampler
    roots: np.ndarray
    workloads: np.ndarray
    costs: list[np.ndarray]

    def cost(self, epoch: int) -> ShareCost:
        """Charge each root what it costs in an epoch."""
        return cost_of(self.costs[epoch % DRAWS])

    def cost_together(self, epoch: int) -> ShareCost:
        """Charge a share what its roots cost together: what they share is drawn once."""

        def cost(plan: EpochPlan, batch: int, start: int, stop: int) -> float:
            roots = self.roots[plan.items[start:stop]]
            return self.sampler.sample(roots, epoch=epoch + 1, batch=batch).num_aggregations

        return cost


@pytest.fixture(scope="module")
def adjacency() -> Adjacency:
    with np.load(data_dir() / "fb100_union8.npz", allow_pickle=False) as file:
        (one, other), count = file["edge_index"], len(file["y"])
    sources, targets = np.concatenate([one, other]), np.concatenate([other, one])
    return Adjacency.from_edges(sources, targets, num_nodes=count)


@pytest.fixture(scope="module")
def neighbour(adjacency: Adjacency) -> Recorded:
    return recorded(NeighbourSampler(adjacency, (15, 10, 5), seed=0))


@pytest.fixture(scope="module")
def shadow(adjacency: Adjacency) -> Recorded:
    return recorded(ShadowSampler(adjacency, (10, 5, 3), 5, seed=0))


@pytest.fixture(scope="module")
def full(adjacency: Adjacency) -> Recorded:
    """One layer over all neighbours: roots cost their degrees."""
    return recorded(FullSampler(adjacency, 1))


@pytest.fixture(params=["neighbour", "shadow"])
def work(request: pytest.FixtureRequest) -> Recorded:
    found: Recorded = request.getfixturevalue(request.param)
    return found


def recorded(sampler: FullSampler | NeighbourSampler | ShadowSampler) -> Recorded:
    assert isinstance(sampler, CountingSampler)
    nodes = sampler.adjacency.num_nodes
    roots = np.random.default_rng(0).choice(nodes, NUM_ROOTS, replace=False)
    return Recorded(
        sampler=sampler,
        roots=roots,
        workloads=root_workloads(sampler, roots, cache=None),
        costs=[
            sampler.count_aggregations(roots, epoch=1 + draw, batch=0).astype(np.float64)
            for draw in range(DRAWS)
        ],
    )


def trained(
    balancer: Balancer,
    work: Recorded,
    speeds: Speeds,
    *,
    epochs: int,
    by_number: bool = False,
    cost: Callable[[int], ShareCost] | None = None,
) -> np.ndarray:
    """Return how long each epoch takes on devices of such speeds, over the shortest possible."""
    over_bound = []
    for epoch in range(epochs):
        found = epoch_seconds(
            work.workloads,
            balancer.ratios,
            speeds(epoch),
            epoch=epoch,
            by_number=by_number,
            batch_size=BATCH_SIZE,
            cost=(cost or work.cost)(epoch),
        )
        balancer.observe(epoch, seconds=found.seconds, work=found.work)
        done = np.dot(found.seconds, speeds(epoch))
        over_bound.append(found.makespan_s / (done / sum(speeds(epoch))))
    return np.array(over_bound)


def imbalances(balancer: Balancer) -> np.ndarray:
    """Return, by epoch, the idle part of the device that was done first."""
    return np.array([decision.imbalance for decision in balancer.decisions])


@pytest.mark.parametrize("speeds", SPEEDS, ids=str)
def test_devices_are_even_within_three_epochs(work: Recorded, speeds: tuple[int, int]) -> None:
    balancer = Balancer(2)
    over_bound = trained(balancer, work, lambda epoch: speeds, epochs=8)
    imbalance = imbalances(balancer)
    assert imbalance[0] > 0.3
    assert imbalance[3:].max() < 0.05
    assert over_bound[3:].mean() < 1.1


@pytest.mark.parametrize(
    ("before", "after"), [((1, 2), (1, 8)), ((1, 8), (1, 1)), ((1, 4), (4, 1))], ids=str
)
def test_change_of_speed_in_mid_run_is_followed_in_three_epochs(
    work: Recorded, before: tuple[int, int], after: tuple[int, int]
) -> None:
    balancer = Balancer(2)
    trained(balancer, work, lambda epoch: before if epoch < 5 else after, epochs=12)
    imbalance = imbalances(balancer)
    assert imbalance[3:5].max() < 0.05
    assert imbalance[5] > 0.3
    assert imbalance[8:].max() < 0.05


def test_devices_are_even_when_roots_cost_less_together(
    neighbour: Recorded,
) -> None:
    balancer = Balancer(2)
    trained(balancer, neighbour, lambda epoch: (1, 8), epochs=6, cost=neighbour.cost_together)
    assert imbalances(balancer)[3:].max() < 0.05


@pytest.mark.parametrize("skewed", ["shadow", "full"])
@pytest.mark.parametrize("speeds", SPEEDS, ids=str)
def test_dynamic_cuts_of_skewed_mini_batches_beat_static_ones(
    skewed: str, speeds: tuple[int, int], request: pytest.FixtureRequest
) -> None:
    """The static split knows the speeds from the beginning, but cuts by number."""
    work: Recorded = request.getfixturevalue(skewed)
    assert np.percentile(work.workloads, 95) > 10 * np.percentile(work.workloads, 5)
    static = Balancer(2, mode="static", speeds=speeds)
    fixed = trained(static, work, lambda epoch: speeds, epochs=8, by_number=True)
    followed = trained(Balancer(2), work, lambda epoch: speeds, epochs=8)
    assert followed[3:].mean() < fixed[3:].mean()
