"""PyG's ``Data``, made by PyG itself."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from retexo_fl.errors import ConfigurationError, DatasetError
from retexo_fl.graph import EdgeRules, from_pyg, make_split
from tests.unit.graph.graphs import SMALL_EDGES, SMALL_FEATURES, SMALL_SPLIT, small_graph

with warnings.catch_warnings():
    # It compiles parts of itself by a function that torch calls outdated.
    warnings.simplefilter("ignore")
    from torch_geometric.data import Data

LABELS = [0, 1, 0, 1, -1, 0]


def small_data(**changes: Any) -> Any:
    """Return the small graph as PyG has it, with some of it changed or, by None, left out."""
    edges = torch.from_numpy(SMALL_EDGES)
    values = {
        "edge_index": torch.cat((edges, edges.flip(0)), dim=1),
        "x": torch.from_numpy(SMALL_FEATURES),
        "y": torch.tensor(LABELS),
        **changes,
    }
    return Data(**{key: value for key, value in values.items() if value is not None})


def masks() -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(mask) for name, mask in SMALL_SPLIT.named().items()}


def assert_same(one: Any, other: Any, *, but: tuple[str, ...] = ()) -> None:
    """Compare two graphs array by array."""
    for name in ("indptr", "indices", "labels", "node_keys", "train_mask", "val_mask", "test_mask"):
        if name not in but:
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert one.num_classes == other.num_classes
    assert type(one.features) is type(other.features)
    assert one.features.dtype == other.features.dtype == np.float32
    for part in ("indptr", "indices", "data") if isinstance(one.features, csr_array) else ("T",):
        np.testing.assert_array_equal(getattr(one.features, part), getattr(other.features, part))


def test_data_is_the_same_graph() -> None:
    assert_same(from_pyg(small_data(**masks()), name="small"), small_graph(node_keys=None))
    without = from_pyg(small_data())
    assert (without.name, without.published_split) == ("pyg", None)


def test_edges_may_stand_in_one_direction() -> None:
    one = small_data(edge_index=torch.from_numpy(SMALL_EDGES), **masks())
    assert_same(from_pyg(one), small_graph(node_keys=None))


@pytest.mark.filterwarnings("ignore:Sparse CS:UserWarning")  # by torch where they are made
@pytest.mark.parametrize("how", ["to_sparse", "to_sparse_csr", "to_sparse_csc"])
def test_sparse_features_stay_sparse(how: str) -> None:
    dense = torch.from_numpy(SMALL_FEATURES)
    data = small_data(x=getattr(dense, how)(), **masks())
    expected = small_graph(node_keys=None, features=csr_array(SMALL_FEATURES))
    assert_same(from_pyg(data), expected)


def test_a_scipy_matrix_is_taken_without_explicit_zeros() -> None:
    parts = (np.array([0.0, 2.0, 3.0, 1.0]), np.array([1, 1, 1, 0]), np.array([0, 1, 4, 4]))
    data = small_data(
        x=csr_array(parts, shape=(3, 2)),
        y=torch.tensor([0, 1, 0]),
        edge_index=torch.tensor([[0, 1], [1, 0]]),
    )
    features = from_pyg(data).features
    assert isinstance(features, csr_array)
    assert features.indptr.tolist() == [0, 0, 2, 2]
    assert features.indices.tolist() == [0, 1]
    assert features.data.tolist() == [1, 5]


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8]
)
def test_features_become_float32(dtype: torch.dtype) -> None:
    data = small_data(
        x=torch.from_numpy(SMALL_FEATURES).to(dtype).requires_grad_(dtype.is_floating_point),
        **masks(),
    )
    assert_same(from_pyg(data), small_graph(node_keys=None))


@pytest.mark.parametrize(
    "labels",
    [
        torch.tensor(LABELS)[:, None],
        torch.tensor([0, 1, 0, 1, float("nan"), 0]),
        torch.tensor([0, 1, 0, 1, float("nan"), 0], dtype=torch.float64)[:, None],
        torch.tensor(LABELS, dtype=torch.int8),
    ],
)
def test_labels_may_be_a_column_or_floats_with_nan(labels: torch.Tensor) -> None:
    assert_same(from_pyg(small_data(y=labels, **masks())), small_graph(node_keys=None))


def test_one_of_several_splits_is_chosen() -> None:
    several = {name: torch.stack((~mask, mask), dim=1) for name, mask in masks().items()}
    graph, owners = from_pyg(small_data(**several)), np.zeros(6, dtype=np.int32)
    found = make_split(graph, owners, split="published:1", seed=0)
    for name, mask in masks().items():
        np.testing.assert_array_equal(found.named()[name], mask.numpy())
    with pytest.raises(ConfigurationError, match="got published:2; expected published:0 to publis"):
        make_split(graph, owners, split="published:2", seed=0)


def test_attributes_are_tensors_or_lists() -> None:
    data = small_data(site=torch.tensor([3, 3, 10, 3, 3, 3]), town=list("abcdef"))
    graph = from_pyg(data, attributes=("site", "town"))
    assert graph.attributes["site"].tolist() == [b"3", b"3", b"10", b"3", b"3", b"3"]
    assert graph.attributes["town"].tolist() == [b"a", b"b", b"c", b"d", b"e", b"f"]
    with pytest.raises(DatasetError, match="pyg: .*attribute 'street'"):
        from_pyg(data, attributes=("street",))


def test_weights_and_attributes_are_those_of_the_edges() -> None:
    once = torch.arange(5.0)
    carried = torch.stack((once, -once), dim=1)
    data = small_data(edge_weight=torch.cat((once, once)), edge_attr=torch.cat((carried, carried)))
    expected = small_graph(
        node_keys=None, edge_weights=once.numpy(), edge_attributes=carried.numpy()
    )
    found = from_pyg(data)
    for name, array in expected.edge_values.named().items():
        np.testing.assert_array_equal(found.edge_values.named()[name], array)
    column = from_pyg(small_data(edge_attr=torch.cat((once, once))))
    assert column.edge_values.num_attributes == 1


def test_weights_that_differ_by_direction_need_a_directed_graph() -> None:
    data = small_data(edge_weight=torch.arange(10.0))
    with pytest.raises(DatasetError, match="pyg: edge_index: .* other direction; expected the sam"):
        from_pyg(data)
    graph = from_pyg(data, rules=EdgeRules(directed=True))
    assert graph.is_directed
    assert graph.edge_values.weights is not None
    # Edge 0 leads from node 0 to node 1 and weighs 0; edge 5 leads back.
    place = graph.indptr[1] + np.flatnonzero(graph.indices[graph.indptr[1] : graph.indptr[2]] == 0)
    assert graph.edge_values.weights[place].tolist() == [[0, 5]]


def test_a_direction_that_is_not_used_is_said(caplog: pytest.LogCaptureFixture) -> None:
    from_pyg(small_data(edge_index=torch.from_numpy(SMALL_EDGES)), name="roads")
    (record,) = caplog.records
    assert record.getMessage().startswith("roads: edge_index: edges stand in one direction each")
    assert record.levelno == logging.WARNING


def test_rules_take_what_is_no_simple_graph(caplog: pytest.LogCaptureFixture) -> None:
    edges = torch.from_numpy(SMALL_EDGES)
    more = torch.tensor([[5, 0], [5, 1]])
    data = small_data(edge_index=torch.cat((edges, more), dim=1), **masks())
    with pytest.raises(DatasetError, match=r"pyg: edge_index: column 5 is \(5, 5\), a self loop"):
        from_pyg(data)
    assert_same(
        from_pyg(data, rules=EdgeRules(merge="max", self_loops="drop")), small_graph(node_keys=None)
    )
    assert [record.getMessage() for record in caplog.records] == [
        "pyg: self loops left out: 1, repetitions merged (max): 1; which end is the source is not "
        "used (edges-are directed uses it)"
    ]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"edge_index": None}, "edge_index: missing; expected edge_index; there is: x, y"),
        ({"y": None}, "y: missing; expected y, or task links; there is: edge_index, x"),
        ({"y": torch.zeros(6, 3)}, "y: got shape (6, 3); expected one class for each node"),
        ({"y": torch.tensor([0, 1, 0.5, 1, 0, 0])}, "y: row 2 is 0.5; expected whole numbers"),
        ({"y": torch.tensor([0, 1])}, "edge_index: column 1 is (1, 2); expected nodes 0..1"),
        (
            {"x": torch.zeros(6, 2, dtype=torch.complex64)},
            "x: got complex numbers (complex64); expected",
        ),
        ({"x": torch.full((6, 2), torch.inf)}, "x: row 0 holds NaN or infinity"),
        ({"x": torch.full((6, 2), 1e300, dtype=torch.float64)}, "x: row 0 holds NaN or infinity"),
        ({"x": torch.zeros(5, 2)}, "x: got shape (5, 2); expected (6, F)"),
        ({"edge_index": torch.zeros(3, 4, dtype=torch.int64)}, "edge_index: got shape (3, 4)"),
        ({"edge_index": torch.zeros(2, 0, dtype=torch.int64)}, "edge_index: there are no edges"),
        ({"edge_index": torch.zeros(2, 4)}, "edge_index: got float32; expected integers"),
    ],
)
def test_data_that_is_no_graph_for_us_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DatasetError) as caught:
        from_pyg(small_data(**changes))
    assert str(caught.value).startswith(f"pyg: {sentence}")


@given(st.sets(st.tuples(st.integers(0, 8), st.integers(0, 8)).filter(lambda p: p[0] < p[1])))
def test_any_symmetric_edge_index_gives_its_edges(pairs: set[tuple[int, int]]) -> None:
    pairs = pairs | {(0, 1)}
    index = torch.tensor([*pairs, *(pair[::-1] for pair in pairs)]).T
    data = Data(edge_index=index, x=torch.ones(9, 1), y=torch.zeros(9, dtype=torch.int64))
    assert {tuple(edge) for edge in from_pyg(data).edge_list().T.tolist()} == pairs


def test_converters_load_no_library_of_others() -> None:
    code = (
        "import sys; from retexo_fl.graph import from_pyg, from_networkx; "
        "print([name for name in ('torch', 'torch_geometric', 'networkx', 'pyarrow') "
        "if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=500
    )
    assert done.stdout == "[]\n"
