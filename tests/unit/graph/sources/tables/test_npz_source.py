"""Tables in ``.npz`` files: arrays of any plain type, and files that lie."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from retexo_fl.errors import TableError
from retexo_fl.graph.sources.tables import read_edge_table, read_node_table
from tests.unit.graph.test_npy import npy_bytes

KEYS = np.array(["a", "b", "c"])
GOOD: dict[str, Any] = {"key": KEYS, "label": np.array([0, -1, 1]), "x": np.ones((3, 2))}
SPARSE = csr_array(np.array([[0, 2, 0], [0, 0, 0], [1, 0, 3]], dtype=np.float32))
PARTS: dict[str, Any] = {
    "x_indptr": SPARSE.indptr,
    "x_indices": SPARSE.indices,
    "x_data": SPARSE.data,
    "x_shape": np.array([3, 3]),
}


def _save(tmp_path: Path, **changes: Any) -> Path:
    arrays = {name: array for name, array in {**GOOD, **changes}.items() if array is not None}
    path = tmp_path / "n.npz"
    np.savez(path, **arrays)
    return path


def _refused(tmp_path: Path, **changes: Any) -> str:
    path = _save(tmp_path, **changes)
    with pytest.raises(TableError) as caught:
        read_node_table(path)
    assert not any("\n" in problem for problem in caught.value.problems)
    return caught.value.problems[0].removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    "changes",
    [
        {"key": np.array([b"a", b"b", b"c"])},
        {"label": np.array([0, -1, 1], dtype=">i2")},
        {"label": np.array([0.0, -1.0, 1.0])},
        {"label": np.array(["0", "", "1"])},
        {"label": np.array([b"0", b"", b"1"])},
        {"x": np.ones((3, 2), dtype=">f4")},
        {"x": np.ones((3, 2), dtype=np.float16)},
        {"x": np.ones((3, 2), dtype=bool)},
        {"x": np.asfortranarray(np.ones((3, 2)))},
        {"x": None, "x0": np.ones(3), "x1": np.ones(3, dtype=np.uint8)},
        {"split": np.array(["", "", ""])},
        {"else": np.arange(7)},
    ],
)
def test_npz_columns_may_be_of_many_types(tmp_path: Path, changes: dict[str, Any]) -> None:
    nodes = read_node_table(_save(tmp_path, **changes))
    assert nodes.keys.tolist() == [b"a", b"b", b"c"]
    assert nodes.labels.tolist() == [0, -1, 1]
    assert nodes.labels.dtype == np.int64
    assert isinstance(nodes.features, np.ndarray)
    assert nodes.features.dtype.str == "<f4"
    assert nodes.features.tolist() == [[1, 1]] * 3
    assert (nodes.split is None) == ("split" not in changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"x_data": SPARSE.data.astype(np.int8)},
        {"x_indptr": SPARSE.indptr.astype(">i8"), "x_indices": SPARSE.indices.astype(">u4")},
    ],
)
def test_npz_sparse_features_are_four_arrays(tmp_path: Path, changes: dict[str, Any]) -> None:
    features = read_node_table(_save(tmp_path, x=None, **{**PARTS, **changes})).features
    assert isinstance(features, csr_array)
    assert features.dtype == np.float32
    np.testing.assert_array_equal(features.toarray(), SPARSE.toarray())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"key": None}, "column 'key' is missing; the file has 'label', 'x'"),
        ({"key": np.ones(3)}, "key: got float64; expected text or whole numbers"),
        ({"key": np.array([True] * 3)}, "key: got bool; expected text or whole numbers"),
        ({"key": np.array([["a"], ["b"], ["c"]])}, "key: got <U1 of shape (3, 1); expected text"),
        ({"key": np.array(["a", "\ud800", "c"])}, "row 1: key: '\\ud800' cannot be"),
        ({"key": np.array([None] * 3)}, "key: holds Python objects; expected plain values"),
        ({"key": np.array("a")}, "key: got shape (); expected one entry for each row"),
        ({"key": KEYS[:2]}, "label: got 3 rows; expected 2 as key"),
        ({"key": np.array(["a", "", "c"])}, "row 1: key: is empty"),
        ({"label": np.array([0, -1, 1.5])}, "row 2: label: got 1.5; expected a class"),
        ({"label": np.array([0, 2**63, 1], dtype=np.uint64)}, "row 1: label: got 9223372036854775"),
        ({"label": np.array([0, -2, 1])}, "row 1: label: got -2; expected a class"),
        ({"label": np.ones((3, 1), dtype=int)}, "label: got int64 of shape (3, 1); expected"),
        ({"split": np.array([1, 2, 3])}, "row 0: split: got 1; expected train, val, test or noth"),
        ({"split": np.array([["", ""]] * 3)}, "split: got <U1 of shape (3, 2); expected train"),
        ({"x": np.ones(3)}, "x: got float64; expected lists of numbers, or text; a single feature"),
        ({"x": np.ones((3, 2, 1))}, "x: got shape (3, 2, 1); expected one entry for each row"),
        ({"x": np.ones((3, 0))}, "x: got 0 features; expected at least one"),
        ({"x": np.ones((2, 2))}, "x: got 2 rows; expected 3 as key"),
        ({"x": np.ones((3, 2), dtype=complex)}, "x: got complex128 of shape (3, 2); expected num"),
        ({"x": np.array([[1, 1], [1, np.inf], [1, 1]])}, "row 1: x: value 1 is inf; expected a f"),
        ({"x": np.full((3, 2), 1e39)}, "row 0: x: value 0 is 1e+39; expected a finite float32"),
        ({"x": np.array([["1", "2"]] * 3)}, "x: got <U1 of shape (3, 2); expected numbers"),
        ({"x": None, "x0": np.ones((3, 2))}, "x0: got float64 of shape (3, 2); expected one num"),
        ({"x": None, "x0": np.array(["1"] * 3)}, "x0: got <U1; expected numbers"),
        ({"x_indptr": SPARSE.indptr}, "got both x_indptr and x; expected one"),
        (
            {**PARTS, "x": None, "x_shape": None},
            "column 'x_shape' is missing; the file has 'key', 'label', 'x_data', 'x_indices'",
        ),
        ({**PARTS, "x": None, "x_shape": np.array([3, 2])}, "x_indices: row 2 has column 2; expe"),
        ({**PARTS, "x": None, "x_shape": np.array([4, 3])}, "x_shape: got [4, 3]; expected [3, F"),
        ({**PARTS, "x": None, "x_shape": np.array([3, 2**31])}, "x_shape: got [3, 2147483648]"),
        ({**PARTS, "x": None, "x_data": np.array(["1"] * 3)}, "x_data: got <U1; expected numbers"),
        ({**PARTS, "x": None, "x_data": np.array([1, np.nan, 1])}, "x: row 2 holds NaN or infin"),
        ({**PARTS, "x": None, "x_indptr": np.array([0, 9, 1, 3])}, "x_indptr: decreases at row 1"),
        ({**PARTS, "x": None, "x_indptr": np.array([0.0])}, "x_indptr: got float64; expected int"),
        ({**PARTS, "x": None, "x_indptr": np.array([0, 3])}, "x: got shape (1, 3); expected (3, F"),
        (
            {"x": None, **PARTS, "x_indptr": np.array([0, 1, 3])},
            "x: got shape (2, 3); expected (3, F)",
        ),
    ],
)
def test_npz_arrays_that_are_refused(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    assert _refused(tmp_path, **changes).startswith(told)


def test_npz_header_that_lies_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    path = _save(tmp_path, key=None)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("key.npy", npy_bytes(np.zeros(3, dtype=np.int64), claimed="(1250000000,)"))
    with pytest.raises(TableError, match=r"key: \d+ bytes; expected 100000000\d\d for int64"):
        read_node_table(path)


def test_npz_without_edges_may_have_arrays_of_any_type(tmp_path: Path) -> None:
    path = tmp_path / "e.npz"
    np.savez(path, source=np.array([]), target=np.array([]))
    assert read_edge_table(path).left.tolist() == []


def test_npz_that_is_damaged(tmp_path: Path) -> None:
    path = _save(tmp_path)
    whole = path.read_bytes()
    for damaged in (b"no zip", whole[: len(whole) // 2], whole[:-30]):
        path.write_bytes(damaged)
        with pytest.raises(TableError, match=r"n\.npz: not a .npz file, or damaged \("):
            read_node_table(path)
    content = bytearray(whole)
    content[content.index("b".encode("utf-32-le"))] ^= 1
    path.write_bytes(content)
    with pytest.raises(TableError, match=r"key: damaged \(Bad CRC-32"):
        read_node_table(path)
