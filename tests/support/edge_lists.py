"""Parts whose owners listed other edges than their peers did, each a whole part by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from retexo_fl.client.preparation import load_parts
from retexo_fl.graph import GraphPartition, check_partition, hash_keys, write_partition
from tests.support.cli import write_graph
from tests.support.runs import configured

#: How the sentence of a run ends that finds other edges.
ADVICE = "an edge must stand in both parts; compare your boundary tables, then make the parts again"


@dataclass(frozen=True, slots=True, order=True)
class CutEdge:
    """An edge from an inner node to a node of a peer."""

    row: int
    owner: int
    key: bytes


def cut_edges(part: GraphPartition) -> list[CutEdge]:
    """Return the edges to other clients that a part lists."""
    rows = np.repeat(np.arange(part.num_inner), part.degrees)
    crossing = part.indices >= part.num_inner
    slots = part.indices[crossing] - part.num_inner
    columns = (rows[crossing], part.boundary_owners[slots], part.boundary_keys[slots])
    return [CutEdge(*edge) for edge in zip(*(column.tolist() for column in columns), strict=True)]


def with_cut_edges(part: GraphPartition, edges: Iterable[CutEdge]) -> GraphPartition:
    """Return a part that lists these edges to other clients, and the same inner ones."""
    listed = sorted(set(edges))
    slots = sorted({(edge.owner, edge.key) for edge in listed})
    place = {slot: part.num_inner + at for at, slot in enumerate(slots)}
    neighbours = [
        [column for column in part.indices[first:end].tolist() if column < part.num_inner]
        for first, end in zip(part.indptr[:-1], part.indptr[1:], strict=True)
    ]
    for edge in listed:
        neighbours[edge.row].append(place[edge.owner, edge.key])
    keys = np.array([key for _, key in slots], dtype=part.boundary_keys.dtype)
    changed = replace(
        part,
        indptr=np.concatenate(([0], np.cumsum([len(row) for row in neighbours]))),
        indices=np.array([column for row in neighbours for column in sorted(row)], dtype=np.int32),
        boundary_keys=keys,
        boundary_owners=np.array([owner for owner, _ in slots], dtype=np.int32),
        boundary_hashes=hash_keys(keys),
    )
    check_partition(changed, source="a part by itself")
    return changed


def without_first(part: GraphPartition) -> GraphPartition:
    """Return a part that lists all its edges to other clients but the first."""
    return with_cut_edges(part, cut_edges(part)[1:])


def make_parts_with(folder: Path, change: Callable[[GraphPartition], GraphPartition]) -> Path:
    """Cut a path of 12 nodes in two and have client 1 list other edges; return the parts."""
    folder.mkdir(exist_ok=True)
    data = write_graph(folder / "data")
    owners = folder / "owners.txt"
    # Edges 3-4, 7-8: two between the clients.
    owners.write_text("\n".join("000011110000"))
    keys = {"data_dir": data, "dataset": "small", "clients": 2, "partitioner": f"file:{owners}"}
    parts = load_parts(configured(folder / "unused", **keys))
    for part in (parts[0], change(parts[1])):
        write_partition(part, folder / "parts" / f"part-{part.client}")
    return folder / "parts"
