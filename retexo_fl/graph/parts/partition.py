"""What one client holds of a graph, and what must be true of it."""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.errors import PartitionError
from retexo_fl.graph.checks import ArrayChecks
from retexo_fl.graph.features import Features
from retexo_fl.graph.keys import check_keys, hash_keys
from retexo_fl.graph.labels import LabelKind, kind_of
from retexo_fl.graph.masks import Split
from retexo_fl.graph.neighbours import PLAIN, EdgeValues, differing_rows, weighted_degrees
from retexo_fl.graph.recipes.recipe import FeatureRecipe
from retexo_fl.relations import Relations, text_of
from retexo_fl.units import format_counted

#: Hex digits of :attr:`GraphPartition.partitioning`: SHA-256.
PARTITIONING_DIGITS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GraphPartition:
    """A client's inner nodes, all edges incident to them, and who owns their other ends.

    Symbols: n inner nodes, b boundary nodes, e stored edges (an edge between two inner nodes is
    stored at both, an edge to a boundary node once), F features. The constructor checks nothing;
    :func:`check_partition` does.

    Attributes:
        partitioning: 64 hex digits, shared by all parts of one partitioning.
        client: Index of the owner.
        num_clients: Clients of the partitioning.
        node_keys: [n] bytes, dtype ``S``, ascending.
        indptr: [n + 1] int64: inner node u's neighbours are ``indices[indptr[u]:indptr[u + 1]]``.
        indices: [e] int32, ascending in each row; below n an inner node, n + s boundary slot s.
        boundary_keys: [b] bytes, sorted by (owner, key).
        boundary_owners: [b] int32 client that owns each boundary node.
        node_hashes: [n] uint64 hashes of ``node_keys`` (:func:`~retexo_fl.graph.keys.hash_keys`).
        boundary_hashes: [b] uint64 hashes of ``boundary_keys``.
        features: [n, F] float32, dense or CSR; F is 0 where nodes have none.
        labels: [n] int64 classes, [n, L] int8 labels or [n] float64 numbers.
        train_mask: [n] bool.
        val_mask: [n] bool.
        test_mask: [n] bool; the three are disjoint.
        num_classes: Outputs of a model of the whole graph: C classes, L labels or one number.
        recipe: What made features and labels of columns; None where nothing did.
        edge_values: Weights and attributes of the e edges, in the order of ``indices``.
        is_structural: Features are made of the edges, since nodes have none of their own; no part
            on disk is.
        relations: Types of nodes, which their keys begin with, and relations; None without.

    Source: RETEXO, section 2.1 (inner and boundary nodes).
    """

    partitioning: str
    client: int
    num_clients: int
    node_keys: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray
    boundary_keys: np.ndarray
    boundary_owners: np.ndarray
    node_hashes: np.ndarray
    boundary_hashes: np.ndarray
    features: Features
    labels: np.ndarray
    train_mask: np.ndarray
    val_mask: np.ndarray
    test_mask: np.ndarray
    num_classes: int
    recipe: FeatureRecipe | None = None
    edge_values: EdgeValues = PLAIN
    is_structural: bool = False
    relations: Relations | None = None

    def __repr__(self) -> str:
        features = format_counted(self.num_features, "feature")
        sizes = f"{features}, {self.label_kind.sizes_told(self.num_classes)}"
        inner = format_counted(self.num_inner, "node")
        boundary = format_counted(self.num_boundary, "boundary node")
        return f"<GraphPartition {self.client} of {self.num_clients}: {inner}, {boundary}, {sizes}>"

    @property
    def num_inner(self) -> int:
        """Inner nodes: n."""
        return len(self.node_keys)

    @property
    def num_boundary(self) -> int:
        """Boundary nodes: b."""
        return len(self.boundary_keys)

    @property
    def num_features(self) -> int:
        """Width of the features: F."""
        return int(self.features.shape[1])

    @property
    def num_cut_edges(self) -> int:
        """Edges between an inner and a boundary node."""
        return int(np.count_nonzero(self.indices >= self.num_inner))

    @property
    def degrees(self) -> np.ndarray:
        """[n] degrees in the whole graph, or what all edges weigh: all incident ones are held.

        int64; float64 of weighted edges; [n, 2] of directed ones, incoming first.
        """
        return weighted_degrees(self.indptr, self.edge_values)

    @property
    def kinds(self) -> np.ndarray | None:
        """[n] int16 types of the inner nodes; None where they have none."""
        return None if self.relations is None else self.relations.kinds(self.node_keys)

    @property
    def boundary_kinds(self) -> np.ndarray | None:
        """[b] int16 types of the boundary nodes; None where they have none."""
        return None if self.relations is None else self.relations.kinds(self.boundary_keys)

    @property
    def relations_text(self) -> str:
        """Types and relations as they are sent and kept; empty without."""
        return text_of(self.relations)

    @property
    def peers(self) -> tuple[int, ...]:
        """Clients that own a boundary node, ascending."""
        return tuple(np.unique(self.boundary_owners).tolist())

    @property
    def recipe_digest(self) -> str:
        """64 hex digits that name the recipe; empty without one."""
        return "" if self.recipe is None else self.recipe.digest

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, by class; empty where they have none but their numbers."""
        if self.recipe is None or not self.label_kind.are_classes:
            return ()
        return self.recipe.classes

    @property
    def task(self) -> str:
        """What its labels are for: ``classes``, ``multi-label`` or ``regression``."""
        return self.label_kind.name

    @property
    def label_kind(self) -> LabelKind:
        """What its labels are."""
        return kind_of(self.labels)

    @property
    def split(self) -> Split:
        """The three masks together."""
        return Split(train=self.train_mask, val=self.val_mask, test=self.test_mask)


def check_partition(partition: GraphPartition, *, source: str) -> None:
    """Check everything that can be known about a partition without its peers.

    Args:
        partition: To be checked.
        source: Where it came from, for errors.

    Raises:
        PartitionError: Something does not hold; the message names the array and the row.
    """
    checks = ArrayChecks(source=source, error=PartitionError)
    _check_identity(partition, checks)
    _check_nodes(partition, checks)
    _check_boundary(partition, checks)
    _check_edges(partition, checks)
    if partition.relations is not None:
        _check_types(partition, partition.relations, checks)


def _check_identity(partition: GraphPartition, checks: ArrayChecks) -> None:
    digest = partition.partitioning
    if len(digest) != PARTITIONING_DIGITS or not set(digest) <= set(string.hexdigits.lower()):
        checks.fail("partitioning", f"got {digest!r}; expected {PARTITIONING_DIGITS} hex digits")
    if not 0 <= partition.client < partition.num_clients:
        checks.fail("client", f"got {partition.client}; expected 0 to {partition.num_clients - 1}")
    if partition.num_classes < 1:
        checks.fail("num_classes", f"got {partition.num_classes}; expected at least 1")
    recipe = partition.recipe
    if recipe is None:
        return
    if recipe.columns and partition.num_features != recipe.num_features:
        checks.fail(
            "features",
            f"got {partition.num_features} columns; expected {recipe.num_features}, as the recipe "
            "makes",
        )
    if partition.class_names and partition.num_classes != len(recipe.classes):
        checks.fail(
            "num_classes",
            f"got {partition.num_classes}; expected {len(recipe.classes)}, as in the recipe",
        )


def _check_nodes(partition: GraphPartition, checks: ArrayChecks) -> None:
    keys, count = partition.node_keys, partition.num_inner
    if count == 0:
        checks.fail("node_keys", "there are no nodes; expected at least one")
    check_keys(checks, "node_keys", keys, num_nodes=count)
    unsorted = np.flatnonzero(keys[1:] <= keys[:-1])
    if len(unsorted):
        checks.fail("node_keys", f"row {unsorted[0] + 1} is out of order; expected sorted keys")
    _check_hashes(checks, "node_hashes", partition.node_hashes, keys)
    if len(partition.labels) != count:
        checks.fail("labels", f"has {len(partition.labels)} rows; expected {count}")
    kind = partition.label_kind
    kind.check(checks, "labels", partition.labels, outputs=partition.num_classes)
    checks.masks(partition.split.named(), kind.labelled(partition.labels))
    checks.features("features", partition.features, num_nodes=count)


def _check_boundary(partition: GraphPartition, checks: ArrayChecks) -> None:
    keys, owners, count = partition.boundary_keys, partition.boundary_owners, partition.num_boundary
    check_keys(checks, "boundary_keys", keys, num_nodes=count)
    checks.form("boundary_owners", owners, kinds="i", shape=(count,))
    wrong = (owners < 0) | (owners >= partition.num_clients) | (owners == partition.client)
    if wrong.any():
        slot = int(np.argmax(wrong))
        checks.fail(
            "boundary_owners",
            f"row {slot} is {owners[slot]}; expected another client of {partition.num_clients}",
        )
    rises = (owners[1:] > owners[:-1]) | ((owners[1:] == owners[:-1]) & (keys[1:] > keys[:-1]))
    if not rises.all():
        slot = int(np.argmin(rises)) + 1
        checks.fail("boundary_keys", f"row {slot} is out of order; expected (owner, key) order")
    inner = np.flatnonzero(np.isin(keys, partition.node_keys))
    if len(inner):
        checks.fail("boundary_keys", f"row {inner[0]} is also an inner node; expected peers' nodes")
    _check_hashes(checks, "boundary_hashes", partition.boundary_hashes, keys)


def _check_hashes(checks: ArrayChecks, name: str, hashes: np.ndarray, keys: np.ndarray) -> None:
    checks.form(name, hashes, kinds="iu", shape=(len(keys),))
    wrong = np.flatnonzero(hashes != hash_keys(keys))
    if len(wrong):
        checks.fail(name, f"row {wrong[0]} is not the hash of its key")


def _check_edges(partition: GraphPartition, checks: ArrayChecks) -> None:
    indptr, indices, inner = partition.indptr, partition.indices, partition.num_inner
    checks.form("indptr", indptr, kinds="i", shape=(inner + 1,))
    checks.form("indices", indices, kinds="i", shape=(None,))
    checks.offsets("indptr", indptr, num_entries=len(indices))
    num_columns = inner + partition.num_boundary
    checks.columns("indices", indices, indptr, num_columns=num_columns)
    rows = np.repeat(np.arange(inner), np.diff(indptr))
    loops = np.flatnonzero(rows == indices)
    if len(loops):
        checks.fail("indices", f"row {rows[loops[0]]} has a self loop; expected none")
    unused = np.flatnonzero(np.bincount(indices, minlength=num_columns)[inner:] == 0)
    if len(unused):
        checks.fail("boundary_keys", f"row {unused[0]} has no edge; expected at least one")
    own = indices < inner
    forward = csr_array(
        (np.ones(np.count_nonzero(own), dtype=np.int8), (rows[own], indices[own])),
        shape=(inner, inner),
    )
    forward.sort_indices()
    backward = forward.tocsc()
    if not np.array_equal(forward.indptr, backward.indptr) or not np.array_equal(
        forward.indices, backward.indices
    ):
        checks.fail("indices", "an edge between inner nodes is stored in one direction only")
    _check_edge_values(partition, checks, rows)


def _check_edge_values(partition: GraphPartition, checks: ArrayChecks, rows: np.ndarray) -> None:
    """Check that values are finite, and that both ends of an inner edge hold the same."""
    values, count = partition.edge_values, len(partition.indices)
    relations = partition.relations
    sides = (2,) * values.is_directed if relations is None else (relations.num_channels,)
    shapes = {"weights": (count, *sides), "attributes": (count, *sides, values.num_attributes)}
    for name, array in values.named().items():
        checks.form(name, array, kinds="f", shape=shapes[name.removeprefix("edge_")])
        checks.finite(name, array)
    if values.is_plain:
        return
    inner = np.flatnonzero(partition.indices < partition.num_inner)
    numbered = csr_array(
        (inner, (rows[inner], partition.indices[inner])), shape=(partition.num_inner,) * 2
    )
    from_other_end = csr_array(numbered.T.tocsr())
    back = values.taken(from_other_end.data).reversed().named()
    for name, array in values.taken(inner).named().items():
        differs = differing_rows(array, back[name])
        if len(differs):
            checks.fail(
                name,
                f"row {inner[differs[0]]} is not what the edge's other end holds; expected "
                "the same",
            )


def _check_types(partition: GraphPartition, relations: Relations, checks: ArrayChecks) -> None:
    """Check that nodes are of types, edges of relations, and labels of the labelled type."""
    own, foreign = relations.kinds(partition.node_keys), relations.kinds(partition.boundary_keys)
    for name, kinds in (("node_keys", own), ("boundary_keys", foreign)):
        unknown = np.flatnonzero(kinds < 0)
        if len(unknown):
            known = ", ".join(relations.types)
            checks.fail(name, f"row {unknown[0]} is of no type; expected one of {known}")
    if partition.num_features != relations.num_features:
        checks.fail(
            "features",
            f"got {partition.num_features} columns; expected {relations.num_features}, as the "
            "types have",
        )
    labelled = partition.label_kind.labelled(partition.labels)
    labelled &= ~np.isin(own, relations.with_loss(None))
    if labelled.any():
        names = " and ".join(relations.types[kind] for kind in relations.with_labels) or "none"
        checks.fail("labels", f"row {np.argmax(labelled)} has one; expected them of type {names}")
    weights = partition.edge_values.weights
    if weights is None:
        checks.fail("edge_weights", "missing; expected a weight for each channel of the relations")
    targets = np.repeat(own, np.diff(partition.indptr))
    sources = np.concatenate((own, foreign))[partition.indices]
    last = relations.num_channels - 1
    for place, one in enumerate(relations.relations):
        for column, source, target in (
            (place, one.source, one.target),
            (last - place, one.target, one.source),
        ):
            fits = (sources == source) & (targets == target)
            wrong = np.flatnonzero((weights[:, column] != 0) & ~fits)
            if len(wrong):
                checks.fail(
                    "edge_weights",
                    f"row {wrong[0]} is of relation {one.name}; expected nodes of its types",
                )
