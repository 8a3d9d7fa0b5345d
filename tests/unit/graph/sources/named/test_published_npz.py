"""Published .npz files: taken apart and put together again, and refused where they are not."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from retexo_fl.errors import DatasetError
from retexo_fl.graph.sources.named.arrays import Arrays
from retexo_fl.graph.sources.named.published_npz import gnn_benchmark_arrays, heterophilous_arrays
from tests.support.data import data_dir


def _npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **{name: a for name, a in arrays.items() if a is not None})
    return file.getvalue()


def _loaded(name: str) -> Arrays:
    with np.load(data_dir() / f"{name}.npz") as arrays:
        return {array: arrays[array] for array in arrays.files}


def _benchmark(arrays: Arrays, **changes: Any) -> bytes:
    """Return a file of gnn-benchmark: a directed adjacency with some edges in both directions."""
    edges, num_nodes = arrays["edge_index"], len(arrays["y"])
    turned = np.arange(edges.shape[1]) % 3 == 0
    both = np.concatenate((np.where(turned, edges[::-1], edges), edges[:, ::7]), axis=1)
    loops = np.stack((np.arange(5), np.arange(5)))
    both = np.concatenate((both, loops), axis=1)
    order = np.argsort(both[0], kind="stable")
    indptr = np.concatenate(([0], np.cumsum(np.bincount(both[0], minlength=num_nodes))))
    source = {
        "adj_data": np.ones(both.shape[1], dtype=np.float32),
        "adj_indices": both[1][order].astype(np.int32),
        "adj_indptr": indptr.astype(np.int32),
        "adj_shape": np.array([num_nodes, num_nodes]),
        "attr_data": arrays["x_data"],
        "attr_indices": arrays["x_indices"],
        "attr_indptr": arrays["x_indptr"],
        "attr_shape": arrays["x_shape"],
        "labels": arrays["y"].astype(np.int64),
        # What is not needed may need pickle: it is never opened.
        "idx_to_attr": np.array({0: "word"}, dtype=object),
    }
    # Edges in both directions are one entry twice only if repeated in one direction.
    return _npz(**{**_without_repeats(source, num_nodes), **changes})


def _without_repeats(source: dict[str, Any], num_nodes: int) -> dict[str, Any]:
    rows = np.repeat(np.arange(num_nodes), np.diff(source["adj_indptr"]))
    codes = np.unique(rows * num_nodes + source["adj_indices"])
    counts = np.bincount(codes // num_nodes, minlength=num_nodes)
    return {
        **source,
        "adj_data": np.ones(len(codes), dtype=np.float32),
        "adj_indices": (codes % num_nodes).astype(np.int32),
        "adj_indptr": np.concatenate(([0], np.cumsum(counts))).astype(np.int32),
    }


@pytest.mark.real_graphs
@pytest.mark.parametrize("name", ["amazon_computers", "coauthor_physics"])
def test_gnn_benchmark_files_give_the_arrays_of_the_npz_file(name: str) -> None:
    expected = _loaded(name)
    made = gnn_benchmark_arrays(name, {"source.npz": _benchmark(expected)})
    assert set(made) == set(expected) - {"class_names"}
    for array in made:
        np.testing.assert_array_equal(made[array], expected[array], strict=True)


_SMALL: Arrays = {
    "edge_index": np.array([[0, 0, 1], [1, 3, 2]], dtype=np.int32),
    "y": np.array([0, 1, 0, 1, 1, 1], dtype=np.int16),
    "x_indptr": np.arange(7, dtype=np.int32),
    "x_indices": np.zeros(6, dtype=np.int32),
    "x_data": np.ones(6, dtype=np.float32),
    "x_shape": np.array([6, 2]),
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"labels": None}, "labels: missing"),
        ({"labels": np.zeros(5, dtype=int)}, "has 5 labels, an adjacency of"),
        ({"labels": np.array(["a"] * 6)}, "got <U1; expected integers"),
        ({"labels": np.full(6, 2**20)}, "row 0 is 1048576; expected"),
        ({"labels": np.array([None] * 6)}, "labels: holds Python objects"),
        ({"adj_shape": np.array([6, 7])}, "an adjacency of (6, 7)"),
        ({"adj_shape": np.array([7, 6])}, "adj_shape: got [7, 6]; expected [6, 6]"),
        ({"adj_shape": np.array([6])}, "adj_shape: got shape (1,); expected (2)"),
        ({"attr_shape": np.array([6, 0])}, "attr_shape: got [6, 0]; expected rows and columns"),
        ({"attr_indices": np.full(6, 5, dtype=np.int32)}, "attr: indices: runs to 5; expected 0"),
        ({"attr_indptr": np.zeros(0, dtype=np.int32)}, "attr: indptr: is empty"),
        ({"attr_data": np.array(["x"] * 6)}, "attr: data: got <U1 of (6,); expected numbers"),
        ({"adj_indices": np.zeros(9)}, "adj: indices: got float64; expected integers"),
    ],
)
def test_wrong_gnn_benchmark_files_are_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(DatasetError) as caught:
        gnn_benchmark_arrays("mine", {"source.npz": _benchmark(_SMALL, **changes)})
    assert expected in str(caught.value)
    assert "source.npz" in str(caught.value)


@pytest.mark.parametrize("convert", [gnn_benchmark_arrays, heterophilous_arrays])
def test_what_is_no_archive_is_refused(convert: Any) -> None:
    for content in (b"", b"PK\x03\x04nothing", _npz(other=np.ones(1))[:-30]):
        with pytest.raises(DatasetError, match=r"mine: source\.npz: not a \.npz file"):
            convert("mine", {"source.npz": content})
    with pytest.raises(DatasetError, match=r"missing; the file has other"):
        convert("mine", {"source.npz": _npz(other=np.ones(1))})


def _heterophilous(arrays: Arrays, **changes: Any) -> bytes:
    source = {
        "node_features": arrays["x"],
        "node_labels": arrays["y"].astype(np.int64),
        "edges": arrays["edge_index"].T.astype(np.int64)[::-1],
        **{f"{part}_masks": arrays[f"{part}_masks"] for part in ("train", "val", "test")},
    }
    return _npz(**{**source, **changes})


@pytest.mark.real_graphs
def test_tolokers_gives_the_arrays_of_the_npz_file() -> None:
    expected = _loaded("tolokers")
    made = heterophilous_arrays("tolokers", {"tolokers.npz": _heterophilous(expected)})
    assert set(made) == set(expected)
    for array in made:
        np.testing.assert_array_equal(made[array], expected[array], strict=True)


@pytest.mark.real_graphs
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"edges": np.array([[0, 11758]])}, "edges: runs to 11758; expected nodes 0 to 11757"),
        ({"edges": np.array([0, 1])}, "edges: got shape (2,); expected (any, 2)"),
        ({"node_labels": np.zeros(3, dtype=int)}, "node_labels: got shape (3,); expected (11758)"),
        ({"node_features": np.zeros(3)}, "node_features: got shape (3,); expected (any, any)"),
        ({"val_masks": np.zeros((0, 11758), dtype=bool)}, "val_masks: is empty"),
        ({"val_masks": np.zeros((2, 11758))}, "val_masks: got float64; expected booleans"),
        ({"test_masks": None}, "test_masks: missing"),
    ],
)
def test_wrong_heterophilous_files_are_refused(changes: dict[str, Any], expected: str) -> None:
    content = _heterophilous(_loaded("tolokers"), **changes)
    with pytest.raises(DatasetError) as caught:
        heterophilous_arrays("mine", {"source.npz": content})
    assert expected in str(caught.value)
