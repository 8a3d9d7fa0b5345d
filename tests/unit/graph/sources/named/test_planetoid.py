"""Planetoid's files: put together as they were taken apart, and every way to get them wrong."""

from __future__ import annotations

import hashlib
from functools import cache

import numpy as np
import pytest
from scipy.sparse import csr_array

from retexo_fl.errors import DatasetError
from retexo_fl.graph.sources.named.planetoid import planetoid_arrays
from retexo_fl.graph.sources.named.table import NAMED
from tests.support.data import data_dir
from tests.support.planetoid_files import planetoid_files
from tests.support.python2_pickles import pickled_array, pickled_csr, pickled_graph

_NAMES = ("cora", "citeseer", "pubmed")


@cache
def _files(name: str) -> dict[str, bytes]:
    return planetoid_files(data_dir() / f"{name}.npz")


@pytest.mark.real_graphs
@pytest.mark.parametrize("name", _NAMES)
def test_planetoid_files_give_the_arrays_of_the_npz_file(name: str) -> None:
    made = planetoid_arrays(name, _files(name))
    with np.load(data_dir() / f"{name}.npz") as expected:
        assert set(made) == set(expected.files)
        for array in expected.files:
            np.testing.assert_array_equal(made[array], expected[array], strict=True)


@pytest.mark.real_graphs
@pytest.mark.parametrize("name", _NAMES)
def test_rebuilt_label_files_have_the_pinned_sha256(name: str) -> None:
    pinned = {file.name: file for file in NAMED[name].files}
    for part in ("y", "ally"):
        file = pinned[f"ind.{name}.{part}"]
        content = _files(name)[file.name]
        assert hashlib.sha256(content).hexdigest() == file.sha256
        assert len(content) == file.size_bytes


# ---- a small one, and what can be wrong with it ----------------------------------------------

#: 502 nodes are known, so that 500 validate; nodes 502 and 504 are tested, 503 is left out.
_KNOWN = 502


def _small(**changes: bytes) -> dict[str, bytes]:
    identity = csr_array(np.eye(_KNOWN, 4, dtype=np.float32))
    parts = {
        "allx": pickled_csr(identity),
        "ally": pickled_array(np.eye(2, dtype=np.int32)[np.arange(_KNOWN) % 2]),
        "y": pickled_array(np.eye(2, dtype=np.int32)),
        "tx": pickled_csr(csr_array(np.array([[0, 0, 0, 2], [0, 3, 0, 0]], dtype=np.float32))),
        "ty": pickled_array(np.array([[0, 1], [0, 1]], dtype=np.int32)),
        "graph": pickled_graph({0: [1, 1, 0], 504: [502], 1: [0]}),
        "test.index": b"504\n502\n",
    }
    return {f"ind.small.{part}": content for part, content in (parts | changes).items()}


def test_rows_of_test_nodes_move_to_the_nodes_of_the_index() -> None:
    made = planetoid_arrays("small", _small())
    assert made["edge_index"].tolist() == [[0, 502], [1, 504]]
    assert made["y"][_KNOWN:].tolist() == [1, 0, 1]
    features = csr_array(
        (made["x_data"], made["x_indices"], made["x_indptr"]), shape=tuple(made["x_shape"])
    ).toarray()
    assert features[_KNOWN:].tolist() == [[0, 3, 0, 0], [0, 0, 0, 0], [0, 0, 0, 2]]
    masks = [np.flatnonzero(made[f"{part}_mask"]).tolist() for part in ("train", "val", "test")]
    assert masks == [[0, 1], list(range(2, _KNOWN)), [502, 504]]


_MATRIX = csr_array(np.ones((2, 3), dtype=np.float32))


@pytest.mark.parametrize(
    ("part", "content", "expected"),
    [
        ("graph", pickled_array(np.zeros((2, 2), dtype=np.int32)), "holds no neighbour lists"),
        ("graph", pickled_graph({0: [505]}), "not a node; expected 0 to 504"),
        ("graph", pickled_graph({505: [0]}), "not a node; expected 0 to 504"),
        ("ally", pickled_graph({0: [1]}), "holds no array"),
        ("ally", pickled_array(np.ones(3, dtype=np.int32)), "expected (any, any)"),
        ("ally", pickled_array(np.ones((502, 2))), "got float64; expected integers"),
        ("ally", pickled_array(np.ones((3, 2), dtype=np.int32)), "has 3 rows, ind.small.allx has"),
        ("y", pickled_array(np.ones((3, 2), dtype=np.int32)), "has 3 rows; expected at most 2"),
        ("tx", pickled_csr(_MATRIX), "allx has 4 columns, tx 3; expected the same"),
        ("allx", pickled_array(np.ones((2, 2), dtype=np.int32)), "holds no CSR matrix (no indptr)"),
        ("test.index", b"504\n504\n", "got 2 nodes; expected 2 different ones"),
        ("test.index", b"504\n", "got 1 node; expected 2 different ones"),
        ("test.index", b"504\nx\n", "is not a list of whole numbers"),
        ("test.index", b"1\n2\n", "names nodes 1 to 2; expected"),
        ("test.index", b"504\n99999999\n", "names nodes 504 to 99999999; expected"),
        ("test.index", b"504\n" + b"9" * 30, "is not a list of whole numbers"),
    ],
)
def test_a_wrong_part_is_named(part: str, content: bytes, expected: str) -> None:
    with pytest.raises(DatasetError) as caught:
        planetoid_arrays("small", _small(**{part: content}))
    assert expected in str(caught.value)
    assert part in str(caught.value)


def test_matrix_parts_are_checked_before_scipy_sees_them() -> None:
    wrong = {
        "indptr": (np.array([0, 9, 3], dtype=np.int32), "runs from 0 to 3|decreases"),
        "indices": (np.array([0, 1, 4, 0, 1, 2], dtype=np.int32), "runs to 4; expected 0 to 2"),
        "data": (np.ones(3, dtype=np.float32), r"data: got float32 of \(3,\)"),
    }
    for part, (values, expected) in wrong.items():
        matrix = _MATRIX.copy()
        setattr(matrix, part, values)
        with pytest.raises(DatasetError, match=expected):
            planetoid_arrays("small", _small(tx=pickled_csr(matrix)))


def test_unordered_columns_are_sorted_and_doubled_ones_refused() -> None:
    matrix = csr_array(np.array([[0, 1, 2, 0], [3, 0, 0, 0]], dtype=np.float32))
    matrix.indices[:2] = [2, 1]
    made = planetoid_arrays("small", _small(tx=pickled_csr(matrix)))
    assert made["x_indices"][-2:].tolist() == [1, 2]
    assert made["x_data"][-2:].tolist() == [2.0, 1.0]
    matrix.indices[:2] = [1, 1]
    with pytest.raises(DatasetError, match="out of order or twice"):
        planetoid_arrays("small", _small(tx=pickled_csr(matrix)))
