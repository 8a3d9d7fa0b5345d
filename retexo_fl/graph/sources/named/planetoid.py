"""The citation graphs Cora, Citeseer and PubMed out of Planetoid's files.

Source: Yang, Cohen, Salakhutdinov, "Revisiting semi-supervised learning with graph embeddings"
(ICML 2016), section 5, and the README of its repository.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.errors import DatasetError
from retexo_fl.graph.checks import ArrayChecks
from retexo_fl.graph.sources.named.arrays import Arrays, ascending, once_undirected, sparse_parts
from retexo_fl.graph.sources.named.pickled import read_pickled
from retexo_fl.graph.sources.named.pickled_objects import PickledArray, PickledCsr
from retexo_fl.units import counted

#: What is read of the eight files. ``x`` repeats the first rows of ``allx``.
PARTS: Final = ("tx", "allx", "y", "ty", "ally", "graph", "test.index")
#: Validation nodes follow the training nodes.
_VALIDATION_NODES: Final = 500
#: More nodes or neighbours than this are refused before arrays are made of them.
_MOST_ENTRIES: Final = 2**24


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Features and one-hot labels of nodes in a row.

    Attributes:
        features: [n, F] float32.
        one_hot: [n, C] integers.
    """

    features: csr_array
    one_hot: np.ndarray


def planetoid_arrays(name: str, files: Mapping[str, bytes]) -> Arrays:
    """Put Planetoid's files together.

    Rows of the test nodes are moved to the nodes that ``test.index`` names. A node of that range
    which the index leaves out (15 in Citeseer) has no features, label 0, and is in no mask.

    Args:
        name: ``cora``, ``citeseer`` or ``pubmed``.
        files: Content of ``ind.NAME.PART`` for each of :data:`PARTS`, by that name.

    Returns:
        Arrays of a ``.npz`` data set.

    Raises:
        DatasetError: A file is damaged, or two contradict each other.
    """
    named = {part: f"ind.{name}.{part}" for part in PARTS}
    known = _rows(files, named["allx"], named["ally"])
    tested = _rows(files, named["tx"], named["ty"])
    train = len(_dense(files, named["y"]))
    test = _test_nodes(named["test.index"], files[named["test.index"]], rows=len(tested.one_hot))
    num_known = len(known.one_hot)
    num_nodes = max(num_known, int(test.max()) + 1)
    if test.min() < num_known or num_nodes > _MOST_ENTRIES:
        raise DatasetError(
            f"{named['test.index']}: names nodes {test.min()} to {test.max()}; expected them "
            f"to follow the {num_known} of {named['allx']}"
        )
    if train + _VALIDATION_NODES > num_known:
        rows = counted(train, "row")
        raise DatasetError(f"{named['y']}: has {rows}; expected at most {num_known - 500}")
    # Row r of known and tested together is that of node nodes[r].
    nodes = np.concatenate((np.arange(num_known), test))
    labels = np.zeros(num_nodes, dtype=np.int16)
    labels[nodes] = np.concatenate((known.one_hot.argmax(axis=1), tested.one_hot.argmax(axis=1)))
    return {
        "edge_index": _edges(named["graph"], files[named["graph"]], num_nodes),
        "y": labels,
        **sparse_parts(_placed(known.features, tested.features, nodes, num_nodes)),
        **_masks(train, test, num_nodes),
    }


def _rows(files: Mapping[str, bytes], features_name: str, labels_name: str) -> _Rows:
    features = _sparse(files, features_name)
    one_hot = _dense(files, labels_name)
    if len(one_hot) != features.shape[0] or not len(one_hot):
        raise DatasetError(
            f"{labels_name}: has {counted(len(one_hot), 'row')}, {features_name} has "
            f"{features.shape[0]}; expected the same number"
        )
    return _Rows(features=features, one_hot=one_hot)


def _dense(files: Mapping[str, bytes], name: str) -> np.ndarray:
    """Return a file's [n, C] integers."""
    value = read_pickled(files[name], where=name)
    if not isinstance(value, PickledArray) or value.values is None:
        raise DatasetError(f"{name}: holds no array; expected one-hot labels")
    checks = ArrayChecks(source=name, error=DatasetError)
    checks.form("labels", value.values, kinds="iu", shape=(None, None))
    if value.values.shape[1] == 0:
        checks.fail("labels", f"got shape {value.values.shape}; expected at least one class")
    return value.values


def _sparse(files: Mapping[str, bytes], name: str) -> csr_array:
    """Return a file's [n, F] float32 matrix, columns ascending in each row."""
    value = read_pickled(files[name], where=name)
    attributes = value.attributes if isinstance(value, PickledCsr) else {}
    parts = {}
    for part in ("indptr", "indices", "data"):
        array = attributes.get(part)
        if not isinstance(array, PickledArray) or array.values is None:
            raise DatasetError(f"{name}: holds no CSR matrix (no {part}); expected features")
        parts[part] = array.values
    match attributes.get("_shape", attributes.get("shape")):
        case (int() as rows, int() as columns) if 0 < columns < 2**31:
            if rows != len(parts["indptr"]) - 1:
                raise DatasetError(
                    f"{name}: is of {counted(rows, 'row')}; expected {len(parts['indptr']) - 1}"
                )
        case _:
            raise DatasetError(f"{name}: holds a matrix without a shape; expected features")
    return ascending(name, parts, columns)


def _placed(known: csr_array, tested: csr_array, nodes: np.ndarray, num_nodes: int) -> csr_array:
    """Return the [N, F] matrix whose row ``nodes[r]`` is row r of both matrices together."""
    if known.shape[1] != tested.shape[1]:
        raise DatasetError(
            f"allx has {counted(known.shape[1], 'column')}, tx {tested.shape[1]}; expected "
            "the same number"
        )
    columns = np.concatenate((known.indices, tested.indices))
    data = np.concatenate((known.data, tested.data))
    counts = np.concatenate((np.diff(known.indptr), np.diff(tested.indptr)))
    order = np.argsort(np.repeat(nodes, counts), kind="stable")
    of_node = np.zeros(num_nodes, dtype=np.int32)
    of_node[nodes] = counts
    indptr = np.concatenate(([0], np.cumsum(of_node))).astype(np.int32)
    return csr_array((data[order], columns[order], indptr), shape=(num_nodes, known.shape[1]))


def _test_nodes(name: str, content: bytes, *, rows: int) -> np.ndarray:
    """Return the [n] node of each test row: one decimal number in each line."""
    try:
        nodes = np.array([int(line) for line in content.split()], dtype=np.int64)
    except (ValueError, OverflowError) as error:
        raise DatasetError(f"{name}: is not a list of whole numbers ({error})") from error
    if len(nodes) != rows or len(np.unique(nodes)) != rows or nodes.min() < 0:
        found, expected = counted(len(nodes), "node"), counted(rows, "different one")
        raise DatasetError(f"{name}: got {found}; expected {expected}")
    return nodes


def _edges(name: str, content: bytes, num_nodes: int) -> np.ndarray:
    """Return the [2, E] edges of a dictionary of neighbour lists."""
    graph = read_pickled(content, where=name)
    if not isinstance(graph, dict) or not all(
        type(node) is int and type(near) is list for node, near in graph.items()
    ):
        raise DatasetError(f"{name}: holds no neighbour lists; expected a list for each node")
    counts = [len(near) for near in graph.values()]
    # One list may be in many places, so what they hold together is counted first.
    if sum(counts) > _MOST_ENTRIES:
        raise DatasetError(
            f"{name}: has {sum(counts)} neighbours; expected {_MOST_ENTRIES} at most"
        )
    near = [neighbour for neighbours in graph.values() for neighbour in neighbours]
    if not all(type(node) is int and 0 <= node < num_nodes for node in (*graph, *near)):
        raise DatasetError(
            f"{name}: holds a number that is not a node; expected 0 to {num_nodes - 1}"
        )
    ends = np.array([np.repeat(np.array(list(graph), dtype=np.int64), counts), near])
    return once_undirected(ends, num_nodes)


def _masks(train: int, test: np.ndarray, num_nodes: int) -> Arrays:
    train_mask, val_mask, test_mask = (np.zeros(num_nodes, dtype=bool) for _ in range(3))
    train_mask[:train] = True
    val_mask[train : train + _VALIDATION_NODES] = True
    test_mask[test] = True
    return {"train_mask": train_mask, "val_mask": val_mask, "test_mask": test_mask}
