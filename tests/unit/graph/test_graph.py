"""Building graphs from edge lists, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from retexo_fl.errors import DatasetError
from retexo_fl.graph import Graph, Split, make_split
from tests.unit.graph.graphs import SMALL_LABELS, SMALL_SPLIT, mask, small_graph


def test_from_edges_builds_symmetric_sorted_csr() -> None:
    graph = small_graph()
    assert graph.indptr.tolist() == [0, 2, 5, 7, 9, 10, 10]
    assert graph.indices.tolist() == [1, 3, 0, 2, 4, 1, 3, 0, 2, 1]
    assert graph.indptr.dtype == np.int64
    assert graph.labels.dtype == np.int64
    assert (graph.num_nodes, graph.num_edges, graph.num_features) == (6, 5, 2)
    assert graph.num_classes == 2
    assert graph.degrees.tolist() == [2, 3, 2, 2, 1, 0]


def test_edge_list_is_sorted_with_the_smaller_end_first() -> None:
    assert small_graph().edge_list().tolist() == [[0, 0, 1, 1, 2], [1, 3, 2, 4, 3]]


def test_from_edges_numbers_the_nodes_when_there_are_no_keys() -> None:
    labels = np.zeros(11, dtype=np.int8)
    features = np.ones((11, 1), dtype=np.float32)
    graph = Graph.from_edges(np.array([[0], [10]]), name="g", features=features, labels=labels)
    assert graph.node_keys.tolist() == [b"%d" % node for node in range(11)]
    assert graph.published_split is None


def test_from_edges_takes_more_classes_than_labels_show() -> None:
    assert small_graph(num_classes=5).num_classes == 5


def test_published_split_is_kept() -> None:
    found = small_graph().published_split
    assert found is not None
    for name, expected in SMALL_SPLIT.named().items():
        np.testing.assert_array_equal(found.named()[name], expected)


def _features(*, rows: int = 6, value: float = 1.0, dtype: str = "float32") -> np.ndarray:
    features = np.ones((rows, 2), dtype=dtype)
    features[-1, 1] = value
    return features


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"edges": np.array([[0, 1, 1], [1, 2, 0]])}, "columns 0 and 2 are (0, 1) and (1, 0): a d"),
        ({"edges": np.array([[0, 1, 0], [1, 2, 1]])}, "columns 0 and 2 are (0, 1) and (0, 1): an "),
        ({"edges": np.array([[0, 3], [1, 3]])}, "edges: column 1 is (3, 3), a self loop"),
        ({"edges": np.array([[0, 6], [1, 3]])}, "edges: column 1 is (6, 3); expected nodes 0..5"),
        ({"edges": np.array([[0, 2], [1, -1]])}, "edges: column 1 is (2, -1)"),
        ({"edges": np.zeros((2, 0), dtype=np.int32)}, "edges: there are no edges"),
        ({"edges": np.zeros((3, 2), dtype=np.int32)}, "edges: got shape (3, 2); expected (2, any)"),
        ({"edges": np.array([[0.0], [1.0]])}, "edges: got float64; expected integers"),
        ({"features": _features(value=np.nan)}, "features: row 5 holds NaN or infinity"),
        ({"features": csr_array(_features(value=np.inf))}, "features: row 5 holds NaN"),
        ({"features": _features(rows=5)}, "features: got shape (5, 2); expected (6, F)"),
        ({"features": _features()[:, 0]}, "features: got shape (6,)"),
        ({"features": _features() * 1j}, "features: got complex numbers (complex64); expected"),
        ({"labels": np.array([0, 1, 0, -2, 0, 1])}, "labels: row 3 is -2; expected -1"),
        ({"num_classes": 1}, "labels: row 1 is 1; expected -1 (unlabelled) to 0"),
        ({"labels": np.array([0, 1, 0, 6, 0, 1])}, "labels: row 3 is 6; expected fewer classes"),
        ({"labels": np.full(6, -1)}, "labels: no node is labelled"),
        (
            {"labels": np.zeros((6, 1, 1), dtype=int)},
            "labels: got int64 of shape (6, 1, 1); expected",
        ),
        ({"node_keys": np.array([b"a"] * 6)}, "node_keys: rows 0 and 1 are both 'a'"),
        ({"node_keys": np.array([b"a", b"", b"b", b"c", b"d", b"e"])}, "node_keys: row 1 is empty"),
        ({"node_keys": np.arange(6)}, "node_keys: got int64; expected bytes"),
    ],
)
def test_from_edges_refuses_by_array_and_row(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DatasetError) as caught:
        small_graph(**changes)
    assert str(caught.value).startswith("small: ")
    assert sentence in str(caught.value)


def test_from_edges_sorts_sparse_features() -> None:
    features = csr_array(_features())
    expected = features.toarray()
    start, end = features.indptr[1:3]
    for array in (features.indices, features.data):
        array[start:end] = array[start:end][::-1].copy()
    found = small_graph(features=features).features
    assert isinstance(found, csr_array)
    assert found.has_sorted_indices
    np.testing.assert_array_equal(found.toarray(), expected)


@pytest.mark.parametrize(
    ("split", "sentence"),
    [
        (Split(train=mask(6, 0), val=mask(6, 1), test=mask(6, 1)), "test_mask: row 1 is in anothe"),
        (Split(train=mask(6, 4), val=mask(6, 1), test=mask(6, 2)), "train_mask: no node is in it"),
        (Split(train=mask(5, 0), val=mask(6, 1), test=mask(6, 2)), "train_mask: got shape (5,)"),
        (Split(train=mask(6, 0), val=SMALL_LABELS, test=mask(6, 2)), "val_mask: row 4 is -1; expe"),
    ],
)
def test_a_split_that_cannot_be_is_refused_where_it_is_used(split: Split, sentence: str) -> None:
    graph, owners = small_graph(split=split), np.zeros(6, dtype=np.int32)
    make_split(graph, owners, split="random-unstratified:0.4/0.3/0.3", seed=0)
    with pytest.raises(DatasetError) as caught:
        make_split(graph, owners, split="published", seed=0)
    assert sentence in str(caught.value)
