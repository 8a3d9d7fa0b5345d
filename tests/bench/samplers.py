"""Samplers, induced subgraphs and gathering at 2.4 million nodes, against what else does it.

PyTorch, SciPy and NumPy in this process; PyTorch Geometric (with torch-sparse) and DGL's GraphBolt,
where they are installed, in processes of their own (``sampler_peers.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from scipy.sparse import csr_array

from retexo_fl.additions.devices.sampling import (
    Adjacency,
    NeighbourSampler,
    ShadowSampler,
    root_workloads,
)
from retexo_fl.additions.devices.sampling.features import FeatureStore
from retexo_fl.additions.devices.sampling.induction import induced_block
from retexo_fl.additions.devices.sampling.workspace import Workspaces
from retexo_fl.graph import load_dataset
from tests.bench.measure import LEAST_REPEATS, Timings, interleaved
from tests.bench.outcome import Outcome, Row
from tests.bench.sampler_peers import beside_libraries
from tests.bench.sampler_process import FANOUTS, SCOPE_FANOUTS
from tests.bench.torch_sampler import TorchSampler

_SCOPE_LAYERS: Final = 5
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

    graph: str
    batches: tuple[int, ...]
    estimated: int
    width: int
    repeats: int
    least_s: float


_WHOLE: Final = _Sizes(
    # Samplers read no features, and the rows that are gathered are made here.
    graph="synthetic:products,features=1",
    batches=(1024, 4096),
    estimated=50_000,
    width=100,
    repeats=LEAST_REPEATS,
    least_s=0.2,
)
_QUICK: Final = _Sizes(
    graph="synthetic:nodes=2000,degree=20,features=1",
    batches=(16,),
    estimated=200,
    width=4,
    repeats=2,
    least_s=0.0,
)


def run(quick: bool, data_dir: Path | None) -> Outcome:
    """Time each pair in turn on one graph."""
    del data_dir
    sizes = _QUICK if quick else _WHOLE
    graph = load_dataset(sizes.graph, data_dir=None)
    adjacency = Adjacency(indptr=graph.indptr, indices=graph.indices.astype(np.int32))
    del graph
    *beside, libraries = beside_libraries(adjacency, sizes.batches, sizes.repeats)
    parts = [_neighbours(adjacency, batch, sizes) for batch in sizes.batches]
    parts += [_subgraphs(adjacency, sizes), _gathering(adjacency, sizes)]
    parts += [_workloads(adjacency, sizes), (beside[0], beside[1])]
    degrees = np.sort(adjacency.degrees)
    setting = {
        "graph": sizes.graph,
        "nodes": adjacency.num_nodes,
        "edges": adjacency.num_edges,
        "median degree": int(degrees[len(degrees) // 2]),
        "largest degree": int(degrees[-1]),
        "fanouts": "/".join(map(str, FANOUTS)),
        "scope fanouts": "/".join(map(str, SCOPE_FANOUTS)),
        "width": sizes.width,
        "dtype": "float32",
        **libraries,
    }
    return Outcome(
        name="samplers",
        setting=setting,
        ratios=[row for ratios, _ in parts for row in ratios],
        times=[row for _, times in parts for row in times],
    )


_Rows = tuple[list[Row], list[Row]]


def _neighbours(adjacency: Adjacency, batch: int, sizes: _Sizes) -> _Rows:
    """Both sides draw anew in every call, from the same roots."""
    roots = _roots(adjacency, batch)
    ours, rival = NeighbourSampler(adjacency, FANOUTS, seed=0), TorchSampler(adjacency, FANOUTS)
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
    sampler = ShadowSampler(adjacency, SCOPE_FANOUTS, _SCOPE_LAYERS, seed=0)
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
    nodes = NeighbourSampler(adjacency, FANOUTS, seed=0).sample(roots, epoch=0, batch=0).nodes
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
    sampler = NeighbourSampler(adjacency, FANOUTS, seed=0)
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
