"""Types of nodes and the relations between them: what a typed graph says beside its arrays.

Each stored edge has a weight for each channel, side by side: where node u lists its neighbour v,
channel c says what weighs the message that goes along it from v to u, and 0 says that there is
none. A relation has two channels: one into its target and one back into its source. Channel c is
channel C - 1 - c at the edge's other end, so that reversing the order turns an edge round. The two
directions of a directed graph are the channels of one relation.

The features of all types are the columns of one sparse matrix, side by side.

Symbols: T types, R relations, C = 2 R channels, F columns of features, N nodes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, Final, Self

import numpy as np

#: Between a node's type and its own key.
_SEPARATOR: Final = b"/"
#: Of types and relations.
_NAME: Final = re.compile(r"[^/\x00-\x1f\x7f]{1,100}")
#: No graph that was seen has a tenth of it.
_MOST: Final = 100
_MOST_COLUMNS: Final = 2**31


@dataclass(frozen=True, slots=True)
class Relation:
    """One kind of edge.

    Attributes:
        source: Type of the nodes that its edges come from, a number.
        name: Of it; with both types, no other relation has it.
        target: Type of the nodes that they lead to.
        symmetric: Its edges have no direction, so that messages go both ways alike; else what comes
            in and what goes out are aggregated apart. Only of one type with itself.
    """

    source: int
    name: str
    target: int
    symmetric: bool = False

    @property
    def has_directions(self) -> bool:
        """Whether the types of its ends do not say already which way an edge leads."""
        return self.source == self.target and not self.symmetric


@dataclass(frozen=True, slots=True)
class Channel:
    """One way along the edges of a relation.

    Attributes:
        column: Number of its weights among the C of an edge.
        source: Type of the nodes whose rows go along it.
        target: Type of the nodes that they go to.
    """

    column: int
    source: int
    target: int


@dataclass(frozen=True, kw_only=True)
class Relations:
    """Types of nodes and the relations between them.

    Attributes:
        types: Their names.
        widths: How many columns of the features each type has.
        relations: Between them.
        with_labels: The types whose nodes have labels, ascending; none where no labels were read.
    """

    types: tuple[str, ...]
    widths: tuple[int, ...]
    relations: tuple[Relation, ...]
    with_labels: tuple[int, ...]

    @property
    def num_channels(self) -> int:
        """C."""
        return 2 * len(self.relations)

    @property
    def num_features(self) -> int:
        """F."""
        return sum(self.widths)

    @cached_property
    def channels(self) -> tuple[Channel, ...]:
        """All that are read, by column; of a symmetric relation one."""
        found = []
        for place, one in enumerate(self.relations):
            found.append(Channel(place, one.source, one.target))
            if not one.symmetric:
                found.append(Channel(self.num_channels - 1 - place, one.target, one.source))
        return tuple(sorted(found, key=lambda channel: channel.column))

    def called(self, relation: int) -> str:
        """Return what errors call a relation: its types and its name."""
        one = self.relations[relation]
        return f"{self.types[one.source]} {one.name} {self.types[one.target]}"

    def into(self, target: int) -> tuple[Channel, ...]:
        """Return the channels into a type."""
        return tuple(channel for channel in self.channels if channel.target == target)

    def columns(self, kind: int) -> slice:
        """Return which columns of the features are a type's."""
        ends = list(accumulate(self.widths, initial=0))
        return slice(ends[kind], ends[kind + 1])

    @property
    def labelled_types(self) -> frozenset[str]:
        """Names of the types whose nodes have labels."""
        return frozenset(self.types[kind] for kind in self.with_labels)

    def with_loss(self, predicted: int | None) -> tuple[int, ...]:
        """Return the types of whose nodes a loss is, ascending: layer by layer they are trained.

        Args:
            predicted: The relation whose edges are learned, a number, of which a loss is of both
                ends; None where labels are.
        """
        if predicted is not None:
            one = self.relations[predicted]
            return tuple(sorted({one.source, one.target}))
        return self.with_labels

    def read_by(self, start: tuple[int, ...]) -> tuple[int, ...]:
        """Return the other types whose rows go along edges to some, ascending."""
        sources = {channel.source for kind in start for channel in self.into(kind)}
        return tuple(sorted(sources.difference(start)))

    def far_from(self, start: tuple[int, ...]) -> tuple[int, ...]:
        """Return the types that are read within two hops of some, and not within one, ascending."""
        near = {*start, *self.read_by(start)}
        return tuple(sorted(set(self.within(start, 2)).difference(near)))

    def within(self, start: tuple[int, ...], hops: int) -> tuple[int, ...]:
        """Return the types that are read within so many hops of some, those first.

        A type of so many hops has rows that these read after so many further layers.
        """
        found = [*start]
        for _ in range(hops):
            reached = {channel.source for kind in found for channel in self.into(kind)}
            found += sorted(reached.difference(found))
        return tuple(found)

    def read_within(self, start: tuple[int, ...], hops: int) -> tuple[int, ...]:
        """Return the types of which a layer reads rows along edges, with so many layers behind it.

        Of others no node's row need leave its client.

        Args:
            start: Types that the last layer makes rows of.
            hops: How many layers follow.
        """
        kinds = self.within(start, hops)
        return tuple(sorted({channel.source for kind in kinds for channel in self.into(kind)}))

    def kinds(self, keys: np.ndarray) -> np.ndarray:
        """Return the [N] int16 types of nodes of some [N] keys; -1 of keys of no type."""
        found = np.full(len(keys), -1, dtype=np.int16)
        for kind, name in enumerate(self.types):
            found[np.char.startswith(keys, prefix_of(name))] = kind
        return found

    @cached_property
    def text(self) -> str:
        """All of it as JSON, the same for equal relations."""
        relations = [[one.source, one.name, one.target, one.symmetric] for one in self.relations]
        values = {
            "types": self.types,
            "widths": self.widths,
            "relations": relations,
            "labelled": _written(self.with_labels),
        }
        return json.dumps(values, sort_keys=True, separators=(",", ":"))

    @classmethod
    def of_text(cls, text: str) -> Self:
        """Read what :attr:`text` wrote.

        Raises:
            ValueError: It is anything else.
        """
        values = json.loads(text)
        if not isinstance(values, dict) or values.keys() != _FIELDS:
            raise ValueError("expected types, widths, relations and labelled")
        found = cls(
            types=tuple(values["types"]),
            widths=tuple(values["widths"]),
            relations=tuple(Relation(*one) for one in values["relations"]),
            with_labels=_read(values["labelled"]),
        )
        problem = next(found.problems(), None)
        if problem is not None or found.text != text:
            raise ValueError(problem or "expected it as it is written")
        return found

    def problems(self) -> Iterator[str]:
        """Yield what is wrong, a clause each."""
        if not 0 < len(self.types) <= _MOST or len(set(self.types)) < len(self.types):
            yield f"got {len(self.types)} types; expected 1 to {_MOST} of different names"
        names: list[Any] = [*self.types, *(one.name for one in self.relations)]
        for name in names:
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                yield f"got the name {str(name)[:40]!r}; expected up to 100 characters without '/'"
        if len(self.widths) != len(self.types) or not all(
            type(width) is int and 0 < width < _MOST_COLUMNS for width in self.widths
        ):
            yield "got other widths than one of at least 1 for each type"
        for kind in self.with_labels:
            if not self._has_type(kind):
                yield f"got {kind!r} as labelled type; expected one of the types"
                return
        if list(self.with_labels) != sorted({*self.with_labels}):
            yield f"got labelled types {[*self.with_labels]}; expected them once, ascending"
        yield from self._problems_of_relations()

    def _problems_of_relations(self) -> Iterator[str]:
        if not 0 < len(self.relations) <= _MOST:
            yield f"got {len(self.relations)} relations; expected 1 to {_MOST}"
        for one in self.relations:
            is_known = self._has_type(one.source) and self._has_type(one.target)
            if not is_known or type(one.symmetric) is not bool:
                yield f"relation {str(one.name)[:40]!r} is not between two of the types"
            elif one.symmetric and one.source != one.target:
                yield f"relation {one.name!r} is symmetric, and between two types"
        different = {(one.source, one.name, one.target) for one in self.relations}
        if len(different) < len(self.relations):
            yield "two relations of the same types have one name"

    def _has_type(self, kind: object) -> bool:
        return type(kind) is int and 0 <= kind < len(self.types)


_FIELDS: Final = frozenset({"types", "widths", "relations", "labelled"})


def _written(with_labels: tuple[int, ...]) -> int | list[int] | None:
    """Return types as a text has them: none or one as before there were several."""
    return [*with_labels] if len(with_labels) > 1 else next(iter(with_labels), None)


def _read(labelled: Any) -> tuple[Any, ...]:
    """Return what :func:`_written` wrote."""
    if labelled is None:
        return ()
    return tuple(labelled) if isinstance(labelled, list) else (labelled,)


#: Of the jobs of one process.
_MOST_READ: Final = 64


@lru_cache(maxsize=_MOST_READ)
def relations_of(text: str) -> Relations | None:
    """Return what :meth:`Relations.of_text` does; None of an empty text."""
    return Relations.of_text(text) if text else None


def is_text_of_relations(text: object) -> bool:
    """Return whether :func:`relations_of` takes a text."""
    if not isinstance(text, str):
        return False
    try:
        relations_of(text)
    except (ValueError, TypeError, RecursionError):
        return False
    return True


def differing(one: Relations | None, other: Relations | None) -> str:
    """Return what differs between two graphs' types and relations, a clause; empty for nothing."""
    if one is None or other is None:
        found = [f"types {', '.join(each.types)}" if each else "no types" for each in (one, other)]
        return "" if one is other else " and ".join(found)
    for name, said in (("types", _types_said), ("relations", _relations_said)):
        found = [said(one), said(other)]
        if found[0] != found[1]:
            return f"{name} {' and '.join(found)}"
    return ""


def _types_said(relations: Relations) -> str:
    """Return the types with their widths, and which has the labels."""
    said = (
        f"{name} ({width} column{'s' * (width != 1)}{', labels' * (kind in relations.with_labels)})"
        for kind, (name, width) in enumerate(zip(relations.types, relations.widths, strict=True))
    )
    return ", ".join(said)


def _relations_said(relations: Relations) -> str:
    said = (
        relations.called(at) + " without directions" * one.symmetric
        for at, one in enumerate(relations.relations)
    )
    return ", ".join(said)


def text_of(relations: Relations | None) -> str:
    """Return :attr:`Relations.text`; empty for None."""
    return "" if relations is None else relations.text


def keys_of_type(name: str, keys: np.ndarray) -> np.ndarray:
    """Return the [n] keys that nodes of a type have in a graph, of their own [n] bytes."""
    return np.char.add(prefix_of(name), keys)


def keys_in_table(name: str, keys: np.ndarray) -> np.ndarray:
    """Return the [n] keys of nodes of a type as its table has them: the inverse of the above."""
    first = len(prefix_of(name))
    return np.array([key[first:] for key in keys.tolist()], dtype=np.bytes_).reshape(len(keys))


def keys_in_tables(relations: Relations, keys: np.ndarray) -> np.ndarray:
    """Return the [n] keys of nodes of several types as their tables have them."""
    kinds = relations.kinds(keys)
    found = np.array(keys, copy=True)
    for kind in np.unique(kinds).tolist():
        found[kinds == kind] = keys_in_table(relations.types[kind], keys[kinds == kind])
    return found


def prefix_of(name: str) -> bytes:
    """Return what the keys of a type's nodes begin with."""
    return name.encode() + _SEPARATOR


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedStage:
    """What a layer over typed nodes has to know.

    Attributes:
        relations: Of the graph.
        with_loss: Types of whose nodes a loss is (:meth:`Relations.with_loss`).
        reads_features: Its input rows are features, of which each type has its own columns; else
            rows of one width for all.
        hops: Layers that follow: nodes that are farther from those with a loss make no rows.
        trains_all: Types without a loss have trained weights, too: gradients come from the layers
            that follow.
        num_bases: Matrices that relations share; 0 of layers that share none.
        taught: Types without a loss whose weights are trained all the same: by the labels of nodes
            that their rows go to.
        doubled: Types of which the rows that come in are twice as wide as those of others: beside
            those that trained weights made, the same as weights as drawn make them.
    """

    relations: Relations
    with_loss: tuple[int, ...]
    reads_features: bool
    hops: int
    trains_all: bool
    num_bases: int = 0
    taught: tuple[int, ...] = ()
    doubled: tuple[int, ...] = ()

    @classmethod
    def of(cls, relations: Relations | None, predicted: int | None, **more: Any) -> Self | None:
        """Return it, of types with a loss as :meth:`Relations.with_loss` has them; None without."""
        if relations is None:
            return None
        return cls(relations=relations, with_loss=relations.with_loss(predicted), **more)

    @property
    def kinds(self) -> tuple[int, ...]:
        """Types whose nodes make rows, those with a loss first."""
        return self.relations.within(self.with_loss, self.hops)
