from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from retexo_fl.errors import DatasetError
from retexo_fl.graph import EdgeRules, Graph, from_pyg
from tests.support.typed_graphs import CUSTOMERS, DEVICES, SHOPS, bank


def channel_of(graph: Graph, source: bytes, target: bytes, column: int) -> float:
    """Return what weighs the message between two nodes along a channel."""
    keys = graph.node_keys.tolist()
    row, other = keys.index(target), keys.index(source)
    some = slice(graph.indptr[row], graph.indptr[row + 1])
    weights = graph.edge_values.weights
    assert weights is not None
    return float(weights[some][graph.indices[some] == other][0, column])


def test_types_stand_side_by_side() -> None:
    made = bank()
    graph = from_pyg(made)
    relations = graph.relations
    assert relations is not None
    assert graph.num_nodes == CUSTOMERS + DEVICES + SHOPS
    assert (relations.types, relations.widths) == (("customer", "device", "shop"), (5, 3, 1))
    assert isinstance(graph.features, csr_array)
    dense = graph.features.toarray()
    np.testing.assert_array_equal(dense[:CUSTOMERS, :5], made["nodes"]["customer"]["x"])
    np.testing.assert_array_equal(dense[CUSTOMERS:-SHOPS, 5:8], made["nodes"]["device"]["x"])
    assert (dense[-SHOPS:, 8] == 1).all()
    assert np.count_nonzero(dense[:CUSTOMERS, 5:]) == 0
    assert (graph.labels[CUSTOMERS:] == -1).all()
    assert graph.num_edges == sum(
        np.asarray(one["edge_index"] if isinstance(one, dict) else one).shape[1]
        for one in made["edges"].values()
    )


def test_an_edge_has_its_channels_at_both_ends() -> None:
    made = bank()
    graph = from_pyg(made)
    (customer, shop) = made["edges"]["customer", "buys", "shop"]["edge_index"][:, 0].tolist()
    weight = np.float32(made["edges"]["customer", "buys", "shop"]["edge_weight"][0])
    ends = f"customer/{customer}".encode(), f"shop/{shop}".encode()
    assert channel_of(graph, *ends, 1) == weight
    assert channel_of(graph, *ends[::-1], 8 - 1 - 1) == weight
    assert channel_of(graph, *ends, 0) == 0
    first, second = made["edges"]["customer", "knows", "customer"][:, 0].tolist()
    ends = f"customer/{first}".encode(), f"customer/{second}".encode()
    assert channel_of(graph, *ends, 2) == channel_of(graph, *ends[::-1], 2) == 1


def test_of_directed_edges_both_ways_are_told_apart() -> None:
    graph = from_pyg(bank(), rules=EdgeRules(directed=True))
    assert graph.relations is not None
    assert not any(one.symmetric for one in graph.relations.relations)
    assert len(graph.relations.channels) == 8


def test_pygs_graph_is_the_mapping_of_its_stores() -> None:
    data = pytest.importorskip("torch_geometric.data").HeteroData()
    torch = pytest.importorskip("torch")
    made = bank()
    for kind, store in made["nodes"].items():
        for name, value in store.items():
            setattr(data[kind], name, value if name == "num_nodes" else torch.from_numpy(value))
    for relation, store in made["edges"].items():
        stores = store if isinstance(store, dict) else {"edge_index": store}
        for name, value in stores.items():
            setattr(data[relation], name, torch.from_numpy(value))
    graph, other = from_pyg(data), from_pyg(made)
    assert graph.relations == other.relations
    np.testing.assert_array_equal(graph.indices, other.indices)
    np.testing.assert_array_equal(graph.labels, other.labels)
    assert graph.edge_values.weights is not None
    np.testing.assert_array_equal(graph.edge_values.weights, other.edge_values.weights)


def test_a_relation_in_both_directions_is_one(caplog: pytest.LogCaptureFixture) -> None:
    made = bank()
    ends = made["edges"]["customer", "owns", "device"]
    made["edges"]["device", "rev_owns", "customer"] = ends[::-1, ::-1]
    with caplog.at_level(logging.WARNING):
        graph = from_pyg(made)
    assert graph.relations == from_pyg(bank()).relations
    assert "relation device rev_owns customer is relation customer owns device" in caplog.text


def _without_labels(made: dict[str, Any]) -> None:
    del made["nodes"]["customer"]["y"]


def _other_classes(made: dict[str, Any]) -> None:
    made["nodes"]["device"]["y"] = np.zeros(DEVICES, int)


def _masks_of_one(made: dict[str, Any]) -> None:
    made["nodes"]["device"]["y"] = made["nodes"]["customer"]["y"][:DEVICES]
    made["nodes"]["device"]["train_mask"] = np.ones(DEVICES, bool)


def _no_nodes(made: dict[str, Any]) -> None:
    made["nodes"]["shop"] = {}


def _unknown_type(made: dict[str, Any]) -> None:
    made["edges"]["customer", "visits", "branch"] = np.zeros((2, 1), int)


def _no_edges(made: dict[str, Any]) -> None:
    made["edges"]["customer", "owns", "device"] = np.zeros((2, 0), int)


def _beyond(made: dict[str, Any]) -> None:
    made["edges"]["customer", "owns", "device"][1, 4] = DEVICES


def _twice(made: dict[str, Any]) -> None:
    ends = made["edges"]["customer", "owns", "device"]
    ends[:, 5] = ends[:, 3]


def _other_length(made: dict[str, Any]) -> None:
    made["edges"]["customer", "buys", "shop"]["edge_weight"] = np.ones(3)


def _no_relations(made: dict[str, Any]) -> None:
    made["edges"].clear()


def _odd_relation(made: dict[str, Any]) -> None:
    made["edges"]["owns"] = np.zeros((2, 1), int)


def _odd_features(made: dict[str, Any]) -> None:
    made["nodes"]["device"]["x"] = np.zeros((DEVICES, 0))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_without_labels, "labels: no type has them; expected one type with labels"),
        (
            _other_classes,
            "those of customer are classes 0 to 2, of device classes 0 to 0; expected",
        ),
        (_masks_of_one, "train_mask: type customer has none; expected it of each type with lab"),
        (_no_nodes, "type shop: has no features; expected them, or num_nodes"),
        (_unknown_type, "relation customer visits branch: there is no type branch; expected one "),
        (_no_edges, "relation customer owns device: has no edges; expected at least one"),
        (_beyond, f"relation customer owns device: edge 4 is .* to {DEVICES}; expected nodes 0"),
        (_twice, "relation customer owns device: columns 3 and 5 are both"),
        (_other_length, "relation customer buys shop: has 60 edges and 3 edge_weight"),
        (_no_relations, "relations: there are none; expected at least one"),
        (_odd_relation, "edges: got 'owns'; expected .source type, name, target type."),
        (_odd_features, "features of device: got shape"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_name(change: Any, told: str) -> None:
    made = bank()
    change(made)
    with pytest.raises(DatasetError, match=told):
        from_pyg(made)


def test_no_type_has_labels_where_edges_are_learned() -> None:
    made = bank()
    graph = from_pyg(made, task="links")
    assert graph.relations is not None
    assert graph.relations.with_labels == ()
    assert graph.num_classes == 1
    assert not graph.labelled.any()
    for store in made["nodes"].values():
        store.pop("y", None)
    assert from_pyg(made, task="links").relations == graph.relations
