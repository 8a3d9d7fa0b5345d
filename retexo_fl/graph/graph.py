"""A whole graph: what is cut into partitions."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Self

import numpy as np

from retexo_fl.errors import DatasetError
from retexo_fl.graph.checks import ArrayChecks
from retexo_fl.graph.features import Features
from retexo_fl.graph.keys import check_keys, decimal_keys
from retexo_fl.graph.labels import (
    CLASSES,
    LINKS,
    MULTI_LABEL,
    LabelKind,
    count_outputs,
    counted_from_zero,
    kind_of,
)
from retexo_fl.graph.masks import Masks, Split, published_split
from retexo_fl.graph.neighbours import (
    IN,
    OUT,
    PLAIN,
    EdgeValues,
    NeighbourLists,
    neighbour_lists,
)
from retexo_fl.graph.recipes.recipe import FeatureRecipe
from retexo_fl.graph.sources.attributes import attribute_texts
from retexo_fl.graph.sources.foreign import as_array, as_features, as_labels, as_numbers
from retexo_fl.relations import Relations
from retexo_fl.units import format_count, format_counted

logger = logging.getLogger(__name__)

_NO_ATTRIBUTES: Final[Mapping[str, np.ndarray]] = MappingProxyType({})
#: Edges turned into columns in one go, so that scratch arrays stay small. Chosen; not tuned.
_CHUNK_EDGES: Final = 2**22


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayNames:
    """What the arrays of a graph are called where they come from; errors use these names."""

    source: str
    edges: str = "edges"
    features: str = "features"
    labels: str = "labels"
    edge_weights: str = "edge_weights"
    edge_attributes: str = "edge_attributes"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EdgeListGraph:
    """A graph as it is read: nothing is checked yet.

    Attributes:
        name: Name of the data set.
        edges: [2, E] integers, each edge once, in any order; from source to target of a directed
            graph.
        features: [N, F] numbers, dense or a SciPy matrix of any format; F is 0 for none.
        labels: What :func:`.as_labels` takes for ``kind``; None where they are not known, with
            ``num_classes``.
        kind: What labels are; None for what their form says.
        num_classes: C, or None for the classes that are there; not read of other labels.
        node_keys: [N] bytes, or None for the decimal node indices.
        split: The split that it brings, or None.
        attributes: [N] text or integers by name, which a graph may be cut by.
        recipe: What made features and labels of columns; None where nothing did.
        classes: Names of the classes, where the numbers, or texts, that labels hold are these.
        may_lack_edges: There may be no edge at all: of a graph that is predicted.
        relations: Types of its nodes, which their keys begin with, and relations; None without.
        edge_relations: [E] number of each edge's relation, where there are any.
    """

    name: str
    edges: np.ndarray
    features: Any
    labels: Any
    kind: LabelKind | None = None
    num_classes: int | None = None
    node_keys: np.ndarray | None = None
    split: Split | Masks | None = None
    attributes: Mapping[str, np.ndarray] = field(default_factory=lambda: _NO_ATTRIBUTES)
    recipe: FeatureRecipe | None = None
    classes: tuple[str, ...] = ()
    edge_values: EdgeValues = PLAIN
    directed: bool = False
    may_lack_edges: bool = False
    relations: Relations | None = None
    edge_relations: np.ndarray | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Graph:
    """A graph with features and labels; made by :meth:`from_edges`.

    The constructor itself checks nothing.

    Attributes:
        name: Name of the data set.
        node_keys: [N] bytes, dtype ``S``, unique.
        indptr: [N + 1] int64: node u's neighbours are ``indices[indptr[u]:indptr[u + 1]]``.
        indices: [e] integers, each pair of neighbours from both of its ends, ascending in each row;
            no self loop.
        features: [N, F] float32, dense or CSR; F is 0 where nodes have none.
        labels: [N] int64 classes, [N, L] int8 labels or [N] float64 numbers.
        num_classes: Outputs of a model: C classes, L labels, or one number.
        train_mask: Of the split that it brings, as it brings it (:class:`.Masks`), or None;
            :attr:`published_split` is what it names.
        val_mask: As ``train_mask``.
        test_mask: As ``train_mask``.
        attributes: [N] non-empty bytes by name: what a graph may be cut by. A source gives only
            those that it was asked for.
        recipe: What made features and labels of columns; None where nothing did.
        edge_values: Weights and attributes of the e neighbours, in the order of ``indices``.
        relations: Types of its nodes and relations between them; None without.
    """

    name: str
    node_keys: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray
    features: Features
    labels: np.ndarray
    num_classes: int
    train_mask: np.ndarray | None = None
    val_mask: np.ndarray | None = None
    test_mask: np.ndarray | None = None
    attributes: Mapping[str, np.ndarray] = field(default_factory=lambda: _NO_ATTRIBUTES)
    recipe: FeatureRecipe | None = None
    edge_values: EdgeValues = PLAIN
    relations: Relations | None = None

    @classmethod
    def from_edges(  # noqa: PLR0913 - a graph is so many arrays
        cls,
        edges: np.ndarray,
        *,
        name: str,
        features: Features,
        labels: np.ndarray,
        num_classes: int | None = None,
        node_keys: np.ndarray | None = None,
        split: Split | Masks | None = None,
        attributes: Mapping[str, np.ndarray] = _NO_ATTRIBUTES,
        edge_weights: np.ndarray | None = None,
        edge_attributes: np.ndarray | None = None,
        directed: bool = False,
    ) -> Self:
        """Build a graph from a list of edges.

        Args:
            edges: [2, E] integers below N, each edge once, in any order; undirected ones in any
                orientation, directed ones from source to target.
            name: Name of the data set.
            features: [N, F] numbers, rounded to float32; dense, or a SciPy matrix of any format. F
                of 0 for nodes without features: columns made of the edges take their place.
            labels: Of one of the forms of :mod:`~retexo_fl.graph.labels`, or [N] text.
            num_classes: C; None for the classes that are there, which keep their numbers, or texts,
                as names where they do not count from 0; not read of other labels.
            node_keys: [N] unique, non-empty bytes; None for the decimal node indices.
            split: The split that comes with it, if there is one; it is looked at when it is used.
            attributes: [N] text or integers by name, which the graph may be cut by.
            edge_weights: [E] numbers, rounded to float32; None for 1 each.
            edge_attributes: [E, A] numbers, likewise; None for none.
            directed: Whether edges have a direction.

        Raises:
            DatasetError: An array is not as described; the message names it and the row.
        """
        given = EdgeListGraph(
            name=name,
            edges=edges,
            features=features,
            labels=labels,
            num_classes=num_classes,
            node_keys=node_keys,
            split=split,
            attributes=attributes,
            edge_values=EdgeValues(weights=edge_weights, attributes=edge_attributes),
            directed=directed,
        )
        return cls.build(given, ArrayNames(source=name))

    @classmethod
    def build(cls, given: EdgeListGraph, names: ArrayNames) -> Self:
        """Check a graph as it was read and build it; see :meth:`from_edges`."""
        given = _with_named_classes(_converted(given, names), names)
        num_classes, keys = _check(given, names)
        num_nodes = len(keys)
        lists = _neighbours(given, num_nodes)
        split = given.split or Masks()
        masks = {"train_mask": split.train, "val_mask": split.val, "test_mask": split.test}
        return cls(
            name=given.name,
            node_keys=keys,
            indptr=lists.indptr,
            indices=lists.indices,
            edge_values=lists.values,
            features=given.features,
            labels=given.labels.astype(kind_of(given.labels).dtype),
            num_classes=num_classes,
            attributes=attribute_texts(names.source, given.attributes, num_nodes=num_nodes),
            recipe=given.recipe,
            relations=given.relations,
            **masks,
        )

    def __repr__(self) -> str:
        nodes, edges, features = (
            format_counted(self.num_nodes, "node"),
            format_counted(self.num_edges, "edge"),
            format_counted(self.num_features, "feature"),
        )
        outputs = self.label_kind.sizes_told(self.num_classes)
        return f"<Graph {self.name!r}: {nodes}, {edges}, {features}, {outputs}>"

    @property
    def task(self) -> str:
        """What its labels are for: ``classes``, ``multi-label`` or ``regression``."""
        return self.label_kind.name

    @property
    def label_kind(self) -> LabelKind:
        """What its labels are."""
        return kind_of(self.labels)

    @property
    def labelled(self) -> np.ndarray:
        """[N] bool: of which nodes a label is known."""
        return self.label_kind.labelled(self.labels)

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.labels)

    @property
    def num_edges(self) -> int:
        """Pairs of neighbours: E of an undirected graph."""
        return len(self.indices) // 2

    @property
    def is_directed(self) -> bool:
        """Whether edges have a direction."""
        return self.edge_values.is_directed and self.relations is None

    @property
    def num_features(self) -> int:
        """F."""
        return int(self.features.shape[1])

    @property
    def degrees(self) -> np.ndarray:
        """[N] int64 number of neighbours."""
        return np.diff(self.indptr)

    @property
    def masks(self) -> Masks:
        """The split that it brings, as it brings it."""
        return Masks(train=self.train_mask, val=self.val_mask, test=self.test_mask)

    @property
    def published_split(self) -> Split | None:
        """The split that it brings, the first of several.

        Raises:
            DatasetError: Its masks are none.
        """
        if not self.masks.columns:
            return None
        found = published_split(self.name, self.masks, keys=self.node_keys, labels=self.labels)
        return found.split

    def edge_list(self) -> np.ndarray:
        """Return the [2, E] edges, each once, smaller index first, sorted."""
        rows = np.repeat(np.arange(self.num_nodes), self.degrees)
        once = rows < self.indices
        return np.stack((rows[once], self.indices[once]))


def _converted(given: EdgeListGraph, names: ArrayNames) -> EdgeListGraph:
    """Return arrays in the types that a graph has, and the names of classes in its recipe."""
    checks = ArrayChecks(source=names.source, error=DatasetError)
    features = as_features(checks, names.features, given.features)
    weights, attributes = given.edge_values.weights, given.edge_values.attributes
    given = replace(
        given,
        features=features,
        edge_values=EdgeValues(
            weights=None if weights is None else as_numbers(checks, names.edge_weights, weights),
            attributes=None
            if attributes is None
            else as_numbers(checks, names.edge_attributes, attributes),
        ),
    )
    kind, is_read = given.kind, given.kind is None or given.kind.are_read
    if given.labels is None or not is_read:
        if kind is None or (is_read and given.num_classes is None):
            checks.fail(names.labels, f"missing; expected it, or task {LINKS.name}")
        outputs = given.num_classes or 1
        labels = kind.unlabelled(features.shape[0], outputs)
        return replace(given, labels=labels, num_classes=outputs)
    labels = as_array(given.labels)
    if kind is None and labels.dtype.kind in "bOUS":
        kind = CLASSES if labels.ndim == 1 else MULTI_LABEL
    if kind is not None:
        labels = as_labels(checks, names.labels, labels, kind)
    return replace(given, labels=labels)


def _with_named_classes(given: EdgeListGraph, names: ArrayNames) -> EdgeListGraph:
    """Return a graph whose classes count from 0; others keep their numbers as names, which is said.

    Who says how many classes there are counts them from 0.
    """
    labels = given.labels
    is_free = given.num_classes is None and (given.recipe is None or not given.recipe.classes)
    if labels.dtype.kind not in "iuU" or labels.ndim != 1 or not (given.classes or is_free):
        return given
    checks = ArrayChecks(source=names.source, error=DatasetError)
    numbers, classes = counted_from_zero(checks, names.labels, labels, known=given.classes)
    if not classes:
        return replace(given, labels=numbers)
    if not given.classes:
        told = ", ".join(classes[:12]) + (", ..." if len(classes) > 12 else "")
        logger.warning(
            "%s: %s: %s classes, which keep their names: %s",
            *(names.source, names.labels, format_count(len(classes)), told),
        )
    recipe = FeatureRecipe(classes=()) if given.recipe is None else given.recipe
    return replace(given, labels=numbers, recipe=recipe.with_classes(classes))


def _check(given: EdgeListGraph, names: ArrayNames) -> tuple[int, np.ndarray]:
    """Check all arrays; return the number of classes and the node keys."""
    checks = ArrayChecks(source=names.source, error=DatasetError)
    num_classes = count_outputs(checks, names.labels, given.labels, num_classes=given.num_classes)
    num_nodes = len(given.labels)
    kind_of(given.labels).check(checks, names.labels, given.labels, outputs=num_classes)
    checks.edges(
        names.edges,
        given.edges,
        num_nodes=num_nodes,
        directed=given.directed or given.relations is not None,
        relations=given.edge_relations,
        may_lack=given.may_lack_edges,
    )
    num_edges = given.edges.shape[1]
    checks.edge_values(names.edge_weights, given.edge_values.weights, num_edges=num_edges, ndim=1)
    checks.edge_values(
        names.edge_attributes, given.edge_values.attributes, num_edges=num_edges, ndim=2
    )
    checks.features(names.features, given.features, num_nodes=num_nodes)
    keys = decimal_keys(num_nodes) if given.node_keys is None else given.node_keys
    check_keys(checks, "node_keys", keys, num_nodes=num_nodes)
    return num_classes, keys


def _neighbours(given: EdgeListGraph, num_nodes: int) -> NeighbourLists:
    """Return the symmetric lists of a checked graph's neighbours."""
    values, edges = given.edge_values, given.edges
    if given.relations is not None:
        return _of_relations(given, given.relations, num_nodes)
    if values.is_plain and not given.directed:
        indptr, indices = _both_directions(edges, num_nodes)
        return NeighbourLists(indptr=indptr, indices=indices)
    twice = np.tile(np.arange(edges.shape[1]), 2)
    lists = neighbour_lists(
        np.concatenate((edges[1], edges[0])),
        np.concatenate((edges[0], edges[1])),
        shape=(num_nodes, num_nodes),
        values=values.as_float32().taken(twice),
        sides=np.repeat((IN, OUT), edges.shape[1]) if given.directed else None,
    )
    narrow = num_nodes <= np.iinfo(np.int32).max
    return replace(lists, indices=lists.indices.astype(np.int32) if narrow else lists.indices)


def _of_relations(given: EdgeListGraph, relations: Relations, num_nodes: int) -> NeighbourLists:
    """Return the lists of a typed graph: of each edge the channels both ways."""
    numbers, edges = given.edge_relations, given.edges
    assert numbers is not None
    last = relations.num_channels - 1
    is_symmetric = np.array([one.symmetric for one in relations.relations])[numbers]
    alike = np.flatnonzero(is_symmetric)
    places = np.concatenate([np.tile(np.arange(edges.shape[1]), 2), np.tile(alike, 2)])
    lists = neighbour_lists(
        np.concatenate((edges[1], edges[0], edges[0, alike], edges[1, alike])),
        np.concatenate((edges[0], edges[1], edges[1, alike], edges[0, alike])),
        shape=(num_nodes, num_nodes),
        values=given.edge_values.as_float32().taken(places),
        sides=np.concatenate((numbers, last - numbers, numbers[alike], last - numbers[alike])),
        channels=relations.num_channels,
    )
    return replace(lists, indices=lists.indices.astype(_index_type(num_nodes)))


def _index_type(num_nodes: int) -> type[np.integer]:
    return np.int32 if num_nodes <= np.iinfo(np.int32).max else np.int64


def _both_directions(edges: np.ndarray, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the symmetric CSR of an undirected edge list, columns sorted."""
    # One number, row * N + column, for each direction: ascending numbers are rows in order with
    # their columns in order. Sorted in place, it is the only large thing beside the result.
    num_edges = edges.shape[1]
    numbers = np.empty(2 * num_edges, dtype=np.int64)
    for start, rows, columns in ((0, *edges), (num_edges, *edges[::-1])):
        direction = slice(start, start + num_edges)
        numbers[direction] = rows
        numbers[direction] *= num_nodes
        numbers[direction] += columns.astype(np.int64, copy=False)
    numbers.sort()
    indptr = np.searchsorted(numbers, np.arange(num_nodes + 1) * num_nodes)
    narrow = num_nodes <= np.iinfo(np.int32).max
    indices = np.empty(len(numbers), dtype=np.int32 if narrow else np.int64)
    for first in range(0, len(numbers), _CHUNK_EDGES):
        chunk = slice(first, first + _CHUNK_EDGES)
        indices[chunk] = numbers[chunk] % num_nodes
    return indptr.astype(np.int64, copy=False), indices
