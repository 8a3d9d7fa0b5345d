"""The split that a graph brings: masks of nodes, which are looked at only where they are used."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from retexo_fl.errors import ConfigurationError, DatasetError
from retexo_fl.graph.checks import ArrayChecks
from retexo_fl.graph.labels import kind_of, labelled
from retexo_fl.units import format_counted

#: One train node of so many validates, where there is no mask of validation nodes.
_TRAIN_NODES_FOR_ONE: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Split:
    """Which nodes train, which choose the best model, which test it.

    Attributes:
        train: [N] bool.
        val: [N] bool.
        test: [N] bool; the three are disjoint and leave out unlabelled nodes.
    """

    train: np.ndarray
    val: np.ndarray
    test: np.ndarray

    def named(self) -> dict[str, np.ndarray]:
        """Return the masks by the names they have in files."""
        return {"train_mask": self.train, "val_mask": self.val, "test_mask": self.test}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Masks:
    """Masks as a graph brings them; nothing is checked yet.

    Attributes:
        train: [N], [N, 1] or [N, S] booleans, or 0 and 1; None for none. S are as many splits.
        val: Likewise.
        test: Likewise.
    """

    train: np.ndarray | None = None
    val: np.ndarray | None = None
    test: np.ndarray | None = None

    @classmethod
    def of(cls, split: Split) -> Self:
        """Return the masks of a split in words, where a use that no node has is no mask."""
        train, val, test = (mask if mask.any() else None for mask in split.named().values())
        return cls(train=train, val=val, test=test)

    def there(self) -> dict[str, np.ndarray]:
        """Return those that there are, by the names they have in files."""
        named = {"train_mask": self.train, "val_mask": self.val, "test_mask": self.test}
        return {name: mask for name, mask in named.items() if mask is not None}

    @property
    def columns(self) -> int:
        """How many splits there are; 0 where there is no mask."""
        masks = self.there().values()
        return max((mask.shape[1] if mask.ndim == 2 else 1 for mask in masks), default=0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Published:
    """A split that came with a graph.

    Attributes:
        split: The split.
        notes: What of it was not in the masks, a clause each.
    """

    split: Split
    notes: tuple[str, ...] = ()

    @property
    def counts(self) -> str:
        """How many nodes each use has."""
        train, val, test = (f"{int(mask.sum()):,}" for mask in self.split.named().values())
        return f"{train} train, {val} validation and {test} test nodes"


def published_split(
    source: str, masks: Masks, *, keys: np.ndarray, labels: np.ndarray, column: int | None = None
) -> Published:
    """Return the split that masks are.

    A node without a label is of no use: it is left out of the masks, and a note says how many are.
    Where there is no mask of test nodes, labelled nodes of no other mask test. Where there is none
    of validation nodes, one train node of five of each class validates, those whose keys have the
    least hashes: the same whatever the seed, and however nodes are split over clients.

    Args:
        source: The graph, for errors.
        masks: At least one of them is there.
        keys: [N] bytes of the nodes.
        labels: Of one of the forms of :mod:`~retexo_fl.graph.labels`.
        column: Which of several splits, from 0; None for the first.

    Raises:
        DatasetError: They are no such masks, or not disjoint.
        ConfigurationError: There is no such column.
    """
    checks = ArrayChecks(source=source, error=DatasetError)
    there, columns, notes = masks.there(), masks.columns, []
    if (column or 0) >= columns:
        count = format_counted(columns, "column")
        raise ConfigurationError(
            f"split: got published:{column}; expected published:0 to published:{columns - 1}, as "
            f"the masks of {source} have {count}"
        )
    if "train_mask" not in there:
        checks.fail("train_mask", f"missing; expected it beside {next(iter(there))}, or a split")
    if columns > 1 and column is None:
        notes.append(f"column 0 of {columns}; published:1 is the next")
    found = {
        name: _one_mask(checks, name, mask, len(keys), column or 0) for name, mask in there.items()
    }
    # Before nodes are taken from one for another.
    checks.masks(found, np.ones(len(keys), dtype=bool))
    known = labelled(labels)
    taken = np.logical_or.reduce(list(found.values()))
    if lacking := int(np.count_nonzero(taken & ~known)):
        notes.append(f"without {format_counted(lacking, 'node')} that have no label")
        found = {name: mask & known for name, mask in found.items()}
    if "test_mask" not in found:
        found["test_mask"] = known & ~taken
        notes.append("without a test_mask all other labelled nodes test")
    if "val_mask" not in found:
        found["val_mask"] = _validating(checks, found["train_mask"], keys, labels)
        found["train_mask"] = found["train_mask"] & ~found["val_mask"]
        notes.append("without a val_mask one train node of five validates")
    split = Split(train=found["train_mask"], val=found["val_mask"], test=found["test_mask"])
    return Published(split=split, notes=tuple(notes))


def _one_mask(
    checks: ArrayChecks, name: str, mask: np.ndarray, num_nodes: int, column: int
) -> np.ndarray:
    """Return one column of a mask: [N] bool."""
    if mask.ndim not in (1, 2) or len(mask) != num_nodes:
        checks.fail(
            name, f"got shape {mask.shape}; expected ({num_nodes},), or ({num_nodes}, splits)"
        )
    if mask.ndim == 2:
        # A mask that all splits share may be there once.
        mask = mask[:, column if mask.shape[1] > 1 else 0]
    if mask.dtype.kind not in "biuf":
        checks.fail(name, f"got {mask.dtype}; expected booleans, or 0 and 1")
    odd = np.flatnonzero((mask != 0) & (mask != 1))
    if len(odd):
        checks.fail(name, f"row {odd[0]} is {mask[odd[0]]}; expected booleans, or 0 and 1")
    return mask.astype(bool)


def _validating(
    checks: ArrayChecks, train: np.ndarray, keys: np.ndarray, labels: np.ndarray
) -> np.ndarray:
    """Return [N] bool: which train nodes validate."""
    nodes = np.flatnonzero(train)
    if len(nodes) < 2:
        found = format_counted(len(nodes), "node")
        checks.fail("train_mask", f"has {found}; expected at least two without a val_mask")
    digests = [
        hashlib.blake2b(key, digest_size=8, person=b"retexo val").digest()
        for key in keys[nodes].tolist()
    ]
    draws = np.frombuffer(b"".join(digests), dtype="<u8")
    cells = kind_of(labels).strata(labels[nodes])
    order = np.lexsort((draws, cells))
    _, first, size = np.unique(cells[order], return_index=True, return_counts=True)
    position = np.arange(len(order)) - np.repeat(first, size)
    # The nearest whole number, so that many small classes validate, too.
    chosen = order[position < np.repeat((size + 2) // _TRAIN_NODES_FOR_ONE, size)]
    mask = np.zeros(len(train), dtype=bool)
    mask[nodes[chosen] if len(chosen) else nodes[[np.argmin(draws)]]] = True
    return mask
