"""Whether stored partitions belong together and agree on everything that two of them hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from retexo_fl.errors import PartitionError
from retexo_fl.graph.keys import quoted
from retexo_fl.graph.neighbours import EdgeValues
from retexo_fl.graph.parts.storage import open_partition
from retexo_fl.graph.plan.boundary import BoundaryPlan
from retexo_fl.graph.recipes.recipe import named_recipe
from retexo_fl.relations import Relations, differing
from retexo_fl.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReport:
    """Sizes of one partition.

    Attributes:
        client: Its owner.
        nodes: Inner nodes.
        boundary: Boundary nodes: vectors that the client receives in an exchange.
        sent: Vectors that it sends.
        inner_edges: Undirected edges between inner nodes.
        cut_edges: Edges to boundary nodes.
        peers: Number of peers.
        train: Train nodes.
        val: Validation nodes.
        test: Test nodes.
    """

    client: int
    nodes: int
    boundary: int
    sent: int
    inner_edges: int
    cut_edges: int
    peers: int
    train: int
    val: int
    test: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsReport:
    """Sizes of a partitioning whose parts agree.

    Attributes:
        partitioning: Its identity.
        num_features: Width of the features.
        num_classes: Number of classes.
        parts: In client order.
    """

    partitioning: str
    num_features: int
    num_classes: int
    parts: tuple[PartReport, ...]

    @property
    def num_nodes(self) -> int:
        """Nodes of the graph."""
        return sum(part.nodes for part in self.parts)

    @property
    def num_edges(self) -> int:
        """Undirected edges of the graph."""
        return sum(part.inner_edges for part in self.parts) + self.num_cut_edges

    @property
    def num_cut_edges(self) -> int:
        """Edges between clients, each counted once."""
        return sum(part.cut_edges for part in self.parts) // 2


def check_partitions(directories: Sequence[Path]) -> PartitionsReport:
    """Verify stored partitions, each alone and every pair that shares edges.

    Args:
        directories: One folder for each client, in any order.

    Raises:
        PartitionError: A part is damaged, missing or there twice, parts are of two partitionings,
            or two parts disagree; the message names the folders.
    """
    if not directories:
        raise PartitionError("partitions: got no folder; expected one for each client")
    parts = [_summarise(path) for path in directories]
    _check_identities(parts)
    parts.sort(key=lambda part: part.report.client)
    _check_owners(parts)
    for part in parts:
        for peer in part.edge_lists:
            _check_pair(part, parts[peer])
    first = parts[0]
    return PartitionsReport(
        partitioning=first.partitioning,
        num_features=first.num_features,
        num_classes=first.num_classes,
        parts=tuple(part.report for part in parts),
    )


#: How many edges a client lists to a peer, and the digest over them.
_EdgeList = tuple[int, bytes]
_NO_EDGES: Final[_EdgeList] = (0, b"")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Part:
    """What must be kept of a partition for comparisons; its large arrays are freed."""

    directory: Path
    partitioning: str
    num_clients: int
    num_features: int
    num_classes: int
    features: str
    recipe: str
    keys: np.ndarray
    report: PartReport
    edge_lists: dict[int, _EdgeList]
    edges: str
    relations: Relations | None


def _summarise(directory: Path) -> _Part:
    partition = open_partition(directory)
    plan = BoundaryPlan.from_partition(partition)
    cut_edges = partition.num_cut_edges
    kind = "dense" if isinstance(partition.features, np.ndarray) else "sparse"
    return _Part(
        directory=directory,
        partitioning=partition.partitioning,
        num_clients=partition.num_clients,
        num_features=partition.num_features,
        num_classes=partition.num_classes,
        features=f"{kind} {partition.features.dtype}",
        recipe=partition.recipe_digest,
        keys=np.array(partition.node_keys),
        report=PartReport(
            client=partition.client,
            nodes=partition.num_inner,
            boundary=partition.num_boundary,
            sent=plan.num_send,
            inner_edges=(len(partition.indices) - cut_edges) // 2,
            cut_edges=cut_edges,
            peers=len(plan.peers),
            train=int(np.count_nonzero(partition.train_mask)),
            val=int(np.count_nonzero(partition.val_mask)),
            test=int(np.count_nonzero(partition.test_mask)),
        ),
        edge_lists={peer.peer: (peer.num_edges, peer.digest) for peer in plan.peers},
        edges=_edge_kind(partition.edge_values),
        relations=partition.relations,
    )


def _edge_kind(values: EdgeValues) -> str:
    """Say in a word what edges have that all parts must have alike."""
    direction = "directed" if values.is_directed else "undirected"
    return f"{direction}, with {counted(values.num_attributes, 'attribute')} each"


def _check_identities(parts: list[_Part]) -> None:
    first = parts[0]
    for part in parts[1:]:
        if told := differing(part.relations, first.relations):
            raise PartitionError(
                f"{part.directory} and {first.directory} have {told}; expected the same"
            )
        if part.partitioning != first.partitioning:
            raise PartitionError(
                f"{part.directory} is of partitioning {part.partitioning[:16]}, "
                f"{first.directory} of {first.partitioning[:16]}; expected parts of one"
            )
        if part.recipe != first.recipe:
            raise PartitionError(
                f"{part.directory} is of {named_recipe(part.recipe)}, {first.directory} of "
                f"{named_recipe(first.recipe)}; expected parts of one feature recipe"
            )
        for name in ("num_clients", "num_features", "num_classes", "features", "edges"):
            if getattr(part, name) != getattr(first, name):
                raise PartitionError(
                    f"{part.directory} has {name} {getattr(part, name)}, "
                    f"{first.directory} {getattr(first, name)}; expected the same"
                )
    by_client: dict[int, _Part] = {}
    for part in parts:
        other = by_client.setdefault(part.report.client, part)
        if other is not part:
            raise PartitionError(
                f"{part.directory} and {other.directory} are both of client "
                f"{part.report.client}; expected one folder for each client"
            )
    missing = sorted(set(range(first.num_clients)) - set(by_client))
    if missing:
        raise PartitionError(
            f"partitions: {len(missing)} of {first.num_clients} parts are missing, the first that "
            f"of client {missing[0]}; expected one folder for each client"
        )


def _check_owners(parts: list[_Part]) -> None:
    keys = np.concatenate([part.keys for part in parts])
    owners = np.repeat(np.arange(len(parts)), [len(part.keys) for part in parts])
    order = np.argsort(keys, kind="stable")
    repeated = np.flatnonzero(keys[order][1:] == keys[order][:-1])
    if len(repeated):
        one, two = order[repeated[0]], order[repeated[0] + 1]
        raise PartitionError(
            f"{parts[owners[one]].directory} and {parts[owners[two]].directory} both have "
            f"the inner node {quoted(keys[one])}; expected one owner"
        )


def _check_pair(part: _Part, other: _Part) -> None:
    """Check that two clients list the same edges between them."""
    one, two = sorted((part, other), key=lambda each: each.report.client)
    client, peer = one.report.client, two.report.client
    count, digest = one.edge_lists.get(peer, _NO_EDGES)
    back, back_digest = two.edge_lists.get(client, _NO_EDGES)
    if digest == back_digest:
        return
    edges = counted(count, "edge") if count else "no edges"
    if count == back and (differs := _differing_edge(one, two)):
        raise PartitionError(
            f"{one.directory} and {two.directory}: clients {client} and {peer} list the same "
            f"edges, but {differs}; expected the same weight and attributes in both parts"
        )
    if count == back:
        ones = "one" if count == 1 else "ones"
        told = (
            f"client {client} and client {peer} both list {edges} between them, "
            f"but not the same {ones}"
        )
    else:
        told = f"client {client} lists {edges} to client {peer}, which lists {back or 'none'} back"
    raise PartitionError(
        f"{one.directory} and {two.directory}: {told}; an edge must be listed in both parts, "
        f"but {_one_sided_edge(one, two)}"
    )


def _one_sided_edge(part: _Part, other: _Part) -> str:
    """Name the first edge that is in one of two parts only; the caller has both parts."""
    edges = set(_edges_between(part, other))
    back = {(ours, theirs) for theirs, ours in _edges_between(other, part)}
    ours, theirs = min(edges ^ back)
    holder = part if (ours, theirs) in edges else other
    return f"{quoted(ours)} - {quoted(theirs)} is in {holder.directory} only"


def _differing_edge(part: _Part, other: _Part) -> str:
    """Name the first edge that both parts have, but not alike; empty if there is none."""
    edges = _edges_between(part, other)
    back = {
        (ours, theirs): values for (theirs, ours), values in _edges_between(other, part).items()
    }
    if edges.keys() != back.keys():
        return ""
    for ours, theirs in sorted(edges):
        one, two = edges[ours, theirs], back[ours, theirs].reversed()
        for name in sorted(one.named().keys() | two.named().keys()):
            found, expected = one.named().get(name), two.named().get(name)
            if found is None or expected is None or not np.array_equal(found, expected):
                what = name.removeprefix("edge_").replace("_", " ")
                of = f"{quoted(ours)} - {quoted(theirs)}"
                return f"{what} of {of} are {_shown(found)} and {_shown(expected)}"
    return ""


def _shown(values: np.ndarray | None) -> str:
    return "absent" if values is None else str(np.squeeze(values).tolist())[:60]


def _edges_between(part: _Part, other: _Part) -> dict[tuple[bytes, bytes], EdgeValues]:
    """Return what edges from one client to another have that its part lists, by the ends' keys."""
    partition = open_partition(part.directory, verify=False)
    inner = partition.num_inner
    owners = np.concatenate((np.full(inner, part.report.client), partition.boundary_owners))
    crossing = np.flatnonzero(owners[partition.indices] == other.report.client)
    rows = np.searchsorted(partition.indptr, crossing, side="right") - 1
    slots = partition.indices[crossing] - inner
    keys, far_keys = partition.node_keys[rows], partition.boundary_keys[slots]
    values = (partition.edge_values.taken(np.array([place])) for place in crossing)
    return dict(zip(zip(keys.tolist(), far_keys.tolist(), strict=True), values, strict=True))
