"""Subgraphs induced by groups of nodes: all edges of the graph between nodes of one group."""

from __future__ import annotations

from typing import Final

import numpy as np

from retexo_fl.additions.devices.sampling.adjacency import Adjacency
from retexo_fl.additions.devices.sampling.compiled import compiled
from retexo_fl.additions.devices.sampling.sample import Block
from retexo_fl.additions.devices.sampling.workspace import Workspace

#: A row is searched for the nodes of its group when it is longer than the group by this factor:
#: a bisection costs as much as reading so many entries. Tuned with groups of 60 and of 800 nodes on
#: a graph of 40 million edges, where 16 and 64 were slower by a seventh and more.
_SEARCH_FACTOR: Final = 32


def induced_block(
    adjacency: Adjacency, nodes: np.ndarray, bounds: np.ndarray, workspace: Workspace
) -> Block:
    """Return the square block of the subgraphs of several groups, which share no edge.

    The edges into a target are ascending by the id of their source. ``degrees`` count the edges
    within the subgraph.

    Args:
        adjacency: The graph.
        nodes: (S,) int64 ids, distinct within each group.
        bounds: (G + 1,) int64: group g is ``nodes[bounds[g]:bounds[g + 1]]``; with one group the
            result is ``A[nodes][:, nodes]`` with its columns in another order.
        workspace: As made; left so.
    """
    graph = (adjacency.indptr, adjacency.indices)
    found = np.empty(_most_edges(adjacency.indptr, nodes, bounds), adjacency.indices.dtype)
    indptr = np.zeros(len(nodes) + 1, dtype=np.int64)
    _induce(graph, nodes, bounds, (workspace.members, workspace.places), found, indptr)
    return Block(
        indptr=indptr,
        columns=found[: indptr[-1]].astype(np.int32),
        scales=None,
        degrees=np.diff(indptr),
        num_sources=len(nodes),
    )


@compiled
def _most_edges(indptr: np.ndarray, nodes: np.ndarray, bounds: np.ndarray) -> int:
    """Return how many edges the subgraphs have at most, and one entry for what is overwritten."""
    most = 1
    for group in range(len(bounds) - 1):
        size = bounds[group + 1] - bounds[group]
        for index in range(bounds[group], bounds[group + 1]):
            node = nodes[index]
            most += min(size, indptr[node + 1] - indptr[node])
    return most


@compiled
def _induce(  # noqa: PLR0917 - the graph, the groups, and what is written
    graph: tuple[np.ndarray, np.ndarray],
    nodes: np.ndarray,
    bounds: np.ndarray,
    scratch: tuple[np.ndarray, np.ndarray],
    found: np.ndarray,
    block_indptr: np.ndarray,
) -> None:
    """Write the places of the sources and where each target's begin."""
    indptr, indices = graph
    members, places = scratch
    edges = np.int64(0)
    for group in range(len(bounds) - 1):
        start, stop = bounds[group], bounds[group + 1]
        size = stop - start
        longest = 0
        for index in range(start, stop):
            node = nodes[index]
            members[node >> 3] |= np.uint8(1 << (node & 7))
            places[node] = index
            longest = max(longest, indptr[node + 1] - indptr[node])
        searched = nodes[start:stop]
        if longest > _SEARCH_FACTOR * size:
            searched = np.sort(searched)
        first_edge = edges
        for index in range(start, stop):
            node = nodes[index]
            row = indices[indptr[node] : indptr[node + 1]]
            if len(row) > _SEARCH_FACTOR * size:
                edges = _search(row, searched, found, edges)
            else:
                edges = _filter(row, members, found, edges)
            block_indptr[index + 1] = edges
        for edge in range(first_edge, edges):
            found[edge] = places[found[edge]]
        for index in range(start, stop):
            members[nodes[index] >> 3] = 0
            places[nodes[index]] = -1


@compiled
def _filter(row: np.ndarray, members: np.ndarray, found: np.ndarray, edges: np.int64) -> np.int64:
    """Write those of a row that are members; ``found`` has room for one more than there are.

    Places are unsigned, which halves the time: a negative index would have to be asked for.
    """
    end = np.uint64(edges)
    for place in range(len(row)):
        node = np.uint64(row[place])
        # Written in any case and kept if the bit is set: whether it is cannot be foreseen.
        found[end] = row[place]
        bits = np.uint64(members[node >> np.uint64(3)])
        end += (bits >> (node & np.uint64(7))) & np.uint64(1)
    return np.int64(end)


@compiled
def _search(row: np.ndarray, ascending: np.ndarray, found: np.ndarray, edges: np.int64) -> np.int64:
    """Write those of a row that are among ascending nodes, found by bisection."""
    low = 0
    for node in ascending:
        high = len(row)
        while low < high:
            middle = (low + high) >> 1
            if row[middle] < node:
                low = middle + 1
            else:
                high = middle
        if low == len(row):
            break
        if row[low] == node:
            found[edges] = node
            edges += 1
    return edges
