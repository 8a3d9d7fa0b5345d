"""Samplers, induced subgraphs and the gathering of features against what is there without them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from scipy.sparse import csr_array

from retexo_fl.sampling import Adjacency, NeighbourSampler, ShadowSampler, root_workloads
from retexo_fl.sampling.features import FeatureStore
from retexo_fl.sampling.induction import induced_block
from retexo_fl.sampling.workspace import Workspaces
from tests.bench.measure import LEAST_REPEATS, Timings, interleaved
from tests.bench.outcome import Outcome, Row
from tests.bench.torch_sampler import TorchSampler

_FANOUTS: Final = (15, 10, 5)
_SCOPE_FANOUTS: Final = (10, 5)
_SCOPE_LAYERS: Final = 5
#: Exponent of the Pareto law of degrees: a median of half the mean, and hubs.
_DEGREE_EXPONENT: Final = 1.32
#: Largest degree, as a share of the nodes.
_LARGEST_SHARE: Final = 0.02
#: Edges drawn for each one wanted: few are drawn twice.
_DRAWN_SHARE: Final = 1.02
_OURS, _TORCH = "NeighbourSampler", "PyTorch"
_INDUCED, _SCIPY = "induced_block", "SciPy A[n][:, n]"
_SCOPES = "scopes of each root apart"
_ESTIMATED = "root_workloads"
_REUSED, _FRESH = "reused buffer", "fresh tensor"
_SAMPLER_TARGET: Final = 2.0
_INDUCTION_TARGET: Final = 1.2
_GATHER_TARGET: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """What a run works on."""

    nodes: int
    edges: int
    batches: tuple[int, ...]
    estimated: int
    width: int
    repeats: int
    least_s: float


_WHOLE: Final = _Sizes(
    nodes=1_000_000,
    edges=40_000_000,
    batches=(1024, 4096),
    estimated=50_000,
    width=100,
    repeats=LEAST_REPEATS,
    least_s=0.2,
)
_QUICK: Final = _Sizes(
    nodes=2_000, edges=20_000, batches=(16,), estimated=200, width=4, repeats=2, least_s=0.0
)


def run(quick: bool, data_dir: Path | None) -> Outcome:
    """Time each pair in turn on one graph."""
    del data_dir
    sizes = _QUICK if quick else _WHOLE
    adjacency = power_law_adjacency(sizes.nodes, sizes.edges)
    parts = [_neighbours(adjacency, batch, sizes) for batch in sizes.batches]
    parts += [_subgraphs(adjacency, sizes), _gathering(adjacency, sizes)]
    parts.append(_workloads(adjacency, sizes))
    degrees = np.sort(adjacency.degrees)
    setting = {
        "nodes": adjacency.num_nodes,
        "edges": adjacency.num_edges,
        "median degree": int(degrees[len(degrees) // 2]),
        "largest degree": int(degrees[-1]),
        "fanouts": "/".join(map(str, _FANOUTS)),
        "scope fanouts": "/".join(map(str, _SCOPE_FANOUTS)),
        "width": sizes.width,
        "dtype": "float32",
    }
    return Outcome(
        name="samplers",
        setting=setting,
        ratios=[row for ratios, _ in parts for row in ratios],
        times=[row for _, times in parts for row in times],
    )


def power_law_adjacency(nodes: int, edges: int) -> Adjacency:
    """Return about so many random edges, whose ends are drawn by the same power law."""
    rng = np.random.default_rng(0)
    drawn = round(_DRAWN_SHARE * edges)
    weights = 1.0 + rng.pareto(_DEGREE_EXPONENT, nodes)
    weights = (weights * drawn / weights.sum()).clip(max=_LARGEST_SHARE * nodes)
    bounds = np.rint(np.cumsum([0.0, *weights]) * drawn / weights.sum()).astype(np.int64)
    ends = np.repeat(np.arange(nodes, dtype=np.int32), np.diff(bounds))
    sources = ends[rng.integers(0, drawn, drawn)]
    return Adjacency.from_edges(sources, ends, num_nodes=nodes)


_Rows = tuple[list[Row], list[Row]]


def _neighbours(adjacency: Adjacency, batch: int, sizes: _Sizes) -> _Rows:
    """Both sides draw anew in every call, from the same roots."""
    roots = _roots(adjacency, batch)
    ours, rival = NeighbourSampler(adjacency, _FANOUTS, seed=0), TorchSampler(adjacency, _FANOUTS)
    torch_roots, calls = torch.from_numpy(roots), iter(range(2**62))
    cases: dict[str, Callable[[], object]] = {
        _OURS: lambda: ours.sample(roots, epoch=0, batch=next(calls)),
        _TORCH: lambda: rival.sample(torch_roots),
    }
    timings = interleaved(cases, repeats=sizes.repeats, least_s=sizes.least_s)
    sample = ours.sample(roots, epoch=0, batch=0)
    label = f"{batch} roots, {sample.num_aggregations} edges, {len(sample.nodes)} nodes"
    return _compared(f"{batch} roots", label, timings, _TORCH, _OURS, _SAMPLER_TARGET)


def _subgraphs(adjacency: Adjacency, sizes: _Sizes) -> _Rows:
    """Induce the subgraph of all scopes of a batch together; their nodes are drawn beforehand."""
    batch = sizes.batches[0]
    sampler = ShadowSampler(adjacency, _SCOPE_FANOUTS, _SCOPE_LAYERS, seed=0)
    roots = _roots(adjacency, batch)
    nodes = np.unique(sampler.sample(roots, epoch=0, batch=0).nodes)
    bounds = np.array([0, len(nodes)])
    ones = np.ones(adjacency.num_edges, dtype=np.int8)
    shape = (adjacency.num_nodes, adjacency.num_nodes)
    # SciPy is given the narrow index type that it is fastest with.
    indptr = adjacency.indptr.astype(adjacency.indices.dtype)
    matrix = csr_array((ones, adjacency.indices, indptr), shape=shape)
    workspaces, calls = Workspaces(adjacency), iter(range(2**62))

    def induced() -> object:
        with workspaces.taken() as workspace:
            return induced_block(adjacency, nodes, bounds, workspace)

    cases: dict[str, Callable[[], object]] = {
        _INDUCED: induced,
        _SCIPY: lambda: matrix[nodes][:, nodes],
        _SCOPES: lambda: sampler.sample(roots, epoch=0, batch=next(calls)),
    }
    timings = interleaved(cases, repeats=sizes.repeats, least_s=sizes.least_s)
    label = f"scopes of {batch} roots, {len(nodes)} nodes"
    return _compared("joint subgraph", label, timings, _SCIPY, _INDUCED, _INDUCTION_TARGET)


def _gathering(adjacency: Adjacency, sizes: _Sizes) -> _Rows:
    """Gather the input rows of a batch."""
    roots = _roots(adjacency, sizes.batches[0])
    nodes = NeighbourSampler(adjacency, _FANOUTS, seed=0).sample(roots, epoch=0, batch=0).nodes
    rows = torch.rand(adjacency.num_nodes, sizes.width)
    store, places = FeatureStore(rows.numpy()), torch.from_numpy(nodes)
    buffer = torch.empty(len(nodes), sizes.width)
    cases: dict[str, Callable[[], object]] = {
        _REUSED: lambda: store.gather(nodes, buffer),
        _FRESH: lambda: rows[places],
    }
    timings = interleaved(cases, repeats=sizes.repeats, least_s=sizes.least_s)
    return _compared(
        "features", f"features of {len(nodes)} nodes", timings, _FRESH, _REUSED, _GATHER_TARGET
    )


def _workloads(adjacency: Adjacency, sizes: _Sizes) -> _Rows:
    """Estimate what each of many roots costs, as before a training."""
    roots = _roots(adjacency, sizes.estimated)
    sampler = NeighbourSampler(adjacency, _FANOUTS, seed=0)
    label = f"workloads of {len(roots)} roots: {_ESTIMATED}"
    cases = {_ESTIMATED: lambda: root_workloads(sampler, roots, cache=None)}
    timings = interleaved(cases, repeats=sizes.repeats, least_s=sizes.least_s)
    spread = timings.spread(_ESTIMATED, scale=1e3)
    return [], [Row(metric=label, unit="ms", spread=spread)]


def _roots(adjacency: Adjacency, batch: int) -> np.ndarray:
    return np.random.default_rng(1).choice(adjacency.num_nodes, batch, replace=False)


def _compared(
    name: str, label: str, timings: Timings, slow: str, fast: str, target: float
) -> _Rows:
    """Return the ratio with its target, and all times."""
    seconds: Mapping[str, list[float]] = timings.seconds
    times = [
        Row(metric=f"{label}: {case}", unit="ms", spread=timings.spread(case, scale=1e3))
        for case in seconds
    ]
    ratio = timings.ratio(slow, fast)
    return [Row(metric=f"{name}: {slow} / {fast}", unit="x", spread=ratio, target=target)], times
