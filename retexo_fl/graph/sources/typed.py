"""A graph with types of nodes and edges, of one table or store for each type and each relation.

Features of types are side by side as the columns of one sparse matrix; a type without features
has one column, which says what it is. Nodes keep the keys that they have in their type, behind the
type's name.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from scipy.sparse import block_diag, csr_array

from retexo_fl.errors import DatasetError
from retexo_fl.graph.checks import ArrayChecks
from retexo_fl.graph.features import Features
from retexo_fl.graph.graph import ArrayNames, EdgeListGraph, Graph
from retexo_fl.graph.keys import decimal_keys
from retexo_fl.graph.labels import LabelKind, class_names, disjoint_classes
from retexo_fl.graph.masks import Masks
from retexo_fl.graph.neighbours import EdgeValues
from retexo_fl.graph.recipes import FeatureRecipe
from retexo_fl.graph.sources.attributes import demand_attributes
from retexo_fl.graph.sources.edge_rules import (
    EdgeList,
    EdgeRules,
    early_edges,
    ruled_edges,
    tell_unknown,
)
from retexo_fl.graph.sources.foreign import as_array, as_features, as_labels
from retexo_fl.graph.sources.label_choice import LABEL_KEY, LABELS
from retexo_fl.graph.sources.reading import Reading
from retexo_fl.relations import Relation, Relations, keys_of_type

logger = logging.getLogger(__name__)

#: What a typed graph may be cut by: one client for each type.
TYPE: Final = "type"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TypedNodes:
    """Nodes of one type, as they are read.

    Attributes:
        name: Of the type.
        count: n of them; None for as many as features or labels have rows.
        features: [n, F_t] numbers of any form; None for none.
        keys: [n] bytes; None for decimal numbers.
        labels: As :class:`.EdgeListGraph` takes them; None for none.
        masks: Of these nodes.
        attributes: By name [n] text or whole numbers, which the graph may be cut by.
        rows: [n] where they were among all; None for behind those of the type before.
    """

    name: str
    count: int | None = None
    features: Any = None
    keys: np.ndarray | None = None
    labels: Any = None
    masks: Masks = field(default_factory=Masks)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    rows: np.ndarray | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TypedEdges:
    """Edges of one relation, as they are read.

    Attributes:
        source: Type that they come from.
        name: Of the relation.
        target: Type that they lead to.
        edges: Their ends are numbers within their types.
        times: [E] when they came; None where they have no times.
    """

    source: str
    name: str
    target: str
    edges: EdgeList
    times: np.ndarray | None = None

    @property
    def called(self) -> str:
        """What errors call them."""
        return f"relation {self.source} {self.name} {self.target}"


def typed_graph(
    nodes: Sequence[TypedNodes],
    edges: Sequence[TypedEdges],
    *,
    name: str,
    reading: Reading,
    num_classes: int | None = None,
    attributes: Sequence[str] = (),
    recipe: FeatureRecipe | None = None,
) -> Graph:
    """Put types and relations together.

    Of undirected edges those of one type with itself have no direction; along those between two
    types rows go both ways. Of directed ones incoming and outgoing edges differ. A relation that
    holds the edges of another one in the other direction is the same relation.

    Args:
        nodes: By type.
        edges: By relation.
        name: Of the graph.
        reading: How it is read.
        num_classes: C; None for the classes that are there.
        attributes: What it may be cut by: :data:`TYPE`, or what nodes of every type have.
        recipe: What made features and classes of columns; None for nothing.

    Raises:
        DatasetError: A type or a relation is not as described; the message names it.
    """
    checks = ArrayChecks(source=name, error=DatasetError)
    shared = set.intersection(*({*one.attributes} for one in nodes)) if nodes else set()
    demand_attributes(name, {TYPE, *shared}, attributes)
    _check_names(checks, nodes, edges)
    nodes, edges = _in_order_of_model(nodes, edges, reading.relations)
    nodes = _as_asked(checks, nodes, reading)
    features = [_features(checks, one) for one in nodes]
    counts = [_count(checks, one, of_type) for one, of_type in zip(nodes, features, strict=True)]
    labelled = _labelled(checks, nodes, reading)
    owners = {
        kind: (nodes[kind], slice(sum(counts[:kind]), sum(counts[: kind + 1]))) for kind in labelled
    }
    if reading.num_features == 0:
        features = [None] * len(nodes)
    if not any(one is not None for one in features):
        logger.warning("%s: no type of nodes has features: a row says its type alone", name)
    starts = np.concatenate(([0], np.cumsum(counts)))
    places = {one.name: kind for kind, one in enumerate(nodes)}
    read = _without_mirrors(
        checks, [_ruled(checks, one, places, starts, reading.rules) for one in edges]
    )
    relations = Relations(
        types=tuple(places),
        widths=tuple(1 if one is None else int(one.shape[1]) for one in features),
        relations=tuple(
            Relation(
                places[one.source],
                one.name,
                places[one.target],
                one.source == one.target and not reading.rules.directed,
            )
            for one in read
        ),
        with_labels=labelled,
    )
    if problem := next(relations.problems(), None):
        checks.fail("types", problem)
    total = int(starts[-1])
    labels, split, source = None, None, "labels"
    if owners:
        source = f"labels of {' and '.join(owner.name for owner, _ in owners.values())}"
        labels = _labels(checks, owners.values(), reading, total, num_classes)
        split = _spread_masks(checks, owners.values(), total) if reading.masks else None
    given = EdgeListGraph(
        name=name,
        edges=np.concatenate([one.edges.ends for one in read], axis=1),
        edge_values=_joined_values(read),
        edge_relations=np.repeat(np.arange(len(read)), [one.edges.ends.shape[1] for one in read]),
        relations=relations,
        features=_joined_features(features, counts),
        labels=labels,
        kind=reading.labels,
        classes=reading.classes,
        num_classes=num_classes if reading.outputs is None else reading.outputs,
        node_keys=np.concatenate(
            [_keys(checks, one, count) for one, count in zip(nodes, counts, strict=True)]
        ),
        split=split,
        attributes={
            one: np.repeat([*places], counts)
            if one == TYPE
            else np.concatenate([of_type.attributes[one] for of_type in nodes])
            for one in attributes
        },
        recipe=recipe,
        may_lack_edges=reading.may_lack_edges,
    )
    if all(one.rows is not None for one in nodes):
        given = _as_they_stood(given, np.concatenate([one.rows for one in nodes]))
    return Graph.build(given, ArrayNames(source=name, labels=source))


def _in_order_of_model(
    nodes: Sequence[TypedNodes], edges: Sequence[TypedEdges], model: Relations | None
) -> tuple[Sequence[TypedNodes], Sequence[TypedEdges]]:
    """Return types and relations in the order that a model has them, where these are the same."""
    if model is None:
        return nodes, edges
    types = {one.name: one for one in nodes}
    relations = {(one.source, one.name, one.target): one for one in edges}
    wanted = [
        (model.types[one.source], one.name, model.types[one.target]) for one in model.relations
    ]
    if types.keys() == {*model.types}:
        nodes = [types[name] for name in model.types]
    if {*wanted} <= relations.keys():
        edges = [relations.pop(key) for key in wanted] + [*relations.values()]
    return nodes, edges


def _as_they_stood(given: EdgeListGraph, rows: np.ndarray) -> EdgeListGraph:
    """Return a graph with its nodes in their former order, which ``rows`` say."""
    order = np.argsort(rows)
    masks = given.split
    if isinstance(masks, Masks):
        there = {name.removesuffix("_mask"): one[order] for name, one in masks.there().items()}
        masks = Masks(**there)
    assert given.node_keys is not None
    return replace(
        given,
        edges=np.argsort(order)[given.edges],
        features=given.features[order],
        labels=None if given.labels is None else given.labels[order],
        node_keys=given.node_keys[order],
        split=masks,
        attributes={name: values[order] for name, values in given.attributes.items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TypedWhole:
    """A graph of one source, which says of each node and each edge what it is.

    Attributes:
        types: Names.
        kinds: [N] type of each node, a number.
        features: By type, of its nodes in their order; None for none.
        keys: [N] bytes; None for decimal numbers.
        labels: Of all nodes; None for none.
        known: [N] of which nodes a label is known.
        masks: Of all nodes.
        edges: Their ends are numbers among all nodes.
        names: [E] text: names of their relations.
        times: [E] when they came; None where they have no times.
    """

    types: Sequence[str]
    kinds: np.ndarray
    features: Sequence[Any]
    keys: np.ndarray | None
    labels: Any
    known: np.ndarray
    masks: Masks
    edges: EdgeList
    names: np.ndarray
    times: np.ndarray | None = None

    def nodes(self, checks: ArrayChecks, asked: Collection[str]) -> list[TypedNodes]:
        """Return the nodes of each type.

        Args:
            checks: Names the source in errors.
            asked: Types whose labels and masks are read; empty for all.

        Raises:
            DatasetError: A mask has a node of a type without labels.
        """
        keys = decimal_keys(len(self.kinds)) if self.keys is None else self.keys
        found = []
        for kind, name in enumerate(self.types):
            rows = np.flatnonzero(self.kinds == kind)
            masks = {key: as_array(mask)[rows] for key, mask in self.masks.there().items()}
            is_labelled = bool(self.known[rows].any()) and (not asked or name in asked)
            for key, mask in masks.items():
                if not is_labelled and not asked and mask.any():
                    checks.fail(key, f"has nodes of type {name}; expected nodes with labels only")
            found.append(
                TypedNodes(
                    name=name,
                    count=len(rows),
                    features=self.features[kind],
                    keys=keys[rows],
                    labels=self.labels[rows] if is_labelled else None,
                    masks=Masks(**{key.removesuffix("_mask"): mask for key, mask in masks.items()})
                    if is_labelled
                    else Masks(),
                    rows=rows,
                )
            )
        return found

    def relations(self, checks: ArrayChecks, reading: Reading) -> list[TypedEdges]:
        """Return the edges of each relation.

        Raises:
            DatasetError: An end is no node, and the rules refuse that.
        """
        edges, names, times = self.edges, self.names, self.times
        checks.form("edges", edges.ends, kinds="iu", shape=(2, None))
        count = len(self.kinds)
        known = np.asarray(((edges.ends >= 0) & (edges.ends < count)).all(axis=0))
        if not known.all() and reading.rules.unknown != "drop":
            at = int(np.argmin(known))
            pair = f"({edges.ends[0, at]}, {edges.ends[1, at]})"
            checks.fail("edges", f"column {at} is {pair}; expected nodes 0..{count - 1}")
        if not known.all():
            tell_unknown(checks.source, int(np.count_nonzero(~known)))
            edges, names = edges.taken(known), names[known]
            times = None if times is None else times[known]
        places = np.empty(count, dtype=np.int64)
        for kind in range(len(self.types)):
            rows = np.flatnonzero(self.kinds == kind)
            places[rows] = np.arange(len(rows))
        ends = edges.ends.astype(np.int64)
        return [
            TypedEdges(
                source=self.types[one.source],
                name=one.name,
                target=self.types[one.target],
                edges=EdgeList(
                    ends=np.where(
                        one.turned, places[ends[::-1, one.rows]], places[ends[:, one.rows]]
                    ),
                    values=edges.values.taken(one.rows),
                ),
                times=None if times is None else times[one.rows],
            )
            for one in rows_by_relation(self.kinds[ends], names, self.types, reading)
        ]


def typed_whole(
    given: TypedWhole, *, name: str, source: str, reading: Reading, attributes: Sequence[str]
) -> Graph:
    """Put a graph together whose one source says types; nodes keep their order.

    Raises:
        DatasetError: As :func:`typed_graph`.
    """
    checks = ArrayChecks(source=source, error=DatasetError)
    return typed_graph(
        given.nodes(checks, reading.label_types),
        given.relations(checks, reading),
        name=name,
        reading=reading,
        attributes=attributes,
    )


def known_labels(labels: Any, kind: LabelKind, count: int) -> np.ndarray:
    """Return [N] of which nodes a label is known; none of no labels."""
    if labels is None or not kind.are_read:
        return np.zeros(count, dtype=bool)
    given = as_array(labels)
    if given.dtype.kind == "U":
        return np.asarray(given != "")
    return kind.labelled(given)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RelationRows:
    """Which of some edges are of a relation.

    Attributes:
        source: Type of the nodes that they come from, a number.
        name: Of the relation.
        target: Likewise.
        rows: [e] numbers of the edges.
        turned: [e] which of them are listed from target to source.
    """

    source: int
    name: str
    target: int
    rows: np.ndarray
    turned: np.ndarray


def rows_by_relation(
    kinds: np.ndarray, names: np.ndarray, types: Sequence[str], reading: Reading
) -> list[RelationRows]:
    """Divide edges by their name and the types of their ends.

    Edges of one name between two types are one relation, whichever end comes first, unless edges
    have a direction. It leads as in the model, or else as in its first edge.

    Args:
        kinds: [2, E] types of the ends, numbers.
        names: [E] text.
        types: Their names.
        reading: How the graph is read.
    """
    known = set()
    if (model := reading.relations) is not None:
        known = {(model.types[o.source], o.name, model.types[o.target]) for o in model.relations}
    _, numbers = np.unique(names, return_inverse=True)
    low, high = kinds if reading.rules.directed else (kinds.min(axis=0), kinds.max(axis=0))
    codes = (numbers.astype(np.int64) * len(types) + low) * len(types) + high
    _, first, at = np.unique(codes, return_index=True, return_inverse=True)
    found = []
    for group in np.argsort(first).tolist():
        row = int(first[group])
        source, target = int(kinds[0, row]), int(kinds[1, row])
        name = str(names[row])
        back = (types[target], name, types[source])
        if back in known and not reading.rules.directed:
            source, target = target, source
        rows = np.flatnonzero(at == group)
        turned = kinds[0, rows] != source
        found.append(
            RelationRows(source=source, name=name, target=target, rows=rows, turned=turned)
        )
    return found


def _check_names(
    checks: ArrayChecks, nodes: Sequence[TypedNodes], edges: Sequence[TypedEdges]
) -> None:
    names = [one.name for one in nodes]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        checks.fail(f"type {twice[0]}", "is there twice; expected each type once")
    told = ", ".join(names) or "none"
    if not edges:
        checks.fail("relations", "there are none; expected at least one")
    seen = set()
    for one in edges:
        for kind in (one.source, one.target):
            if kind not in names:
                checks.fail(one.called, f"there is no type {kind}; expected one of {told}")
        if (one.source, one.name, one.target) in seen:
            checks.fail(one.called, "is there twice; expected each relation once")
        seen.add((one.source, one.name, one.target))


def _features(checks: ArrayChecks, one: TypedNodes) -> Features | None:
    if one.features is None:
        return None
    found = as_features(checks, f"features of {one.name}", one.features)
    if len(found.shape) == 2 and not found.shape[1] and one.rows is not None:
        return None
    if len(found.shape) != 2 or not found.shape[1]:
        checks.fail(
            f"features of {one.name}", f"got shape {found.shape}; expected (n, F), F at least 1"
        )
    return found


def _count(checks: ArrayChecks, one: TypedNodes, features: Features | None) -> int:
    """Return how many nodes a type has."""
    counts = {
        "features": None if features is None else int(features.shape[0]),
        "keys": None if one.keys is None else len(one.keys),
        "labels": None if one.labels is None else len(one.labels),
        "num_nodes": one.count,
    }
    there = {name: count for name, count in counts.items() if count is not None}
    if not there:
        checks.fail(f"type {one.name}", "has no features; expected them, or num_nodes")
    (first, count), *others = there.items()
    for name, other in others:
        if other != count:
            checks.fail(f"type {one.name}", f"has {count} {first} and {other} {name}")
    if not count:
        checks.fail(f"type {one.name}", "has no nodes; expected at least one")
    return count


def _as_asked(
    checks: ArrayChecks, nodes: Sequence[TypedNodes], reading: Reading
) -> Sequence[TypedNodes]:
    """Return nodes with labels of some types alone; of all where none is asked for."""
    asked = reading.label_types
    if not asked:
        return nodes
    has = [one.name for one in nodes if one.labels is not None]
    unknown = sorted(asked.difference(has))
    if unknown and reading.needs_labels:
        checks.fail(
            "label-types",
            f"got {unknown[0]!r}; expected of {', '.join(has) or 'none'}, with labels",
        )
    return [one if one.name in asked else replace(one, labels=None, masks=Masks()) for one in nodes]


def _labelled(
    checks: ArrayChecks, nodes: Sequence[TypedNodes], reading: Reading
) -> tuple[int, ...]:
    """Return which types have labels, those of the model if there is one; none for edges."""
    model = reading.relations
    if not (reading.labels.are_read or reading.outputs) or (model and not model.with_labels):
        return ()
    found = [kind for kind, one in enumerate(nodes) if one.labels is not None]
    if model is not None:
        names = [model.types[kind] for kind in model.with_labels]
        found = [kind for kind, one in enumerate(nodes) if one.name in names] or found
    if not found and reading.label:
        checks.fail(
            LABEL_KEY,
            f"no type has {reading.label[:60]!r}; expected the name of an array beside x, or name "
            f"or number of a column of {LABELS}",
        )
    if not found:
        checks.fail("labels", "no type has them; expected one type with labels, or several")
    return tuple(found)


def _ruled(
    checks: ArrayChecks,
    one: TypedEdges,
    places: Mapping[str, int],
    starts: np.ndarray,
    rules: EdgeRules,
) -> TypedEdges:
    """Return a relation's edges with their ends as numbers in the graph, each there once."""
    kinds = places[one.source], places[one.target]
    edges = one.edges
    checks.form(one.called, edges.ends, kinds="iu", shape=(2, None))
    early = early_edges(checks.source, one.called, one.times, rules)
    if early is not None:
        edges = edges.taken(early)
    ends = edges.ends.astype(np.int64)
    if not ends.size:
        checks.fail(one.called, "has no edges; expected at least one")
    known = np.ones(ends.shape[1], dtype=bool)
    for side, kind in enumerate(kinds):
        known &= (ends[side] >= 0) & (ends[side] < starts[kind + 1] - starts[kind])
    if not known.all() and rules.unknown != "drop":
        at = int(np.argmin(known))
        most = [int(starts[kind + 1] - starts[kind] - 1) for kind in kinds]
        checks.fail(
            one.called,
            f"edge {at} is {ends[0, at]} to {ends[1, at]}; expected nodes 0..{most[0]} of "
            f"{one.source} and 0..{most[1]} of {one.target}, or unknown-nodes drop",
        )
    edges = replace(edges, ends=ends + starts[[*kinds]][:, None])
    if not known.all():
        logger.warning(
            "%s: %s: edges to unknown nodes left out: %s",
            checks.source,
            one.called,
            f"{np.count_nonzero(~known):,}",
        )
        edges = edges.taken(known)
    if edges.values.attributes is not None:
        logger.warning("%s: %s: attributes of edges not used", checks.source, one.called)
        edges = replace(edges, values=replace(edges.values, attributes=None))
    if kinds[0] != kinds[1]:
        rules = replace(rules, directed=True)
    ruled = ruled_edges(checks, one.called, edges, num_nodes=int(starts[-1]), rules=rules)
    return replace(one, edges=ruled)


def _without_mirrors(checks: ArrayChecks, edges: list[TypedEdges]) -> list[TypedEdges]:
    """Leave out relations that hold another one's edges in the other direction."""
    kept: list[TypedEdges] = []
    for one in edges:
        mirrored = next((other for other in kept if _are_mirrored(one, other)), None)
        if mirrored is None:
            kept.append(one)
        else:
            logger.warning(
                "%s: %s is %s in the other direction, which is gone along both ways anyway",
                *(checks.source, one.called, mirrored.called),
            )
    return kept


def _are_mirrored(one: TypedEdges, other: TypedEdges) -> bool:
    if one.source == one.target or (one.source, one.target) != (other.target, other.source):
        return False
    mine, theirs = one.edges.ends[::-1], other.edges.ends
    if mine.shape != theirs.shape:
        return False
    order, their_order = np.lexsort(mine), np.lexsort(theirs)
    if not np.array_equal(mine[:, order], theirs[:, their_order]):
        return False
    weights, their_weights = one.edges.values.weights, other.edges.values.weights
    if weights is None or their_weights is None:
        return weights is their_weights
    return np.array_equal(weights[order], their_weights[their_order])


def _joined_values(edges: Sequence[TypedEdges]) -> EdgeValues:
    if all(one.edges.values.weights is None for one in edges):
        return EdgeValues()
    weights = [
        np.ones(one.edges.ends.shape[1])
        if one.edges.values.weights is None
        else one.edges.values.weights
        for one in edges
    ]
    return EdgeValues(weights=np.concatenate(weights))


def _joined_features(features: Sequence[Features | None], counts: Sequence[int]) -> Features:
    if len(features) == 1 and features[0] is not None:
        return features[0]
    blocks = [
        csr_array(np.ones((count, 1), dtype=np.float32)) if one is None else csr_array(one)
        for one, count in zip(features, counts, strict=True)
    ]
    found = csr_array(block_diag(blocks, format="csr"))
    found.sort_indices()
    return found


def _keys(checks: ArrayChecks, one: TypedNodes, count: int) -> np.ndarray:
    keys = decimal_keys(count) if one.keys is None else one.keys
    if len(keys) != count:
        checks.fail(f"type {one.name}", f"has {len(keys)} keys; expected {count}")
    return keys_of_type(one.name, keys)


#: Nodes of a type, and where they are in the graph.
_Owners = Collection[tuple[TypedNodes, slice]]


def _labels(
    checks: ArrayChecks, owners: _Owners, reading: Reading, count: int, num_classes: int | None
) -> np.ndarray:
    """Return the [N] or [N, L] labels of all nodes, unlabelled but of some types."""
    are_known = bool(num_classes or reading.outputs or reading.classes)
    kind = reading.labels
    given = [
        (one.name, own, as_labels(checks, f"labels of {one.name}", one.labels, kind))
        for one, own in owners
        if one.labels is not None
    ]
    if not given:
        return kind.unlabelled(count, reading.outputs or 1)
    first, _, labels = given[0]
    for name, _, others in given[1:]:
        forms = [_form_of(one, reading.labels, are_known) for one in (labels, others)]
        if forms[0] != forms[1]:
            checks.fail(
                "labels",
                f"those of {first} are {forms[0]}, of {name} {forms[1]}; expected the same, names "
                f"of classes in all types, or label-types with {first} or {name} alone",
            )
    if kind.are_classes and not (reading.outputs or reading.classes):
        classes = {name: _classes_in(one, kind) for name, _, one in given}
        if different := disjoint_classes(classes):
            checks.fail(
                "labels",
                f"{different}; expected classes that both have, or label-types with one of them",
            )
    if labels.dtype.kind == "U":
        widest = np.result_type(*(one.dtype for *_, one in given))
        found: np.ndarray = np.full(count, "", dtype=widest)
    else:
        outputs = labels.shape[1] if labels.ndim == 2 else 1
        dtype = np.result_type(np.int8, *(one.dtype for *_, one in given))
        found = kind.unlabelled(count, outputs).astype(dtype)
    for _, own, one in given:
        found[own] = one
    return found


def _classes_in(labels: np.ndarray, kind: LabelKind) -> list[str]:
    """Return the classes of a type's labels, names or numbers."""
    known = labels != "" if labels.dtype.kind == "U" else kind.labelled(labels)
    return [str(label) for label in np.unique(labels[known]).tolist()]


def _form_of(labels: np.ndarray, kind: LabelKind, are_known: bool) -> str:
    """Return what labels of two types have to share, in words."""
    if labels.ndim == 2:
        return f"{labels.shape[1]} for each node"
    if not kind.are_classes:
        return kind.what
    if labels.dtype.kind == "U":
        return "names of classes"
    # Numbers that do not count from 0 are names.
    if are_known or not kind.labelled(labels).any() or class_names(labels.tolist()):
        return "numbers of classes"
    return f"classes 0 to {labels.max()}"


def _spread_masks(checks: ArrayChecks, owners: _Owners, count: int) -> Masks:
    """Return the masks of all nodes; either no type with labels has any, or each has some."""
    there = [(one.name, own, one.masks.there()) for one, own in owners if one.labels is not None]
    found: dict[str, np.ndarray] = {}
    for name in dict.fromkeys(name for *_, masks in there for name in masks):
        given = []
        for kind, own, masks in there:
            if not masks:
                checks.fail(name, f"type {kind} has none; expected it of each type with labels")
            if name not in masks:
                logger.warning("%s: type %s has no %s: no node of it", checks.source, kind, name)
                continue
            mask = as_array(masks[name])
            if mask.ndim not in (1, 2) or len(mask) != own.stop - own.start:
                checks.fail(
                    f"{name} of {kind}",
                    f"got shape {mask.shape}; expected a row for each of {own.stop - own.start} "
                    "nodes",
                )
            given.append((kind, own, mask))
        (first, _, mask), *_ = given
        dtype = np.result_type(*(one.dtype for *_, one in given))
        spread = np.zeros((count, *mask.shape[1:]), dtype=dtype)
        for kind, own, one in given:
            if one.shape[1:] != mask.shape[1:]:
                checks.fail(
                    f"{name} of {kind}",
                    f"got shape {one.shape}, of {first} {mask.shape}; expected as many columns",
                )
            spread[own] = one
        found[name.removesuffix("_mask")] = spread
    return Masks(**found)
