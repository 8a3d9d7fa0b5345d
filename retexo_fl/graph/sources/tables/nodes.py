"""Reading a table of nodes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

import numpy as np

from retexo_fl.errors import ConfigurationError, TableError
from retexo_fl.graph.labels import (
    CLASSES,
    MULTI_LABEL,
    REGRESSION,
    LabelKind,
    labelled,
)
from retexo_fl.graph.masks import Masks, Split
from retexo_fl.graph.recipes.recipe import FeatureRecipe, named_recipe
from retexo_fl.graph.sources.tables.cells import (
    flag_array,
    key_array,
    label_array,
    mask_array,
    split_codes,
    target_array,
    text_array,
    without_words,
)
from retexo_fl.graph.sources.tables.features import FeatureReader
from retexo_fl.graph.sources.tables.frame_source import AnyTable
from retexo_fl.graph.sources.tables.npz_source import SPARSE_ARRAYS
from retexo_fl.graph.sources.tables.opening import open_table
from retexo_fl.graph.sources.tables.recipe_features import RecipeReader, class_labels
from retexo_fl.graph.sources.tables.source import (
    KEY_COLUMN,
    LABEL_COLUMN,
    MASK_COLUMNS,
    SPLIT_COLUMN,
    TYPE_COLUMN,
    USES_OF_NODES,
    Column,
    Complaints,
    Source,
    numbered_columns,
    require_columns,
    shown,
    tell_unused,
)
from retexo_fl.graph.sources.tables.table import NodeTable
from retexo_fl.graph.sources.text_form import FOUND, TextForm
from retexo_fl.units import format_counted

logger = logging.getLogger(__name__)

#: What becomes of rows with the key of another row.
REPEATED_NODES: Final = ("refuse", "first", "last")
#: Of a table whose types nobody reads.
_OTHERS_OF_TYPE: Final = (
    f"has a column {TYPE_COLUMN!r}, which is not read; expected a model such as rel-sage, or "
    f"--type-column {TYPE_COLUMN}, if nodes of one type have features that others lack"
)
_LABEL_READERS: Final[Mapping[str, Callable[[Column], np.ndarray]]] = MappingProxyType(
    {CLASSES.name: label_array, MULTI_LABEL.name: flag_array, REGRESSION.name: target_array}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeColumns:
    """How a table of nodes is read.

    Attributes:
        key: Name of the column of keys; empty for that of the recipe, or ``key``.
        label: Name of the column of labels; empty for that of the recipe, or ``label``.
        recipe: Makes features and classes of other columns; None for the documented ones.
        unlabelled: What is in the column of labels beside nothing where none is known.
        repeated: Which row of several with one key is taken: ``first``, ``last``, or ``refuse``.
        form: What is chosen of a text table's form.
        type: Name of a column of types, of which each has its own of the columns of features; empty
            where all nodes have all.
    """

    key: str = ""
    label: str = ""
    recipe: FeatureRecipe | None = None
    unlabelled: frozenset[str] = frozenset()
    repeated: str = "refuse"
    form: TextForm = FOUND
    type: str = ""

    def __post_init__(self) -> None:
        """Check the word.

        Raises:
            ConfigurationError: It is not known.
        """
        if self.repeated not in REPEATED_NODES:
            raise ConfigurationError(
                f"repeated-nodes: got {shown(self.repeated)}; expected one of "
                f"{', '.join(REPEATED_NODES)}"
            )

    @property
    def names(self) -> tuple[str, str]:
        """The columns of keys and of labels.

        Raises:
            ConfigurationError: They are named otherwise than in the recipe.
        """
        if self.recipe is None or not self.recipe.columns:
            return self.key or KEY_COLUMN, self.label or LABEL_COLUMN
        told = (self.recipe.key_column, self.recipe.label_column)
        for option, given, wanted in zip(
            ("key-column", "label-column"), (self.key, self.label), told, strict=True
        ):
            if given not in ("", wanted):
                raise ConfigurationError(
                    f"{option}: got {shown(given)}; expected {shown(wanted)}, as in the recipe "
                    f"{self.recipe.digest[:16]}"
                )
        return told


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text with commas between them."""
    return frozenset(filter(None, (word.strip() for word in text.split(","))))


def read_node_table(  # noqa: PLR0913 - so much may be chosen
    path: AnyTable,
    columns: NodeColumns | None = None,
    *,
    num_features: int | None = None,
    infer_features: bool = False,
    attributes: Sequence[str] = (),
    kind: LabelKind = CLASSES,
    masks: bool = True,
    outputs: int | None = None,
) -> NodeTable:
    """Read nodes with features and labels; columns that have no use are logged.

    Args:
        path: A DataFrame, or a ``.csv``, ``.tsv`` (both also with ``.gz`` or ``.zip``),
            ``.parquet`` or ``.npz`` file; the room's README documents its columns.
        columns: Names of columns, and a recipe for the others; None for the documented ones.
        num_features: F that the file must have; sparse text needs it, other forms have their own. 0
            reads no features, whether or not there are columns of them.
        infer_features: Take it from sparse text, too, by its largest index: for a graph that is
            in one table.
        attributes: Text columns to be read beside the documented ones.
        kind: What labels are: the column of labels holds classes, or numbers; of several labels
            the columns ``label_0``,
            ``label_1``, ..., or so numbered by the name of the column of labels, hold 0, 1 or
            nothing.
        masks: Read the column ``split``, where there is one, or else ``train_mask``, ``val_mask``
            or ``validation_mask``, and ``test_mask``.
        outputs: Of the model that predicts the nodes, which need no labels; None to train on them.

    Raises:
        TableError: The file cannot be read or is damaged, a column is missing, a cell is not what
            its column demands, or a key is there twice; one line for each problem names file, row
            and column.
        ConfigurationError: Columns are named otherwise than in the recipe, or its labels are for
            another task.
    """
    columns = NodeColumns() if columns is None else columns
    source = open_table(path, columns.form)
    key, _ = columns.names
    labels_of = _label_columns(source, columns, kind)
    attributes = (*attributes, columns.type) if columns.type else attributes
    if outputs is not None and not {*labels_of} <= {*source.names}:
        labels_of = ()
    require_columns(source, (key, *labels_of, *attributes))
    complaints = Complaints(source.path, source.place)
    if columns.recipe is not None and columns.recipe.columns:
        features: FeatureReader | RecipeReader = RecipeReader(source, columns.recipe, complaints)
    else:
        features = FeatureReader(
            source,
            num_features=num_features,
            infer_features=infer_features,
            others=(*attributes, key, *labels_of),
            complaints=complaints,
            may_lack=bool(columns.type),
        )
    readers_of = {
        name: _known_labels(_label_reader(columns.recipe, kind), columns.unlabelled)
        for name in labels_of
    }
    readers = _readers(source, key, readers_of, attributes, taken=features.columns, masks=masks)
    found = _read(source, features, readers, complaints)
    if not len(found["key"]):
        raise TableError(f"{source.path}: has no rows; expected at least one node")
    rows = None
    if columns.repeated == "refuse":
        _check_unique(source, found["key"], complaints, name=key)
    else:
        rows = _rows_once(source, found["key"], columns.repeated)
    each = [found[f"label {name}"] for name in labels_of]
    if not each:
        labels = kind.unlabelled(len(found["key"]), outputs or 1)
    else:
        labels = np.stack(each, axis=1) if kind.ndim == 2 else each[0]
    gapped = complaints.are_gaps(features.columns) and not columns.type
    complaints.check(_OTHERS_OF_TYPE if gapped and TYPE_COLUMN in source.names else "")
    split = _split(source, found["split"], labels) if "split" in found else None
    used = {*features.columns} if features.columns else {*SPARSE_ARRAYS}
    is_labelled = bool(each) and kind.are_read
    told = {} if masks else dict.fromkeys(USES_OF_NODES, "--split published")
    told[TYPE_COLUMN] = f"--type-column {TYPE_COLUMN}, or a model such as rel-sage,"
    tell_unused(source, used | {name for _, name, _ in readers}, told)
    table = NodeTable(
        source=str(source.path),
        place=source.place,
        keys=found["key"],
        features=features.finish(num_nodes=len(found["key"])),
        labels=labels,
        split=split,
        attributes={name: found[f"text {name}"] for name in attributes},
        recipe=columns.recipe,
        masks=Masks(**{use: found.get(f"mask {use}") for use in MASK_COLUMNS}),
        is_labelled=is_labelled,
        columns=features.of_numbers if isinstance(features, FeatureReader) else (),
    )
    return table if rows is None else table.taken(rows)


def has_labels(path: AnyTable, columns: NodeColumns, kind: LabelKind) -> bool:
    """Return whether a table has the columns of labels.

    Raises:
        TableError: It cannot be read.
    """
    source = open_table(path, columns.form)
    named = _label_columns(source, columns, kind)
    return bool(named) and {*named} <= {*source.names}


def read_text_column(path: AnyTable, name: str, form: TextForm = FOUND) -> np.ndarray:
    """Read one column of text or whole numbers; what is absent is the empty text.

    Returns:
        [n] dtype ``U``.

    Raises:
        TableError: The file cannot be read or is damaged, or has no such column of text.
    """
    source = open_table(path, form)
    require_columns(source, (name,))
    parts, first_row = [np.empty(0, dtype=np.str_)], 0
    for batch in source.batches((name,)):
        column = Column(source=source, name=name, first_row=first_row, cells=batch[name])
        parts.append(text_array(column))
        first_row += len(batch[name])
    return np.concatenate(parts)


#: What an array is called, the column that it is made from, and how.
_Reader = tuple[str, str, Callable[[Column], np.ndarray]]


def _label_columns(source: Source, columns: NodeColumns, kind: LabelKind) -> tuple[str, ...]:
    """Return the names of the columns that hold labels, in the order of the labels."""
    _, label = columns.names
    if columns.recipe is not None:
        columns.recipe.check_labels(kind)
    if not kind.are_read:
        return ()
    if kind.ndim == 1:
        return (label,)
    # Without any, the first is reported as missing.
    names = numbered_columns(source, label) or (f"{label}_0",)
    if columns.recipe is not None and (twice := {*names} & {*columns.recipe.columns}):
        raise ConfigurationError(
            f"{source.path}: {shown(min(twice))} is a feature of "
            f"{named_recipe(columns.recipe.digest)}, and a label of task {kind.name}; expected a "
            "recipe that was made without it"
        )
    return names


def _label_reader(recipe: FeatureRecipe | None, kind: LabelKind) -> Callable[[Column], np.ndarray]:
    if recipe is not None and recipe.classes and kind.are_classes:
        return partial(class_labels, classes=recipe.classes)
    return _LABEL_READERS[kind.name]


def _readers(
    source: Source,
    key: str,
    labels: Mapping[str, Callable[[Column], np.ndarray]],
    attributes: Sequence[str],
    *,
    taken: Sequence[str],
    masks: bool,
) -> list[_Reader]:
    """Return how ``key``, the split and, as ``label NAME`` and ``text NAME``, the rest are read."""
    readers: list[_Reader] = [
        ("key", key, key_array),
        *((f"label {name}", name, reader) for name, reader in labels.items()),
        *((f"text {name}", name, text_array) for name in attributes),
    ]
    if not (masks and labels):
        return readers
    there = {*source.names} - {key, *labels}
    if SPLIT_COLUMN in there:
        return [*readers, ("split", SPLIT_COLUMN, split_codes)]
    for use, names in MASK_COLUMNS.items():
        found = [name for name in names if name in there and name not in taken]
        readers += [(f"mask {use}", name, mask_array) for name in found[:1]]
    return readers


def _read(
    source: Source,
    features: FeatureReader | RecipeReader,
    readers: Sequence[_Reader],
    complaints: Complaints,
) -> dict[str, np.ndarray]:
    wanted = tuple(dict.fromkeys((*(name for _, name, _ in readers), *features.columns)))
    parts: dict[str, list[np.ndarray]] = {result: [] for result, _, _ in readers}
    first_row = 0
    for batch in source.batches(wanted):
        for result, name, reader in readers:
            column = Column(
                source=source,
                name=name,
                first_row=first_row,
                cells=batch[name],
                complaints=complaints,
            )
            parts[result].append(reader(column))
        features.add(batch, first_row=first_row)
        first_row += len(batch[readers[0][1]])
    return {result: np.concatenate(found or [np.empty(0)]) for result, found in parts.items()}


def _check_unique(source: Source, keys: np.ndarray, complaints: Complaints, *, name: str) -> None:
    order = np.argsort(keys, kind="stable")
    again = np.sort(order[1:][keys[order][1:] == keys[order][:-1]])
    # Keys that are empty have been reported as such.
    again = again[keys[again] != b""]

    def problem(row: int) -> str:
        first = int(np.flatnonzero(keys == keys[row])[0])
        return (
            f"{name}: {shown(keys[row])} is already in {source.place(first)}; expected unique keys"
        )

    complaints.add_rows(again, problem)


def _rows_once(source: Source, keys: np.ndarray, which: str) -> np.ndarray | None:
    """Return the rows, ascending, of which each is the first or last of its key; None for all."""
    ordered = keys if which == "first" else keys[::-1]
    _, at = np.unique(ordered, return_index=True)
    if len(at) == len(keys):
        return None
    repeated = f"{len(keys) - len(at):,}"
    told = "%s: repeated nodes left out: %s (the %s row of each counts)"
    logger.warning(told, source.path, repeated, which)
    return np.sort(at if which == "first" else len(keys) - 1 - at)


def _known_labels(
    reader: Callable[[Column], np.ndarray], unlabelled: frozenset[str]
) -> Callable[[Column], np.ndarray]:
    """Return a reader of labels to which words for unlabelled nodes are nothing."""
    if not unlabelled:
        return reader
    return lambda column: reader(without_words(column, unlabelled))


def _split(source: Source, codes: np.ndarray, labels: np.ndarray) -> Split:
    """Return the use of each node; one without a label has none, which is logged."""
    known = labelled(labels)
    if lacking := int(np.count_nonzero((codes > 0) & ~known)):
        told = "%s: split: %s without a label left out"
        logger.warning(told, source.path, format_counted(lacking, "node"))
    codes = np.where(known, codes, 0)
    return Split(train=codes == 1, val=codes == 2, test=codes == 3)
