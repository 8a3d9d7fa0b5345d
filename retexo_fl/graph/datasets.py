"""Data sets by name: one that is built in, and ``NAME.npz`` files in a folder."""

from __future__ import annotations

import difflib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from retexo_fl.errors import DatasetError
from retexo_fl.graph.digits import load_digits_graph
from retexo_fl.graph.graph import Graph
from retexo_fl.graph.npz_graph import describe_npz_graph, read_npz_graph

logger = logging.getLogger(__name__)

DIGITS: Final = "digits"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetInfo:
    """One line of a list of data sets.

    Attributes:
        name: What :func:`load_dataset` takes.
        nodes: N.
        edges: Undirected edges, each counted once.
        features: F.
        classes: C.
        split: Nodes of the published split, ``140/500/1000``, or ``none``.
        source: The file, or where a built-in one comes from.
    """

    name: str
    nodes: int
    edges: int
    features: int
    classes: int
    split: str
    source: str


def load_dataset(name: str, *, data_dir: Path | None) -> Graph:
    """Load a data set.

    Args:
        name: ``digits``, or the name of a ``.npz`` file in ``data_dir`` without its ending.
        data_dir: Folder of ``.npz`` files; None for the built-in data set only.

    Raises:
        DatasetError: There is no such data set, or its file is not as documented.
    """
    if name == DIGITS:
        return load_digits_graph()
    path = None if data_dir is None else data_dir / f"{name}.npz"
    if path is None or Path(name).name != name or not path.is_file():
        raise DatasetError(_unknown(name, data_dir))
    graph = read_npz_graph(path)
    return _without_made_up_labels(graph) if name == "citeseer" else graph


def list_datasets(data_dir: Path | None) -> list[DatasetInfo]:
    """Describe the data sets that can be loaded, the built-in one first, then by name.

    A file that is not a data set is left out with a warning.

    Args:
        data_dir: As in :func:`load_dataset`.

    Raises:
        DatasetError: ``data_dir`` is not a folder.
    """
    digits = load_digits_graph()
    found = [
        DatasetInfo(
            name=DIGITS,
            nodes=digits.num_nodes,
            edges=digits.num_edges,
            features=digits.num_features,
            classes=digits.num_classes,
            split="none",
            source="scikit-learn, built in",
        )
    ]
    for path in _files(data_dir):
        try:
            found.append(DatasetInfo(name=path.stem, source=str(path), **describe_npz_graph(path)))
        except DatasetError as error:
            logger.warning("left out: %s", error)
    return found


def _files(data_dir: Path | None) -> list[Path]:
    if data_dir is None:
        return []
    if not data_dir.is_dir():
        raise DatasetError(f"data-dir: {data_dir} is not a folder; expected one with .npz files")
    return sorted(path for path in data_dir.glob("*.npz") if path.stem != DIGITS)


def _unknown(name: str, data_dir: Path | None) -> str:
    known = [DIGITS, *(path.stem for path in _files(data_dir))]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    where = "data-dir is not set" if data_dir is None else f"looked for NAME.npz in {data_dir}"
    return f"dataset: {name!r} is unknown; {hint}there is: {', '.join(known)} ({where})"


def _without_made_up_labels(graph: Graph) -> Graph:
    """Take back the label 0 of nodes that Citeseer's source leaves out.

    They are known by their empty features and are in no mask. They stay in the graph, unlabelled.
    """
    split = graph.published_split
    if split is None or isinstance(graph.features, np.ndarray):
        return graph
    made_up = np.diff(graph.features.indptr) == 0
    made_up &= ~(split.train | split.val | split.test)
    labels = np.where(made_up, -1, graph.labels)
    return Graph(
        name=graph.name,
        node_keys=graph.node_keys,
        indptr=graph.indptr,
        indices=graph.indices,
        features=graph.features,
        labels=labels,
        num_classes=graph.num_classes,
        train_mask=graph.train_mask,
        val_mask=graph.val_mask,
        test_mask=graph.test_mask,
    )
