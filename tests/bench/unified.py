"""Two CPU devices of known speeds training together, against each alone.

Heterogeneous CPU devices, no GPU: each of a worker's threads sleeps until a multiple of the CPU
time that it spent has passed (``sims.unified_task.slowed``). So a device is as fast when both
compute as when one does, and two of them fit even on one core. An epoch's work is that of the real
samplers and models; speeds alone are measured beside each epoch of both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np
import torch

from retexo_fl.additions.devices.sampling import Adjacency
from retexo_fl.additions.devices.training.sampler_choice import SamplerChoice
from retexo_fl.additions.devices.workers.balancer import Balancer
from retexo_fl.additions.devices.workers.pool import WorkerPool
from retexo_fl.device_names import parse_devices
from retexo_fl.training.stage_model import ModelShape
from sims.mini_batch_graphs import MiniBatchGraph
from sims.unified_epochs import Epoch, Rig
from sims.unified_task import Slowness, UnifiedSettings, device_name
from tests.bench.gradient_sums import Rows, sum_rows
from tests.bench.measure import Spread
from tests.bench.outcome import Outcome, Row

#: Part of (v1 + v2) / max(v1, v2) that both devices must reach together.
_TARGET: Final = 0.9
#: Factor of the fast device: two threads of it, and two of a slower one, fit on one core.
_FAST: Final = 4.0
#: A device that is so many times slower is measured over a whole epoch; a slower one, less.
_PATIENCE: Final = 4
#: Part of an epoch that is enough to know a device's speed in small mini-batches.
_PART: Final = 0.5
_OF_BOUND: Final = "together / sum of speeds alone"
_OF_CUT_BOUND: Final = "together / sum of speeds alone in batches as small"
_CLASSES, _WIDTH, _HIDDEN = 16, 64, 64
#: Fanouts, and layers; scopes of three hops under five layers, as in the paper, of fewer nodes.
_SAMPLERS: Final = {"shadow": ((5, 3, 2), 5), "neighbour": ((15, 10, 5), 3)}
#: Where roots share what is drawn, a cut repeats part of the work, whoever cuts: there the bound is
#: that of devices alone in mini-batches as small as their shares.
_SHARING: Final = ("neighbour",)
#: Exponent of the Pareto law of degrees: a median of half the mean, and hubs.
_DEGREE_EXPONENT: Final = 1.32
#: Largest degree, as a share of the nodes.
_LARGEST_SHARE: Final = 0.02
#: Edges drawn for each one wanted: few are drawn twice.
_DRAWN_SHARE: Final = 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """What a run works on.

    Attributes:
        nodes: Of the graph; likewise ``edges``.
        roots: Of an epoch.
        batch: Roots of a mini-batch.
        cases: Sampler, and how many times slower the slow device is than the fast one.
        repeats: Epochs of each kind.
        settling: Epochs before, in which the balancer learns.
        gradients: Values of the gradients that are added up.
    """

    nodes: int
    edges: int
    roots: int
    batch: int
    cases: tuple[tuple[str, int], ...]
    repeats: int
    settling: int
    gradients: tuple[int, ...]


_WHOLE: Final = _Sizes(
    nodes=200_000,
    edges=4_000_000,
    roots=3072,
    batch=512,
    cases=(("shadow", 2), ("shadow", 4), ("shadow", 8), ("neighbour", 2), ("neighbour", 8)),
    repeats=5,
    settling=3,
    gradients=(100_000, 1_000_000, 10_000_000),
)
_QUICK: Final = _Sizes(
    nodes=2_000,
    edges=20_000,
    roots=64,
    batch=16,
    cases=(("shadow", 2),),
    repeats=2,
    settling=1,
    gradients=(1_000,),
)


def run(quick: bool, data_dir: Path | None) -> Outcome:
    """Measure devices together, preparing beside computing, and ways to add gradients."""
    del data_dir
    sizes = _QUICK if quick else _WHOLE
    graph = _graph(sizes)
    with WorkerPool(parse_devices("cpu:2").settle(), threads=1) as pool:
        parts = [_together(pool, graph, *case, sizes) for case in sizes.cases]
        parts += [_overlap(graph, sizes)]
        parts += [sum_rows(pool, size, repeats=sizes.repeats + 2) for size in sizes.gradients]
    setting = {
        "devices": "heterogeneous CPU devices, no GPU",
        "nodes": graph.num_nodes,
        "edges": graph.adjacency.num_edges,
        "roots": sizes.roots,
        "batch": sizes.batch,
        **{name: f"{fanouts}, {layers} layers" for name, (fanouts, layers) in _SAMPLERS.items()},
        "model": f"sage {_WIDTH}-{_HIDDEN}-{_CLASSES}",
        "slowed": f"fast device {_FAST:g} times",
        "dtype": "float32",
    }
    return Outcome(
        name="unified",
        setting=setting,
        ratios=[row for ratios, _ in parts for row in ratios],
        times=[row for _, times in parts for row in times],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Epochs:
    """Entry i of ``fast`` and ``both`` were measured beside each other.

    Attributes:
        fast: The fast device alone.
        both: Both together.
        slow: The slow device alone, before and after; it takes long, and does not vary.
    """

    fast: list[Epoch] = field(default_factory=list)
    both: list[Epoch] = field(default_factory=list)
    slow: list[Epoch] = field(default_factory=list)

    def of_bound(self) -> list[float]:
        """Return speed-ups over the fast device, each over (v1 + v2) / max(v1, v2)."""
        slow = fmean(epoch.roots_per_s for epoch in self.slow)
        pairs = zip(self.fast, self.both, strict=True)
        return [both.roots_per_s / (fast.roots_per_s + slow) for fast, both in pairs]

    def repeated(self) -> list[float]:
        """Return how much more is aggregated, since shares draw for themselves what they share."""
        pairs = zip(self.fast, self.both, strict=True)
        return [both.total("aggregations") / fast.total("aggregations") for fast, both in pairs]


def _together(
    pool: WorkerPool, graph: MiniBatchGraph, sampler: str, slower: int, sizes: _Sizes
) -> Rows:
    names = pool.settled.names
    slowness = {names[0]: Slowness(factor=_FAST), names[1]: Slowness(factor=slower * _FAST)}
    balancer = Balancer(len(names))
    whole, cut = _Epochs(), _Epochs()
    part = min(1.0, _PATIENCE / slower)
    with _rig(pool, graph, sampler, slowness, sizes) as rig:
        for _ in range(sizes.settling):
            rig.together(balancer)
        whole.slow.append(rig.alone(1, share=part))
        for _ in range(sizes.repeats):
            whole.fast.append(rig.alone(0))
            whole.both.append(rig.together(balancer))
            if sampler in _SHARING:
                cut.fast.append(_alone_with_its_share(rig, balancer, 0))
                cut.both.append(whole.both[-1])
        whole.slow.append(rig.alone(1, share=part))
        if sampler in _SHARING:
            cut.slow.append(_alone_with_its_share(rig, balancer, 1))
    return _rows(f"{sampler}, 1:{slower}", whole, cut)


def _alone_with_its_share(rig: Rig, balancer: Balancer, place: int) -> Epoch:
    """Train on one device only, in mini-batches as large as its shares of those of both."""
    batch = rig.batch_size
    rig.batch_size = max(1, round(batch * balancer.ratios[place]))
    try:
        return rig.alone(place, share=_PART)
    finally:
        rig.batch_size = batch


def _rows(case: str, whole: _Epochs, cut: _Epochs) -> Rows:
    ratios = {
        _OF_BOUND: whole.of_bound(),
        "aggregations of shares / of whole batches": whole.repeated(),
    }
    if cut.both:
        ratios[_OF_CUT_BOUND] = cut.of_bound()
    judged = _OF_CUT_BOUND if cut.both else _OF_BOUND
    ratios |= {
        f"{name} device busy, of the epoch": [
            epoch.workers[place].busy_s / epoch.seconds for epoch in whole.both
        ]
        for place, name in enumerate(("fast", "slow"))
    }
    speeds = {
        "roots of the fast device": whole.fast,
        "roots of the slow device": whole.slow,
        "roots of both": whole.both,
    }
    return [
        Row(
            metric=f"{case}: {name}",
            unit="x",
            spread=Spread.of(found),
            target=_TARGET if name == judged else None,
        )
        for name, found in ratios.items()
    ], [
        Row(
            metric=f"{case}: {name}",
            unit="/s",
            spread=Spread.of([epoch.roots_per_s for epoch in epochs]),
        )
        for name, epochs in speeds.items()
    ]


def _overlap(graph: MiniBatchGraph, sizes: _Sizes) -> Rows:
    """Let one device, this process, prepare the next share while it computes, and not."""
    slowness = {device_name(torch.device("cpu")): Slowness(factor=_FAST)}
    own = parse_devices("cpu").settle()
    batches = -(-sizes.roots // sizes.batch)
    apart: list[Epoch] = []
    beside: list[Epoch] = []
    with (
        WorkerPool(own, ahead=0) as waiting,
        WorkerPool(own, ahead=1) as preparing,
        _rig(waiting, graph, "neighbour", slowness, sizes) as first,
        _rig(preparing, graph, "neighbour", slowness, sizes) as second,
    ):
        for rig in (first, second):
            rig.alone(0)
        for _ in range(sizes.repeats):
            apart.append(first.alone(0))
            beside.append(second.alone(0))
    gains = [one.seconds / other.seconds for one, other in zip(apart, beside, strict=True)]
    bounds = [_overlap_bound(epoch, batches) for epoch in apart]
    rows = {
        "preparing before / beside computing": gains,
        "(preparing + computing) / the longer of both": bounds,
        "gain of preparing beside computing / its bound": [
            gain / bound for gain, bound in zip(gains, bounds, strict=True)
        ],
    }
    return [Row(metric=name, unit="x", spread=Spread.of(found)) for name, found in rows.items()], []


def _overlap_bound(epoch: Epoch, batches: int) -> float:
    """Return by how much an epoch can be shorter: its first share has nothing to hide behind."""
    (worker,) = epoch.workers
    shorter, longer = sorted((worker.prepare_s, worker.compute_s))
    return (shorter + longer) / (longer + shorter / batches)


def _rig(
    pool: WorkerPool,
    graph: MiniBatchGraph,
    sampler: str,
    slowness: dict[str, Slowness],
    sizes: _Sizes,
) -> Rig:
    fanouts, layers = _SAMPLERS[sampler]
    shape = ModelShape(
        model="sage",
        layers=layers,
        inputs=_WIDTH,
        hidden=_HIDDEN,
        heads=1,
        classes=_CLASSES,
        dtype="float32",
        heads_between=False,
    )
    choice = SamplerChoice(
        kind=sampler, fanouts=fanouts, layers=layers, seed=0, cache_share=0.01, cache_epochs=1
    )
    settings = UnifiedSettings(shape=shape, choice=choice, slowness=slowness)
    return Rig(pool, graph, settings, roots=graph.train, batch_size=sizes.batch)


def _graph(sizes: _Sizes) -> MiniBatchGraph:
    """Return a graph with a power law, random rows and random labels; all roots train."""
    draws = np.random.default_rng(0)
    adjacency = _power_law(sizes.nodes, sizes.edges)
    none = np.zeros(0, np.int64)
    return MiniBatchGraph(
        name="power law",
        adjacency=adjacency,
        features=draws.random((adjacency.num_nodes, _WIDTH), dtype=np.float32),
        labels=draws.integers(0, _CLASSES, adjacency.num_nodes),
        num_classes=_CLASSES,
        train=draws.choice(adjacency.num_nodes, sizes.roots, replace=False),
        validation=none,
        test=none,
    )


def _power_law(nodes: int, edges: int) -> Adjacency:
    """Return about so many random edges, whose ends are drawn by the same power law."""
    rng = np.random.default_rng(0)
    drawn = round(_DRAWN_SHARE * edges)
    weights = 1.0 + rng.pareto(_DEGREE_EXPONENT, nodes)
    weights = (weights * drawn / weights.sum()).clip(max=_LARGEST_SHARE * nodes)
    bounds = np.rint(np.cumsum([0.0, *weights]) * drawn / weights.sum()).astype(np.int64)
    ends = np.repeat(np.arange(nodes, dtype=np.int32), np.diff(bounds))
    sources = ends[rng.integers(0, drawn, drawn)]
    return Adjacency.from_edges(sources, ends, num_nodes=nodes)
