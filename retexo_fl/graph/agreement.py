"""Whether stored partitions belong together and agree on everything that two of them know."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from retexo_fl.errors import PartitionError
from retexo_fl.graph.boundary import BoundaryPlan
from retexo_fl.graph.partition import GraphPartition
from retexo_fl.graph.storage import open_partition


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
        for peer, view in part.views.items():
            _check_pair(part, parts[peer], peer, view)
    first = parts[0]
    return PartitionsReport(
        partitioning=first.partitioning,
        num_features=first.num_features,
        num_classes=first.num_classes,
        parts=tuple(part.report for part in parts),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _PairView:
    """What one client knows of what it shares with a peer."""

    send: bytes
    receive: bytes
    num_edges: int
    edges: bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Part:
    """What must be kept of a partition for comparisons; its large arrays are let go."""

    directory: Path
    partitioning: str
    num_clients: int
    num_features: int
    num_classes: int
    features: str
    keys: np.ndarray
    report: PartReport
    views: dict[int, _PairView]


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
        views=_pair_views(partition, plan),
    )


def _pair_views(partition: GraphPartition, plan: BoundaryPlan) -> dict[int, _PairView]:
    if not plan.peers:
        return {}
    inner = partition.num_inner
    cut = np.flatnonzero(partition.indices >= inner)
    rows = np.searchsorted(partition.indptr, cut, side="right") - 1
    slots = partition.indices[cut].astype(np.int64) - inner
    owners = partition.boundary_owners[slots]
    by_peer = np.argsort(owners, kind="stable")
    ends = np.searchsorted(owners[by_peer], [peer.peer for peer in plan.peers], side="right")
    views = {}
    for peer, edges in zip(plan.peers, np.split(by_peer, ends[:-1]), strict=True):
        mine = np.searchsorted(peer.send.rows, rows[edges])
        theirs = slots[edges] - peer.receive.slots[0]
        if partition.client < peer.peer:
            codes = mine * peer.receive.count + theirs
        else:
            codes = theirs * peer.send.count + mine
        views[peer.peer] = _PairView(
            send=peer.send.digest,
            receive=peer.receive.digest,
            num_edges=len(edges),
            edges=hashlib.sha256(np.sort(codes).astype("<i8").tobytes()).digest(),
        )
    return views


def _check_identities(parts: list[_Part]) -> None:
    first = parts[0]
    for part in parts[1:]:
        if part.partitioning != first.partitioning:
            raise PartitionError(
                f"{part.directory} is of partitioning {part.partitioning[:16]}, "
                f"{first.directory} of {first.partitioning[:16]}; expected parts of one"
            )
        for name in ("num_clients", "num_features", "num_classes", "features"):
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
            f"partitions: {len(missing)} of {first.num_clients} are missing, the first is that of "
            f"client {missing[0]}; expected one folder for each client"
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
            f"the inner node {bytes(keys[one])!r}; expected one owner"
        )


def _check_pair(part: _Part, other: _Part, peer: int, view: _PairView) -> None:
    client = part.report.client
    back = other.views.get(client)
    pair = f"{part.directory} and {other.directory}"
    if back is None:
        raise PartitionError(
            f"{pair}: client {client} has {view.num_edges} edges to client {peer}, which knows none"
        )
    if view.num_edges != back.num_edges or view.edges != back.edges:
        raise PartitionError(
            f"{pair}: client {client} has {view.num_edges} edges to client {peer}, which has "
            f"{back.num_edges} back; expected the same edges"
        )
    if view.send != back.receive:
        raise PartitionError(
            f"{pair}: they disagree on the nodes of client {client} with edges to client {peer}"
        )
