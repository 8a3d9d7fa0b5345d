"""A process that draws mini-batches with one library, for `python -m tests.bench samplers`.

``python tests/bench/sampler_process.py LIBRARY FOLDER`` reads ``indptr.npy`` and ``indices.npy``,
prints a line of JSON that says what it is, and then one for each line that it reads. It imports
nothing of this repository unless it is asked for its samplers: other libraries need other
interpreters.

Libraries are called as their users call them, one thread, without features. What they draw differs
as their documents say: PyTorch Geometric and DGL's GraphBolt let the nodes found last draw, or all,
so edges are counted as well as seconds.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np

#: Draws a batch: given roots and its number, returns how many nodes and edges it has.
Draw = Callable[[np.ndarray, int], tuple[int, int]]
NEIGHBOUR, SHADOW, GNS = "neighbour", "ShaDow", "GNS"
FANOUTS: Final = (15, 10, 5)
#: PyTorch Geometric's takes one number for all hops.
SCOPE_FANOUTS: Final = (10, 10)
_KILOBYTE: Final = 1024


def _retexo(indptr: np.ndarray, indices: np.ndarray) -> dict[str, Draw]:
    from retexo_fl.additions.devices.sampling import Adjacency, NeighbourSampler, ShadowSampler

    adjacency = Adjacency(indptr=indptr, indices=indices)
    neighbour = NeighbourSampler(adjacency, FANOUTS, seed=0)
    shadow = ShadowSampler(adjacency, SCOPE_FANOUTS, len(FANOUTS), seed=0)

    def blocks(roots: np.ndarray, number: int) -> tuple[int, int]:
        sample = neighbour.sample(roots, epoch=0, batch=number)
        return len(sample.nodes), sample.num_aggregations

    def scopes(roots: np.ndarray, number: int) -> tuple[int, int]:
        sample = shadow.sample(roots, epoch=0, batch=number)
        # All layers share one block.
        return len(sample.nodes), sample.blocks[0].num_edges

    return {NEIGHBOUR: blocks, SHADOW: scopes}


def _retexo_gns(indptr: np.ndarray, indices: np.ndarray) -> dict[str, Draw]:
    from retexo_fl.additions.devices.sampling import Adjacency, GnsSampler

    gns = GnsSampler(Adjacency(indptr=indptr, indices=indices), FANOUTS, seed=0)

    def blocks(roots: np.ndarray, number: int) -> tuple[int, int]:
        sample = gns.sample(roots, epoch=0, batch=number)
        return len(sample.nodes), sample.num_aggregations

    return {GNS: blocks}


def _pyg(indptr: np.ndarray, indices: np.ndarray) -> dict[str, Draw]:
    # First what is most likely to be missing.
    from torch_sparse import SparseTensor  # isort: skip
    import torch
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader, ShaDowKHopSampler

    nodes = len(indptr) - 1
    edges = SparseTensor(
        rowptr=torch.from_numpy(np.array(indptr)),
        # Its kernels take 64 bits.
        col=torch.from_numpy(indices.astype(np.int64)),
        sparse_sizes=(nodes, nodes),
        is_sorted=True,
        trust_data=True,
    )
    data = Data(adj_t=edges, num_nodes=nodes)
    with warnings.catch_warnings():
        # Says that pyg-lib is preferred, which the package index does not have.
        warnings.simplefilter("ignore")
        loader = NeighborLoader(data, num_neighbors=list(FANOUTS), input_nodes=torch.arange(nodes))
    ego = ShaDowKHopSampler(
        data, depth=len(SCOPE_FANOUTS), num_neighbors=SCOPE_FANOUTS[0], node_idx=torch.arange(1)
    )

    def neighbour(roots: np.ndarray, number: int) -> tuple[int, int]:
        del number
        batch = loader(torch.from_numpy(roots))
        return int(batch.num_nodes), int(batch.adj_t.nnz())

    def scopes(roots: np.ndarray, number: int) -> tuple[int, int]:
        del number
        batch = ego.collate_fn(roots.tolist())
        return int(batch.adj_t.size(0)), int(batch.adj_t.nnz())

    return {NEIGHBOUR: neighbour, SHADOW: scopes}


def _graphbolt(indptr: np.ndarray, indices: np.ndarray) -> dict[str, Draw]:
    os.environ["DGLBACKEND"] = "pytorch"
    from dgl import graphbolt  # isort: skip
    import torch

    graph = graphbolt.fused_csc_sampling_graph(
        # Ids of 32 bits are a fifth faster than its documents' 64.
        torch.from_numpy(np.array(indptr)),
        torch.from_numpy(indices.astype(np.int32)),
    )

    def neighbour(roots: np.ndarray, number: int) -> tuple[int, int]:
        del number
        items = graphbolt.ItemSet(torch.from_numpy(roots.astype(np.int32)), names="seed_nodes")
        pipe = graphbolt.ItemSampler(items, batch_size=len(roots))
        # Its fanouts are listed from the input on.
        pipe = pipe.sample_neighbor(graph, list(reversed(FANOUTS)))
        batch = next(iter(pipe))
        edges = sum(len(one.sampled_csc.indices) for one in batch.sampled_subgraphs)
        return len(batch.input_nodes), edges

    return {NEIGHBOUR: neighbour}


LIBRARIES: Final[Mapping[str, tuple[Callable[..., dict[str, Draw]], tuple[str, ...]]]] = {
    "retexo_fl": (_retexo, ("numba",)),
    "retexo_fl GNS": (_retexo_gns, ("numba",)),
    "PyG": (_pyg, ("torch_geometric", "torch_sparse", "torch")),
    "GraphBolt": (_graphbolt, ("dgl", "torch")),
}


def _say(facts: Mapping[str, Any]) -> None:
    print(json.dumps(facts), flush=True)


def main(library: str, folder: Path) -> None:
    """Answer until the input ends."""
    make, packages = LIBRARIES[library]
    indptr = np.load(folder / "indptr.npy")
    indices = np.load(folder / "indices.npy", mmap_mode="r")
    try:
        draws = make(indptr, indices)
    except ImportError as error:
        _say({"missing": str(error).splitlines()[0]})
        return
    _say({"versions": {name: version(name) for name in packages}, "draws": sorted(draws)})
    rng = np.random.default_rng(1)
    for number, line in enumerate(sys.stdin):
        asked = json.loads(line)
        roots = rng.choice(len(indptr) - 1, asked["roots"], replace=False)
        begun = time.process_time()
        nodes, edges = draws[asked["draw"]](roots, number)
        seconds = time.process_time() - begun
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KILOBYTE
        _say({"seconds": seconds, "nodes": nodes, "edges": edges, "peak_bytes": peak})


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
