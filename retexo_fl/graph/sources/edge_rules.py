"""Edge lists as they come, brought to edges that are there once and join two nodes."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np

from retexo_fl.dates import Moment
from retexo_fl.errors import DatasetError
from retexo_fl.graph.checks import ArrayChecks
from retexo_fl.graph.graph import Graph
from retexo_fl.graph.neighbours import PLAIN, EdgeValues, differing_rows
from retexo_fl.graph.sources.moments import early_times, read_times, wrong_time
from retexo_fl.graph.sources.text_form import FOUND, TextForm

logger = logging.getLogger(__name__)

#: What becomes of an edge that is there several times.
MERGES: Final = ("refuse", "sum", "mean", "max")
#: What becomes of an edge from a node to itself.
SELF_LOOPS: Final = ("refuse", "drop")
#: What becomes of an edge to a node that is not there.
UNKNOWN_NODES: Final = ("refuse", "drop")
_HOW: Final = "expected each edge once, or once in each direction"


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeColumns:
    """What columns of a table of edges are called, and the form of its text.

    Attributes:
        source: Column of one end; a boundary has ``own`` and ``foreign`` in any case.
        target: Column of the other end.
        weight: Column of what edges weigh.
        time: Column of when edges came.
        form: What is chosen of a text table's form.
    """

    source: str = "source"
    target: str = "target"
    weight: str = "weight"
    time: str = "time"
    form: TextForm = FOUND

    @classmethod
    def of(cls, *, form: TextForm = FOUND, **names: str) -> Self:
        """Return the columns of these names; an empty one leaves its own."""
        return cls(form=form, **{field: name for field, name in names.items() if name})


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeRules:
    """How a list of edges is read.

    Attributes:
        directed: Whether edges have a direction, from source to target.
        merge: What becomes of an edge that is there several times: ``refuse``; or one edge, with
            the ``sum``, ``mean`` or ``max`` of the weights (1 where they have none) and of each
            attribute. Of undirected edges both orientations are the same edge; but in a list that
            holds most pairs alike in both, each row with its mirror image counts once.
        self_loops: ``refuse`` or ``drop``.
        before: Edges of this time and later are left out; None for no such bound.
        unknown: What becomes of an edge with an end that is no node: ``refuse`` or ``drop``.
        columns: What a table calls them.
        predicates: Of triples, what an edge may say: all of it, or what follows the last ``#`` or
            ``/``; empty for anything.
    """

    directed: bool = False
    merge: str = "refuse"
    self_loops: str = "refuse"
    before: Moment | None = None
    unknown: str = "refuse"
    columns: EdgeColumns = EdgeColumns()
    predicates: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the words.

        Raises:
            DatasetError: One is not known.
        """
        for name, value, known in (
            ("merge", self.merge, MERGES),
            ("self_loops", self.self_loops, SELF_LOOPS),
            ("unknown", self.unknown, UNKNOWN_NODES),
        ):
            if value not in known:
                raise DatasetError(f"{name}: got {value!r}; expected one of {', '.join(known)}")

    @property
    def is_strict(self) -> bool:
        """Whether nothing is merged or left out."""
        return self.merge == self.self_loops == self.unknown == "refuse"


#: Undirected edges, each once.
STRICT: Final = EdgeRules()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EdgeList:
    """Edges as they are read, or as they are after the rules.

    Attributes:
        ends: [2, E] integers: source and target.
        values: Weights [E] and attributes [E, A] of the edges.
    """

    ends: np.ndarray
    values: EdgeValues = field(default_factory=lambda: PLAIN)

    def taken(self, places: np.ndarray) -> EdgeList:
        """Return some edges: (n,) places, or an [E] mask."""
        return EdgeList(ends=self.ends[:, places], values=self.values.taken(places))


def check_ready(source: str, graph: Graph, rules: EdgeRules) -> None:
    """Check that a graph whose edges are ready is what the rules say.

    Raises:
        DatasetError: Its edges have a direction and should not, or have none and should; or they
            should have times.
    """
    if rules.before is not None:
        raise DatasetError(f"{source}: edges have no times; expected them with edges-before")
    if graph.is_directed != rules.directed:
        found, asked = (
            ("directed", "undirected") if graph.is_directed else ("undirected", "directed")
        )
        raise DatasetError(f"{source}: edges are {found}; expected edges-are {found}, got {asked}")


def early_edges(source: str, name: str, times: Any, rules: EdgeRules) -> np.ndarray | None:
    """Return which edges are early enough; None where the rules have no bound.

    What is left out is logged.

    Args:
        source: Where they come from, for errors.
        name: Of the times.
        times: [E] numbers, or dates as text; None where edges have no times.
        rules: With the bound.

    Raises:
        DatasetError: There are no times, or they are not of the bound's kind.
    """
    before = rules.before
    if before is None:
        return None
    if times is None:
        raise DatasetError(f"{source}: {name}: missing; expected it with edges-before")
    kept, wrong = early_times(read_times(times, dates=before.is_date), before)
    if wrong is not None:
        shown = repr(str(times[wrong])[:60])
        raise DatasetError(
            f"{source}: {name}: row {wrong}: {wrong_time(times[wrong], before, shown)}"
        )
    if late := int(np.count_nonzero(~kept)):
        logger.warning("%s: edges not before %s left out: %s", source, before.text, f"{late:,}")
    return kept


def ruled_edges(
    checks: ArrayChecks,
    name: str,
    edges: EdgeList,
    *,
    num_nodes: int,
    rules: EdgeRules,
    has_order: bool = False,
) -> EdgeList:
    """Return each edge once, between two nodes.

    An undirected list may also hold every edge in both directions, with the same values, as PyG has
    it. What the rules changed is logged.

    Args:
        checks: Names the source in errors.
        name: Of the list.
        edges: The list; numbers that are not below ``num_nodes``, and values that do not fit it,
            are left for the checks of a graph.
        num_nodes: N.
        rules: How to read it.
        has_order: Whether the first end of a pair may be meant as its source. If repetitions of
            undirected edges are merged, the line says that this is not used: several rows of a pair
            are often events, which have a direction. It says nothing of a list that has every edge
            alike in both orientations, or each edge once.

    Raises:
        DatasetError: It is not such a list, and the rules do not make it one.
    """
    checks.form(name, edges.ends, kinds="iu", shape=(2, None))
    ends = edges.ends.astype(np.int64)
    edges = EdgeList(ends=ends, values=edges.values)
    lengths = {len(array) for array in edges.values.named().values()}
    if rules.unknown == "drop" and not lengths - {ends.shape[1]}:
        edges = _without_unknown(checks, edges, num_nodes)
        ends = edges.ends
    if not ends.size or ends.min() < 0 or ends.max() >= num_nodes or lengths - {ends.shape[1]}:
        return edges
    edges, loops = _without_loops(checks, name, edges, rules)
    before, has_order = edges.ends.shape[1], has_order and not rules.directed
    if rules.merge != "refuse":
        if not rules.directed and (images := _mirror_images(edges, num_nodes)) is not None:
            # Both orientations say the same: neither end is meant as the source.
            has_order = False
            edges = edges.taken(~images)
        edges = _merged(edges, num_nodes, rules)
    elif rules.directed:
        _check_once(checks, name, edges.ends, num_nodes, "expected each edge once")
    else:
        edges = _each_once(checks, name, edges, num_nodes)
        before = edges.ends.shape[1]
    repetitions = before - edges.ends.shape[1]
    changes = {"self loops left out": loops, f"repetitions merged ({rules.merge})": repetitions}
    told = ", ".join(f"{what}: {count:,}" for what, count in changes.items() if count)
    if repetitions and has_order:
        told += "; which end is the source is not used (edges-are directed uses it)"
    if told:
        logger.warning("%s: %s", checks.source, told)
    return edges


def _without_unknown(checks: ArrayChecks, edges: EdgeList, num_nodes: int) -> EdgeList:
    known = np.asarray(((edges.ends >= 0) & (edges.ends < num_nodes)).all(axis=0))
    if known.all():
        return edges
    tell_unknown(checks.source, int(np.count_nonzero(~known)))
    return edges.taken(known)


def tell_unknown(source: str, count: int) -> None:
    """Say how many edges are left out since an end is no node."""
    logger.warning("%s: edges to unknown nodes left out: %s", source, f"{count:,}")


def _without_loops(
    checks: ArrayChecks, name: str, edges: EdgeList, rules: EdgeRules
) -> tuple[EdgeList, int]:
    loops = edges.ends[0] == edges.ends[1]
    if not loops.any():
        return edges, 0
    count = int(np.count_nonzero(loops))
    if rules.self_loops == "refuse":
        at = int(loops.argmax())
        checks.fail(
            name,
            f"column {at} is {_pair(edges.ends, at)}, a self loop{_others(count)}; expected none, "
            "or self-loops drop",
        )
    return edges.taken(~loops), count


def _each_once(checks: ArrayChecks, name: str, edges: EdgeList, num_nodes: int) -> EdgeList:
    """Return the undirected edges of a list that has all of them in one direction or in both."""
    ends = edges.ends
    codes, back = ends[0] * num_nodes + ends[1], ends[1] * num_nodes + ends[0]
    one_way = ~np.isin(codes, back)
    _check_once(checks, name, ends, num_nodes, _HOW)
    if one_way.all():
        return edges
    if one_way.any():
        at = int(one_way.argmax())
        more = _others(int(np.count_nonzero(one_way)))
        checks.fail(
            name,
            f"column {at} is {_pair(ends, at)} without its other direction{more}, while other "
            f"edges have both: a directed graph; {_HOW}, or edges-are directed, or merge-edges to "
            "take any direction as an edge",
        )
    forward = np.flatnonzero(ends[0] < ends[1])
    forward = forward[np.argsort(codes[forward])]
    other = np.flatnonzero(ends[0] > ends[1])
    other = other[np.argsort(back[other])]
    differs = _differing(edges.values.taken(forward), edges.values.taken(other))
    if differs is not None:
        at = int(forward[differs])
        checks.fail(
            name,
            f"column {at} is {_pair(ends, at)}, which weighs or carries something else in its "
            "other direction; expected the same, or edges-are directed, or merge-edges",
        )
    return edges.taken(np.sort(forward))


def _merged(edges: EdgeList, num_nodes: int, rules: EdgeRules) -> EdgeList:
    ends = edges.ends
    if not rules.directed:
        ends = np.stack((edges.ends.min(axis=0), edges.ends.max(axis=0)))
    codes, groups, counts = np.unique(
        ends[0] * num_nodes + ends[1], return_inverse=True, return_counts=True
    )
    values = edges.values
    weights = None
    if values.weights is not None or (rules.merge == "sum" and counts.max(initial=1) > 1):
        each = np.ones(len(groups)) if values.weights is None else values.weights
        weights = _combined(each[:, None], groups, counts, rules.merge)[:, 0]
    attributes = None
    if values.attributes is not None:
        attributes = _combined(values.attributes, groups, counts, rules.merge)
    return EdgeList(
        ends=np.stack((codes // num_nodes, codes % num_nodes)),
        values=EdgeValues(weights=weights, attributes=attributes),
    )


def _combined(values: np.ndarray, groups: np.ndarray, counts: np.ndarray, merge: str) -> np.ndarray:
    """Combine (E, A) values of each of the (G,) groups: float64 (G, A)."""
    if merge == "max":
        largest = np.full((len(counts), values.shape[1]), -np.inf)
        np.maximum.at(largest, groups, values)
        return largest
    # Sorted first, so that the sum does not depend on the order in the file.
    order = np.lexsort((*values.T, groups))
    sums = np.column_stack(
        [
            np.bincount(groups[order], weights=column, minlength=len(counts))
            for column in values[order].T
        ]
    )
    return sums if merge == "sum" else sums / counts[:, None]


def _mirror_images(edges: EdgeList, num_nodes: int) -> np.ndarray | None:
    """Return [E] bool: which rows say again, in the other orientation, what another row says.

    None for a list that does not hold more than half of its pairs alike in both orientations: there
    a row in each may be two events. Each row is the image of one other at most, with equal values.
    """
    low, high = edges.ends.min(axis=0), edges.ends.max(axis=0)
    columns = [a.reshape(a.shape[0], -1) for a in edges.values.named().values()]
    rows = np.column_stack([low * num_nodes + high, *columns]) if columns else None
    codes = low * num_nodes + high
    kinds = codes if rows is None else np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
    _, kinds = np.unique(kinds, return_inverse=True)
    forward = edges.ends[0] < edges.ends[1]
    # The n-th row of its kind in its orientation is the image of the n-th in the other.
    order = np.lexsort((forward, kinds))
    starts = np.flatnonzero(np.diff(2 * kinds[order] + forward[order], prepend=-1))
    place = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    there = np.bincount(kinds[forward], minlength=int(kinds.max(initial=0)) + 1)
    images = np.zeros(len(order), dtype=bool)
    images[order] = ~forward[order] & (place < there[kinds[order]])
    pairs = np.unique(codes)
    mirrored = np.unique(codes[images])
    return images if 2 * len(mirrored) > len(pairs) else None


def _check_once(
    checks: ArrayChecks, name: str, ends: np.ndarray, num_nodes: int, expected: str
) -> None:
    codes = ends[0] * num_nodes + ends[1]
    order = np.argsort(codes, kind="stable")
    again = np.flatnonzero(codes[order][1:] == codes[order][:-1])
    if len(again):
        first, second = order[again[0]], order[again[0] + 1]
        checks.fail(
            name,
            f"columns {first} and {second} are both {_pair(ends, int(first))}"
            f"{_others(len(again))}; {expected}, or merge-edges",
        )


def _differing(one: EdgeValues, other: EdgeValues) -> int | None:
    """Return the first row in which two lists of values differ."""
    rows = [differing_rows(array, other.named()[name]) for name, array in one.named().items()]
    return min((int(found[0]) for found in rows if len(found)), default=None)


def _others(count: int) -> str:
    return f", one of {count:,}" if count > 1 else ""


def _pair(edges: np.ndarray, at: int) -> str:
    return f"({edges[0, at]}, {edges[1, at]})"
