"""Graphs from .npz files: the layout, and every way to get it wrong."""

from __future__ import annotations

import math
import re
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib import format as npy_format
from scipy.sparse import csr_array

from retexo_fl.errors import DatasetError
from retexo_fl.graph import npy
from retexo_fl.graph.sources.npz_graph import NpzSummary, describe_npz_graph, read_npz_graph

SMALL: dict[str, np.ndarray] = {
    "edge_index": np.array([[0, 1, 0], [1, 2, 3]], dtype=np.int32),
    "y": np.array([0, 1, 0, 1], dtype=np.int16),
    "x": np.arange(8, dtype=np.float32).reshape(4, 2),
    "train_mask": np.array([True, False, False, False]),
    "val_mask": np.array([False, True, False, False]),
    "test_mask": np.array([False, False, True, False]),
}
_SPARSE: dict[str, Any] = {
    "x": None,
    "x_indptr": np.array([0, 2, 2, 3, 3], dtype=np.int32),
    "x_indices": np.array([0, 2, 1], dtype=np.int32),
    "x_data": np.array([1, 2, 3], dtype=np.float32),
    "x_shape": np.array([4, 3]),
}


def write_npz(path: Path, **changes: Any) -> None:
    """Write the small file with some arrays changed; None leaves one out."""
    arrays = {**SMALL, **changes}
    np.savez_compressed(path, **{name: a for name, a in arrays.items() if a is not None})


def test_read_npz_graph_takes_dense_features(tmp_path: Path) -> None:
    write_npz(tmp_path / "g.npz")
    graph = read_npz_graph(tmp_path / "g.npz")
    assert graph.name == "g"
    assert graph.edge_list().tolist() == [[0, 0, 1], [1, 3, 2]]
    assert graph.labels.tolist() == [0, 1, 0, 1]
    np.testing.assert_array_equal(graph.features, SMALL["x"])
    assert graph.test_mask is not None
    assert graph.test_mask.tolist() == [False, False, True, False]
    assert graph.node_keys.tolist() == [b"0", b"1", b"2", b"3"]


def test_read_npz_graph_takes_sparse_features(tmp_path: Path) -> None:
    write_npz(tmp_path / "g.npz", **_SPARSE)
    features = read_npz_graph(tmp_path / "g.npz").features
    assert isinstance(features, csr_array)
    assert features.toarray().tolist() == [[1, 0, 2], [0, 0, 0], [0, 3, 0], [0, 0, 0]]
    assert describe_npz_graph(tmp_path / "g.npz")["features"] == 3


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", ">i2"])
def test_labels_may_be_of_any_integer_dtype(tmp_path: Path, dtype: str) -> None:
    write_npz(tmp_path / "g.npz", y=np.array([0, 1, 0, 1], dtype=dtype))
    graph = read_npz_graph(tmp_path / "g.npz")
    assert graph.labels.tolist() == [0, 1, 0, 1]
    assert graph.labels.dtype == np.int64
    assert graph.num_classes == describe_npz_graph(tmp_path / "g.npz")["classes"] == 2


def test_sparse_columns_are_sorted_and_summed_as_scipy_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parts = {
        "x_indptr": np.array([0, 3, 3, 5, 6]),
        "x_indices": np.array([2, 0, 2, 1, 0, 1]),
        "x_data": np.array([1, 2, 4, 8, 16, 32], dtype=np.float32),
    }
    expected = csr_array(
        (parts["x_data"], parts["x_indices"], parts["x_indptr"]), shape=(4, 3), copy=True
    )
    expected.sum_duplicates()
    write_npz(tmp_path / "g.npz", **{**_SPARSE, **parts})
    features = read_npz_graph(tmp_path / "g.npz").features
    assert isinstance(features, csr_array)
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(features, name), getattr(expected, name))
    assert features.toarray().tolist() == [[2, 0, 5], [0, 0, 0], [16, 8, 0], [0, 32, 0]]
    assert re.search(r"x_indices: columns .*repeated.*1 value added", caplog.text)
    caplog.clear()
    write_npz(tmp_path / "g.npz", **_SPARSE)
    read_npz_graph(tmp_path / "g.npz")
    assert caplog.text == ""


def test_read_npz_graph_takes_any_edge_order_and_memory_order(tmp_path: Path) -> None:
    edges = np.array([[3, 0], [1, 0], [2, 1]], dtype=">i8")
    write_npz(tmp_path / "g.npz", edge_index=edges.T, x=np.asfortranarray(SMALL["x"]))
    graph = read_npz_graph(tmp_path / "g.npz")
    assert graph.edge_list().tolist() == [[0, 0, 1], [1, 3, 2]]
    assert isinstance(graph.features, np.ndarray)
    assert graph.features.flags.c_contiguous
    np.testing.assert_array_equal(graph.features, SMALL["x"])


def test_read_npz_graph_ignores_other_arrays(tmp_path: Path) -> None:
    write_npz(tmp_path / "g.npz", class_names=np.array(["a", "b"]), objects=None)
    assert read_npz_graph(tmp_path / "g.npz").num_edges == 3


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"y": None}, "y: missing; the file has edge_index, test_mask"),
        ({"edge_index": None}, "edge_index: missing"),
        ({**_SPARSE, "x_data": None}, "x_data: missing"),
        ({**_SPARSE, "x": SMALL["x"]}, "x: found together with x_indptr"),
        (
            {"y": np.array([0, 1, 0, 1.5 + 1j])},
            "y: got complex numbers (complex128); expected numbers",
        ),
        ({"y": np.array([0, 1, 0, -2])}, "y: row 3 is -2"),
        (
            {"y": np.array([0, 1, 0, 2**64 - 1], dtype=np.uint64)},
            "y: row 3 is 18446744073709551615",
        ),
        ({"y": np.array([[[0, 1, 0, 1]]])}, "y: got int64 of shape (1, 1, 4); expected (1)"),
        ({"y": np.array([0, "a", None, 1], dtype=object)}, "y: holds Python objects"),
        ({"x": np.ones((4, 2), dtype=complex)}, "x: got complex numbers (complex128); expected"),
        ({"x": np.ones((3, 2), dtype=np.float32)}, "x: got shape (3, 2); expected (4, F)"),
        ({"x": np.full((4, 2), np.nan, dtype=np.float32)}, "x: row 0 holds NaN or infinity"),
        ({"edge_index": np.array([[0, 1], [1, 4]])}, "edge_index: column 1 is (1, 4)"),
        ({"edge_index": np.array([[0, 1], [1, 1]])}, "edge_index: column 1 is (1, 1), a self"),
        ({"edge_index": np.array([[0, 1, 1], [1, 0, 2]])}, "a directed graph"),
        ({"edge_index": np.array([[0, 0], [1, 1]])}, "columns 0 and 1 are both (0, 1)"),
        ({"edge_index": np.zeros((2, 0), dtype=int)}, "edge_index: there are no edges"),
        ({"edge_index": np.array([[0, 1]])}, "edge_index: got shape (1, 2)"),
        ({**_SPARSE, "x_shape": np.array([5, 3])}, "x: got shape (5, 3); expected (4, F)"),
        ({**_SPARSE, "x_shape": np.array([4, 0])}, "x_shape: got [4, 0]; expected numbers"),
        ({**_SPARSE, "x_shape": np.array([4, 2])}, "x_indices: row 0 has column 2; expected 0"),
        ({**_SPARSE, "x_shape": np.array([4])}, "x_shape: got shape (1,)"),
        ({**_SPARSE, "x_indptr": np.array([0, 2, 2, 3, 4])}, "x_indptr: runs from 0 to 4; exp"),
        ({**_SPARSE, "x_indptr": np.array([0, 2, 1, 3, 3])}, "x_indptr: decreases at row 1"),
        ({**_SPARSE, "x_indptr": np.array([], dtype=int)}, "x_indptr: is empty"),
        ({**_SPARSE, "x_indices": np.array([0, -1, 1])}, "x_indices: row 0 has column -1"),
        ({**_SPARSE, "x_indices": np.array([0, 1])}, "x_indices: got shape (2,); expected (3)"),
        ({**_SPARSE, "x_data": np.ones(3) * 1j}, "x_data: got complex numbers"),
        (
            {**_SPARSE, "x_data": np.array([1, 2, np.inf], dtype=np.float32)},
            "x: row 2 holds NaN or infinity",
        ),
    ],
)
def test_read_npz_graph_refuses_by_file_and_array(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    path = tmp_path / "g.npz"
    write_npz(path, **changes)
    with pytest.raises(DatasetError) as caught:
        read_npz_graph(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_describe_npz_graph_takes_shapes_from_headers(tmp_path: Path) -> None:
    write_npz(tmp_path / "g.npz")
    assert describe_npz_graph(tmp_path / "g.npz") == {
        "nodes": 4,
        "edges": 3,
        "features": 2,
        "classes": 2,
        "split": "1/1/1",
    }


def _zeros_npz(path: Path, **arrays: tuple[str, tuple[int, ...]]) -> None:
    """Write arrays of zeros by dtype and shape, 16 MiB at a time, compressed."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (dtype, shape) in arrays.items():
            left = math.prod(shape) * np.dtype(dtype).itemsize
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                header = {"descr": dtype, "fortran_order": False, "shape": shape}
                npy_format.write_array_header_1_0(file, header)
                while left:
                    left -= file.write(bytes(min(left, 2**24)))


def _peak_bytes(call: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_describe_npz_graph_of_a_bomb_takes_no_memory(tmp_path: Path) -> None:
    path, nodes = tmp_path / "bomb.npz", 2**25
    _zeros_npz(path, y=("<i8", (nodes,)), x=("<f4", (nodes, 1)), edge_index=("<i4", (2, 2**20)))
    assert path.stat().st_size < 2**19
    found: list[NpzSummary] = []
    peak_bytes = _peak_bytes(lambda: found.append(describe_npz_graph(path)))
    assert peak_bytes < 2**22
    expected = {"nodes": nodes, "edges": 2**20, "features": 1, "classes": None, "split": "none"}
    assert found == [expected]


def test_describe_npz_graph_counts_labels_piece_by_piece(tmp_path: Path) -> None:
    path, nodes = tmp_path / "g.npz", 2**20
    labels = np.arange(nodes, dtype=np.int64) % 7
    mask = np.arange(nodes) % 4 == 1
    arrays = {"train_mask": mask, "val_mask": ~mask, "test_mask": mask & False}
    write_npz(path, y=labels, x=np.zeros((nodes, 1), dtype=np.float32), **arrays)
    found: list[NpzSummary] = []
    assert _peak_bytes(lambda: found.append(describe_npz_graph(path))) < 2**22
    assert found[0]["classes"] == 7
    assert found[0]["split"] == f"{nodes // 4}/{3 * nodes // 4}/0"


def test_describe_npz_graph_hides_split_of_too_many_labels(tmp_path: Path) -> None:
    path, nodes = tmp_path / "g.npz", 2**23 + 1
    masks = dict.fromkeys(("train_mask", "val_mask", "test_mask"), ("|b1", (nodes,)))
    rest = {"y": ("<i8", (nodes,)), "x": ("<f4", (nodes, 1)), "edge_index": ("<i4", (2, 5))}
    _zeros_npz(path, **masks, **rest)
    assert describe_npz_graph(path)["split"] == "-"


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"edge_index": ("<i4", (2, 2**25))}, "has 33554432 edges for 6 pairs of nodes"),
        (
            {"train_mask": ("|b1", (2**26,))},
            "train_mask: got bool of shape (67108864,); expected (4)",
        ),
        ({"x": ("<f4", (2**24, 2))}, "x: got shape (16777216, 2); expected (4, F)"),
        ({"y": ("<i8", (2**23, 2, 1))}, "y: got int64 of shape (8388608, 2, 1); expected"),
    ],
)
def test_sizes_that_disagree_are_refused_before_memory_is_taken(
    tmp_path: Path, arrays: dict[str, tuple[str, tuple[int, ...]]], sentence: str
) -> None:
    path = tmp_path / "g.npz"
    small: dict[str, tuple[str, tuple[int, ...]]] = {
        "edge_index": ("<i4", (2, 3)),
        "y": ("<i8", (4,)),
        "x": ("<f4", (4, 2)),
        **dict.fromkeys(("train_mask", "val_mask", "test_mask"), ("|b1", (4,))),
    }
    _zeros_npz(path, **{**small, **arrays})

    def read() -> None:
        with pytest.raises(DatasetError) as caught:
            read_npz_graph(path)
        assert sentence in str(caught.value)

    assert _peak_bytes(read) < 2**22


def test_arrays_larger_than_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = 2**20
    arrays = {"y": ("<i8", (nodes,)), "x": ("<f4", (nodes, 4)), "edge_index": ("<i4", (2, nodes))}
    _zeros_npz(tmp_path / "g.npz", **arrays)
    monkeypatch.setattr(npy, "memory_bytes", lambda: 30_000_000)
    with pytest.raises(DatasetError, match=r"its arrays take 33\.6 MB, and the machine has 30\.0"):
        read_npz_graph(tmp_path / "g.npz")
