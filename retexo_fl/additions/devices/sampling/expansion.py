"""Layer by layer from the roots to the input rows: what the neighbour samplers have in common."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retexo_fl.additions.devices.sampling.adjacency import Adjacency
from retexo_fl.additions.devices.sampling.compiled import compiled
from retexo_fl.additions.devices.sampling.keyed_random import below
from retexo_fl.additions.devices.sampling.picking import fill_scales, pick_neighbours, pick_places
from retexo_fl.additions.devices.sampling.sample import Block, Sample
from retexo_fl.additions.devices.sampling.workspace import (
    Workspace,
    add_nodes,
    forget_nodes,
    read_rows,
)

#: A fanout that no node's degree exceeds.
ALL_NEIGHBOURS = int(np.iinfo(np.int64).max)


def expanded(
    adjacency: Adjacency,
    roots: np.ndarray,
    *,
    fanouts: Sequence[int],
    keys: Sequence[np.uint64],
    workspace: Workspace,
) -> Sample:
    """Draw one block for each fanout, from the roots on.

    The targets of the first draw are the roots. Its sources, the targets and then the nodes that
    are new in the order in which they were found, are the targets of the next draw: all of them
    draw anew, with the next fanout and key.

    Args:
        adjacency: The graph.
        roots: (B,) int64, distinct.
        fanouts: Most neighbours of a target, the roots' first.
        keys: For each fanout the key above the targets' ids.
        workspace: As made; left so.
    """
    count = add_nodes(roots, workspace.places, workspace.nodes, 0, np.empty(len(roots), np.int32))
    _read_new_rows(adjacency, workspace, 0, count)
    sizes, drawn = [count], []
    for fanout, key in zip(fanouts, keys, strict=True):
        block, count = _draw(adjacency, workspace, count, fanout, key)
        drawn.append(block)
        sizes.append(count)
    nodes = workspace.nodes[:count].copy()
    degrees = workspace.degrees[:count].copy()
    forget_nodes(nodes, workspace.places)
    return Sample(
        roots=roots,
        nodes=nodes,
        input_degrees=degrees,
        blocks=tuple(drawn[::-1]),
        root_places=np.arange(len(roots), dtype=np.int64),
        layer_nodes=tuple(nodes[:size] for size in sizes[-2::-1]),
    )


def _draw(
    adjacency: Adjacency, workspace: Workspace, num_targets: int, fanout: int, key: np.uint64
) -> tuple[Block, int]:
    """Return the block of one layer and how many nodes there are with its new ones."""
    degrees = workspace.degrees[:num_targets].copy()
    indptr = np.zeros(num_targets + 1, dtype=np.int64)
    np.minimum(degrees, fanout).cumsum(out=indptr[1:])
    picked = np.empty(indptr[-1], dtype=adjacency.indices.dtype)
    targets = (workspace.nodes[:num_targets], workspace.starts[:num_targets], degrees)
    pick_neighbours(adjacency.indices, targets, indptr, key, fanout, workspace.marks, picked)
    columns = picked if picked.dtype == np.int32 else np.empty(len(picked), dtype=np.int32)
    count = add_nodes(picked, workspace.places, workspace.nodes, num_targets, columns)
    _read_new_rows(adjacency, workspace, num_targets, count)
    scales = None
    if num_targets and int(degrees.max()) > fanout:
        scales = np.empty(len(columns), dtype=np.float32)
        fill_scales(degrees, indptr, scales)
    block = Block(indptr=indptr, columns=columns, scales=scales, degrees=degrees, num_sources=count)
    return block, count


def _read_new_rows(adjacency: Adjacency, workspace: Workspace, start: int, stop: int) -> None:
    read_rows(
        adjacency.indptr,
        workspace.nodes[start:stop],
        workspace.starts[start:stop],
        workspace.degrees[start:stop],
    )


def count_drawn(
    adjacency: Adjacency,
    roots: np.ndarray,
    *,
    fanouts: Sequence[int],
    keys: Sequence[np.uint64],
    workspace: Workspace,
) -> np.ndarray:
    """Return the (B,) int64 edges of all blocks of ``expanded([root])`` for each root.

    The neighbours of the last draw are counted, not drawn.
    """
    edges = np.empty(len(roots), dtype=np.int64)
    limits, states = np.array(fanouts, dtype=np.int64), np.array(keys, dtype=np.uint64)
    picked = np.empty(max(len(workspace.marks), 1), dtype=np.int64)
    _count_alone(
        (adjacency.indptr, adjacency.indices),
        roots,
        (limits, states),
        (workspace.places, workspace.nodes, workspace.marks, picked),
        edges,
    )
    return edges


@compiled
def _count_alone(
    graph: tuple[np.ndarray, np.ndarray],
    roots: np.ndarray,
    draws: tuple[np.ndarray, np.ndarray],
    scratch: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    edges: np.ndarray,
) -> None:
    """Write the edges of each root's blocks; ``scratch`` holds places, nodes, marks and picks."""
    indptr, indices = graph
    fanouts, keys = draws
    places, nodes, marks, picked = scratch
    for number in range(len(roots)):
        nodes[0] = roots[number]
        places[roots[number]] = 0
        count, total = 1, 0
        for layer in range(len(fanouts)):
            targets = count
            for target in range(targets):
                node = nodes[target]
                start = indptr[node]
                degree = indptr[node + 1] - start
                total += min(degree, fanouts[layer])
                if layer == len(fanouts) - 1:
                    continue
                key = below(keys[layer], node)
                taken = pick_places(key, degree, fanouts[layer], marks, picked, 0)
                for index in range(taken):
                    neighbour = indices[start + picked[index]]
                    if places[neighbour] < 0:
                        places[neighbour] = count
                        nodes[count] = neighbour
                        count += 1
        forget_nodes(nodes[:count], places)
        edges[number] = total
