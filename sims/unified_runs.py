"""What ``python -m sims unified`` runs: devices, models, samplers, caches, and their times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Final, NamedTuple

import torch

from retexo_fl.additions.devices.sampling.feature_cache import rows_that_fit
from retexo_fl.additions.devices.training.sampler_choice import SamplerChoice
from retexo_fl.additions.devices.workers.balancer import Balancer
from retexo_fl.additions.devices.workers.pool import WorkerPool
from retexo_fl.device_names import parse_devices
from retexo_fl.training.stage_model import ModelShape
from sims.mini_batch_graphs import MiniBatchGraph
from sims.unified_epochs import Epoch, Rig
from sims.unified_task import CacheChoice, Slowness, UnifiedSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Two devices, the fast one first.

    Attributes:
        label: What they are, in every table and picture.
        text: As ``devices`` of a configuration.
        factors: How many times slower each plays.
        link_bytes_per_s: Of the fast device in the experiments on caches; None is its real one.
        threads: Of each CPU worker; None divides the cores.
    """

    label: str
    text: str
    factors: tuple[float, float]
    link_bytes_per_s: float | None
    threads: int | None

    @property
    def has_gpu(self) -> bool:
        """The fast device is a real GPU."""
        return self.text.startswith("cuda")

    def slowness(self, names: Sequence[str], *, behind_link: bool) -> dict[str, Slowness]:
        """Return how each device is slowed.

        Args:
            names: Of the two.
            behind_link: Feature rows come to the fast one by a slow link.
        """
        link = self.link_bytes_per_s if behind_link else None
        return {
            names[0]: Slowness(factor=self.factors[0], link_bytes_per_s=link),
            names[1]: Slowness(factor=self.factors[1]),
        }


#: Speeds as 1 to 0.4, about those behind the paper's largest speed-up, 1.41. Chosen so slow that
#: two cores hold all threads of both, and that a core's other guests do not show.
HETEROGENEOUS: Final = Devices(
    label="heterogeneous CPU devices",
    text="cpu:2",
    factors=(4.0, 10.0),
    link_bytes_per_s=30e6,
    threads=1,
)
#: The paper's platform 1 is three sevenths of an A100.
WITH_GPU: Final = (
    Devices(
        label="GPU and CPU",
        text="cuda:0,cpu",
        factors=(1.0, 1.0),
        link_bytes_per_s=None,
        threads=None,
    ),
    Devices(
        label="three sevenths of a GPU, and CPU",
        text="cuda:0,cpu",
        factors=(7 / 3, 1.0),
        link_bytes_per_s=None,
        threads=None,
    ),
)


def devices_here() -> tuple[Devices, ...]:
    """Return the devices to measure on this machine."""
    return WITH_GPU if torch.cuda.is_available() else (HETEROGENEOUS,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is run.

    Attributes:
        roots: Of an epoch.
        batch: Roots of a mini-batch.
        shadow_part: Of both, what ShaDow trains, whose scopes are that much larger.
        hidden: Width of the hidden layers.
        repeats: Epochs of each kind that are measured.
        settling: Epochs before, in which the balancer learns.
        cache_roots: Roots of an epoch in the experiments on caches.
    """

    roots: int
    batch: int
    shadow_part: float
    hidden: int
    repeats: int
    settling: int
    cache_roots: int

    def of(self, sampler: str) -> tuple[int, int]:
        """Return how many roots an epoch and a mini-batch of a sampler have."""
        part = self.shadow_part if sampler == "shadow" else 1.0
        return round(part * self.roots), round(part * self.batch)


class Case(NamedTuple):
    """One training."""

    sampler: str
    model: str


#: Part of an epoch that the slow device is timed on alone.
_SLOW_SHARE: Final = 0.25
#: Fanouts, roots' first, and layers: the paper's, with ShaDow three hops under five layers.
SAMPLERS: Final[Mapping[str, tuple[tuple[int, ...], int]]] = {
    "neighbour": ((15, 10, 5), 3),
    "shadow": ((15, 10, 5), 5),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Epochs of one case; entry i of each list was measured beside entry i of the others.

    Attributes:
        names: Of the devices.
        standard: On the fast device alone.
        slow: On the slow device alone.
        static: Ratios fixed at the speeds alone, cut by number of roots.
        dynamic: Ratios learned, cut by workload.
    """

    names: tuple[str, ...]
    standard: list[Epoch] = field(default_factory=list)
    slow: list[Epoch] = field(default_factory=list)
    static: list[Epoch] = field(default_factory=list)
    dynamic: list[Epoch] = field(default_factory=list)

    def speed_ups(self, kind: str = "dynamic") -> list[float]:
        """Return standard over unified time, epoch by epoch."""
        unified: list[Epoch] = getattr(self, kind)
        pairs = zip(self.standard, unified, strict=True)
        return [standard.seconds / other.seconds for standard, other in pairs]

    def promised(self) -> list[float]:
        """Return (v1 + v2) / v1 of the speeds alone, which were measured on whole mini-batches.

        It bounds nothing: a device may be faster on its share than on whole mini-batches.
        """
        pairs = zip(self.standard, self.slow, strict=True)
        return [1 + slow.roots_per_s / fast.roots_per_s for fast, slow in pairs]

    def repeated(self) -> float:
        """Return how much more is aggregated where shares draw for themselves what they share."""
        together = fmean(epoch.total("aggregations") for epoch in self.dynamic)
        return together / fmean(epoch.total("aggregations") for epoch in self.standard) - 1

    def kept(self) -> float:
        """Return the median part of what the speeds alone promise that was kept."""
        pairs = zip(self.speed_ups(), self.promised(), strict=True)
        return median(found / promised for found, promised in pairs)

    def bounds(self) -> list[float]:
        """Return by how much the dynamic epochs could be faster than standard ones, at most.

        By the speeds that the devices had in the same epochs: what is lost against it are
        imbalance, and what the host does while devices wait.
        """
        pairs = zip(self.standard, self.dynamic, strict=True)
        return [standard.seconds / other.least_s(self.names) for standard, other in pairs]

    def reached(self) -> float:
        """Return the median part of the bound that was reached; at most 1."""
        pairs = zip(self.speed_ups(), self.bounds(), strict=True)
        return median(found / bound for found, bound in pairs)


def measure(
    graph: MiniBatchGraph, pool: WorkerPool, devices: Devices, case: Case, sizes: Sizes
) -> Times:
    """Measure one case, kinds in turn, so that what else happens on the machine meets them all."""
    names = pool.settled.names
    cache = _as_much_as_fits(graph, names[0]) if devices.has_gpu else CacheChoice()
    slowness = devices.slowness(names, behind_link=False)
    settings = _settings(graph, case, sizes, slowness, cache)
    times = Times(names=names)
    roots, batch_size = sizes.of(case.sampler)
    with Rig(pool, graph, settings, roots=graph.train[:roots], batch_size=batch_size) as rig:
        learned = Balancer(len(names))
        for _ in range(sizes.settling):
            rig.together(learned)
        for _ in range(sizes.repeats):
            times.standard.append(rig.alone(0))
            times.slow.append(rig.alone(1, share=_SLOW_SHARE))
            speeds = [times.standard[-1].roots_per_s, times.slow[-1].roots_per_s]
            fixed = Balancer(len(names), mode="static", speeds=speeds)
            times.static.append(rig.together(fixed, by_number=True))
            times.dynamic.append(rig.together(learned))
    return times


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedTimes:
    """Epochs with one cache of feature rows on the fast device.

    Attributes:
        standard: On that device alone.
        dynamic: On both.
        fast: Name of that device.
    """

    standard: list[Epoch]
    dynamic: list[Epoch]
    fast: str

    def hit_rate(self) -> float:
        """Return the share of the fast device's rows that were there, on both devices."""
        rows = sum(epoch.of(self.fast, "rows") for epoch in self.dynamic)
        return sum(epoch.of(self.fast, "hits") for epoch in self.dynamic) / max(1.0, rows)


def measure_cache(
    graph: MiniBatchGraph,
    pool: WorkerPool,
    devices: Devices,
    sizes: Sizes,
    *,
    policy: str,
    share: float,
) -> CachedTimes:
    """Measure GraphSAGE on sampled neighbours with a cache of a share of all rows."""
    names = pool.settled.names
    cache = CacheChoice(policy=policy, rows=int(share * graph.num_nodes), devices=names[:1])
    slowness = devices.slowness(names, behind_link=True)
    settings = _settings(graph, Case("neighbour", "sage"), sizes, slowness, cache)
    roots = graph.train[: sizes.cache_roots]
    with Rig(pool, graph, settings, roots=roots, batch_size=sizes.batch) as rig:
        learned = Balancer(len(names))
        for _ in range(sizes.settling):
            rig.together(learned)
        standard, dynamic = [], []
        for _ in range(sizes.repeats):
            standard.append(rig.alone(0))
            dynamic.append(rig.together(learned))
    return CachedTimes(standard=standard, dynamic=dynamic, fast=names[0])


def open_pool(devices: Devices) -> WorkerPool:
    """Return a pool of these devices."""
    return WorkerPool(parse_devices(devices.text).settle(), threads=devices.threads)


def choice_of(sampler: str) -> SamplerChoice:
    """Return the sampler of a case."""
    fanouts, layers = SAMPLERS[sampler]
    return SamplerChoice(
        kind=sampler, fanouts=fanouts, layers=layers, seed=0, cache_share=0.01, cache_epochs=1
    )


def _settings(
    graph: MiniBatchGraph,
    case: Case,
    sizes: Sizes,
    slowness: Mapping[str, Slowness],
    cache: CacheChoice,
) -> UnifiedSettings:
    choice = choice_of(case.sampler)
    shape = ModelShape(
        model=case.model,
        layers=choice.layers,
        inputs=graph.features.shape[1],
        hidden=sizes.hidden,
        heads=1,
        classes=graph.num_classes,
        dtype="float32",
        heads_between=False,
    )
    return UnifiedSettings(shape=shape, choice=choice, cache=cache, slowness=slowness)


def _as_much_as_fits(graph: MiniBatchGraph, name: str) -> CacheChoice:
    """Return the cache that training with and without the protocol has on a real GPU."""
    row_bytes = graph.features.shape[1] * graph.features.itemsize
    fitting = rows_that_fit(torch.device(name), row_bytes)
    return CacheChoice(rows=min(graph.num_nodes, fitting), devices=(name,))
