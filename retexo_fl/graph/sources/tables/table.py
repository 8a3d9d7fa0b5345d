"""What a table holds once it is read: whole columns, and where each row is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NoReturn, Self

import numpy as np

from retexo_fl.errors import TableError
from retexo_fl.graph.features import Features
from retexo_fl.graph.labels import LabelKind
from retexo_fl.graph.masks import Masks, Split
from retexo_fl.graph.neighbours import PLAIN, EdgeValues
from retexo_fl.graph.recipes.recipe import FeatureRecipe
from retexo_fl.graph.sources.tables.source import Complaints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """A table that was read.

    Attributes:
        source: The file, as it was named.
        place: Says where a row (from 0) is: ``line 7`` of a text file, ``row 5`` of others.
    """

    source: str
    place: Callable[[int], str]

    def fail(self, row: int, problem: str) -> NoReturn:
        """Raise the error about one row.

        Raises:
            TableError: Always; it names the file and the row.
        """
        raise TableError(f"{self.source}: {self.place(row)}: {problem}")

    def complaints(self) -> Complaints:
        """Return what collects problems of rows, to be raised together."""
        return Complaints(self.source, self.place)

    def check_rows(self, rows: np.ndarray, problem: Callable[[int], str]) -> None:
        """Raise the errors about some rows.

        Args:
            rows: [k] integers; none of them is no problem.
            problem: What is wrong with a row.

        Raises:
            TableError: There is a row; one line for each, of which each names file and row.
        """
        complaints = self.complaints()
        complaints.add_rows(rows, problem)
        complaints.check()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeTable(Table):
    """Nodes, in the order of the file.

    Attributes:
        keys: [n] bytes, dtype ``S``, unique; n is at least 1.
        features: [n, F] float32, finite; dense, or CSR with sorted columns.
        labels: [n] int64 classes, [n, L] int8 labels or [n] float64 numbers.
        split: Masks of labelled nodes, or None where the file has no column ``split``.
        attributes: The text columns that were asked for, each [n], dtype ``U``.
        recipe: What made features and labels of the columns; None where they are as in the file.
        masks: Of columns ``train_mask``, ..., where the file has no column ``split``.
        is_labelled: Whether the file has labels.
        columns: Of numbers that are the features, where these are so many columns; with types of
            nodes in one table, NaN is in cells that are empty.
    """

    keys: np.ndarray
    features: Features
    labels: np.ndarray
    split: Split | None
    attributes: Mapping[str, np.ndarray]
    recipe: FeatureRecipe | None = None
    masks: Masks = field(default_factory=Masks)
    is_labelled: bool = True
    columns: tuple[str, ...] = ()

    def taken(self, rows: np.ndarray) -> NodeTable:
        """Return some rows ([r] numbers), with their places in the file."""
        split = self.split
        if split is not None:
            split = Split(**_taken(split.named(), rows))
        return replace(
            self,
            place=partial(_place_of, self.place, rows),
            keys=self.keys[rows],
            features=self.features[rows],
            labels=self.labels[rows],
            split=split,
            attributes={name: values[rows] for name, values in self.attributes.items()},
            masks=Masks(**_taken(self.masks.there(), rows)),
        )

    def without_labels(self, kind: LabelKind, outputs: int) -> NodeTable:
        """Return the same nodes unlabelled, for a model of so many outputs."""
        none = np.zeros(len(self.keys), dtype=bool)
        labels = kind.unlabelled(len(self.keys), outputs)
        return replace(self, labels=labels, split=Split(train=none, val=none, test=none))


def _taken(masks: Mapping[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    return {name.removesuffix("_mask"): mask[rows] for name, mask in masks.items()}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EdgeTable(Table):
    """Edges, in the order of the file.

    Attributes:
        left: [e] bytes, dtype ``S``: key of one end, the source. There may be no edges.
        right: [e] bytes, dtype ``S``: key of the other end, the target.
        values: Weights and attributes.
        ends: What the columns of the two are called.
        types: [e] text of each end, its type; None without such a column.
        kinds: [e] text of each edge, the name of its relation; None without such a column.
        relation: Of a typed graph, the number of their relation.
    """

    left: np.ndarray
    right: np.ndarray
    values: EdgeValues = PLAIN
    ends: tuple[str, str] = ("source", "target")
    types: tuple[np.ndarray | None, np.ndarray | None] = (None, None)
    kinds: np.ndarray | None = None
    relation: int = 0

    def taken(self, rows: np.ndarray) -> Self:
        """Return some rows ([r] numbers), with their places in the file."""
        source, target = self.types
        return replace(
            self,
            place=partial(_place_of, self.place, rows),
            left=self.left[rows],
            right=self.right[rows],
            values=self.values.taken(rows),
            types=(
                None if source is None else source[rows],
                None if target is None else target[rows],
            ),
            kinds=None if self.kinds is None else self.kinds[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoundaryTable(Table):
    """Edges between a client's own nodes and nodes of its peers, in the order of the file.

    Attributes:
        own: [e] bytes, dtype ``S``: key of the client's node. There may be no edges.
        foreign: [e] bytes, dtype ``S``: key of the peer's node.
        peers: [e] text, dtype ``U``: name of the peer.
        goes_out: [e] bool, whether the edge leads to the peer's node; None without that column.
        values: Weights and attributes.
        types: [e] text of both nodes, their types; None without such a column.
        kinds: [e] text of each edge, the name of its relation; None without such a column.
        relation: Of a typed graph, the number of their relation.
    """

    own: np.ndarray
    foreign: np.ndarray
    peers: np.ndarray
    goes_out: np.ndarray | None = None
    values: EdgeValues = PLAIN
    types: tuple[np.ndarray | None, np.ndarray | None] = (None, None)
    kinds: np.ndarray | None = None
    relation: int = 0

    def taken(self, rows: np.ndarray) -> Self:
        """Return some rows ([r] numbers), with their places in the file."""
        own, foreign = self.types
        return replace(
            self,
            place=partial(_place_of, self.place, rows),
            own=self.own[rows],
            foreign=self.foreign[rows],
            peers=self.peers[rows],
            goes_out=None if self.goes_out is None else self.goes_out[rows],
            values=self.values.taken(rows),
            types=(
                None if own is None else own[rows],
                None if foreign is None else foreign[rows],
            ),
            kinds=None if self.kinds is None else self.kinds[rows],
        )


def _place_of(place: Callable[[int], str], rows: np.ndarray, row: int) -> str:
    return place(int(rows[row]))
