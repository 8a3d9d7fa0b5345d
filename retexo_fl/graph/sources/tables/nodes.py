"""Reading a table of nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from retexo_fl.errors import TableError
from retexo_fl.graph.graph import Split
from retexo_fl.graph.sources.tables.cells import key_array, label_array, split_codes, text_array
from retexo_fl.graph.sources.tables.features import FeatureReader
from retexo_fl.graph.sources.tables.npz_source import SPARSE_ARRAYS
from retexo_fl.graph.sources.tables.opening import open_table
from retexo_fl.graph.sources.tables.source import (
    Column,
    Source,
    require_columns,
    shown,
    tell_unused,
)
from retexo_fl.graph.sources.tables.table import NodeTable


def read_node_table(
    path: Path,
    *,
    num_features: int | None = None,
    infer_features: bool = False,
    attributes: Sequence[str] = (),
) -> NodeTable:
    """Read nodes with features and labels.

    Args:
        path: A ``.csv``, ``.tsv`` (both also with ``.gz`` or ``.zip``), ``.parquet`` or ``.npz``
            file; the room's README documents its columns.
        num_features: F that the file must have; sparse text needs it, other forms have their own.
        infer_features: Take it from sparse text, too, by its largest index: for a graph that is
            in one table.
        attributes: Text columns to be read beside the documented ones.

    Raises:
        TableError: The file cannot be read or is damaged, a column is missing, a cell is not what
            its column demands, or a key is there twice; one line names file, row and column.
    """
    source = open_table(path)
    require_columns(source, ("key", "label", *attributes))
    features = FeatureReader(
        source, num_features=num_features, infer_features=infer_features, others=attributes
    )
    used = ("key", "label", "split", *attributes, *features.columns)
    tell_unused(source, used if features.columns else (*used, *SPARSE_ARRAYS))
    columns = _read(source, features, attributes)
    keys = columns["key"]
    if not len(keys):
        raise TableError(f"{path}: has no rows; expected at least one node")
    _check_unique(source, keys)
    labels = columns["label"]
    split = _split(source, columns["split"], labels) if "split" in source.names else None
    return NodeTable(
        source=str(path),
        place=source.place,
        keys=keys,
        features=features.finish(num_nodes=len(keys)),
        labels=labels,
        split=split,
        attributes={name: columns[f"text {name}"] for name in attributes},
    )


def read_text_column(path: Path, name: str) -> np.ndarray:
    """Read one column of text or whole numbers; what is absent is the empty text.

    Returns:
        [n] dtype ``U``.

    Raises:
        TableError: The file cannot be read or is damaged, or has no such column of text.
    """
    source = open_table(path)
    require_columns(source, (name,))
    parts, first_row = [np.empty(0, dtype=np.str_)], 0
    for batch in source.batches((name,)):
        column = Column(source=source, name=name, first_row=first_row, cells=batch[name])
        parts.append(text_array(column))
        first_row += len(batch[name])
    return np.concatenate(parts)


def _read(
    source: Source, features: FeatureReader, attributes: Sequence[str]
) -> dict[str, np.ndarray]:
    """Return the arrays of ``key``, ``label``, ``split`` and, as ``text NAME``, the attributes."""
    readers: list[tuple[str, str, Callable[[Column], np.ndarray]]] = [
        ("key", "key", key_array),
        ("label", "label", label_array),
        *((f"text {name}", name, text_array) for name in attributes),
    ]
    if "split" in source.names:
        readers.append(("split", "split", split_codes))
    wanted = tuple(dict.fromkeys((*(name for _, name, _ in readers), *features.columns)))
    parts: dict[str, list[np.ndarray]] = {result: [] for result, _, _ in readers}
    first_row = 0
    for batch in source.batches(wanted):
        for result, name, reader in readers:
            column = Column(source=source, name=name, first_row=first_row, cells=batch[name])
            parts[result].append(reader(column))
        features.add(batch, first_row=first_row)
        first_row += len(batch["key"])
    return {result: np.concatenate(found or [np.empty(0)]) for result, found in parts.items()}


def _check_unique(source: Source, keys: np.ndarray) -> None:
    order = np.argsort(keys, kind="stable")
    again = order[1:][keys[order][1:] == keys[order][:-1]]
    if len(again):
        row = int(again.min())
        first = int(np.flatnonzero(keys == keys[row])[0])
        raise TableError(
            f"{source.path}: {source.place(row)}: key: {shown(keys[row])} is already "
            f"in {source.place(first)}; expected unique keys"
        )


def _split(source: Source, codes: np.ndarray, labels: np.ndarray) -> Split:
    unlabelled = np.flatnonzero((codes > 0) & (labels < 0))
    if len(unlabelled):
        raise TableError(
            f"{source.path}: {source.place(int(unlabelled[0]))}: split: the node is unlabelled; "
            "expected nothing, or a label"
        )
    return Split(train=codes == 1, val=codes == 2, test=codes == 3)
