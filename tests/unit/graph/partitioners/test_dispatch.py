"""Partitioners through their one door."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest

from retexo_fl.errors import ConfigurationError, DatasetError, PluginError
from retexo_fl.graph import Graph, assign_nodes
from tests.support.partitioner_contract import NODES, PartitionerContract, labelled_graph
from tests.unit.graph.graphs import small_graph


def rings(count: int, size: int) -> Graph:
    """Return ``count`` rings of ``size`` nodes, each joined to the next by one edge."""
    start = np.repeat(np.arange(count) * size, size)
    step = np.tile(np.arange(size), count)
    inside = np.stack((start + step, start + (step + 1) % size))
    between = np.stack((np.arange(count - 1) * size, np.arange(1, count) * size))
    nodes = count * size
    return Graph.from_edges(
        np.concatenate((inside, between), axis=1),
        name="rings",
        features=np.ones((nodes, 1), dtype=np.float32),
        labels=np.zeros(nodes, dtype=int),
    )


def halves(graph: Graph, clients: int, seed: int) -> np.ndarray:
    """Give the first half of the nodes to client 0: a partitioner named by module:attribute."""
    assert (clients, seed) == (2, 5)
    return (np.arange(graph.num_nodes) * 2 >= graph.num_nodes).astype(np.int64)


def not_integers(graph: Graph, clients: int, seed: int) -> np.ndarray:
    """Break the contract: floats."""
    del clients, seed
    return np.zeros(graph.num_nodes)


def a_list(graph: Graph, clients: int, seed: int) -> list[int]:
    """Break the contract: no array."""
    del clients, seed
    return [0] * graph.num_nodes


def of_graph_only(graph: Graph) -> np.ndarray:
    """Break the contract: takes one argument."""
    return np.zeros(graph.num_nodes, dtype=np.int64)


def too_many(graph: Graph, clients: int, seed: int) -> np.ndarray:
    """Break the contract: a client too many."""
    del seed
    return np.arange(graph.num_nodes) % (clients + 1)


def only_first(graph: Graph, clients: int, seed: int) -> np.ndarray:
    """Break the contract: all other clients go without nodes."""
    del clients, seed
    return np.zeros(graph.num_nodes, dtype=np.int64)


def in_turn(graph: Graph, clients: int, seed: int) -> np.ndarray:
    """Deal the nodes out."""
    return (np.arange(graph.num_nodes) + seed) % clients


NOT_CALLABLE = "text"


class TestRandom(PartitionerContract):
    name = "random"


class TestMetis(PartitionerContract):
    name = "metis"


class TestLouvain(PartitionerContract):
    name = "louvain"


class TestOneNode(PartitionerContract):
    name = "one-node"
    clients = (NODES,)


class TestDirichlet(PartitionerContract):
    name = "dirichlet:1"


class TestPlugin(PartitionerContract):
    name = f"{__name__}:in_turn"


@pytest.mark.parametrize("partitioner", ["random", "metis", "louvain"])
@pytest.mark.parametrize("clients", [1, 3, 7])
def test_assign_nodes_uses_every_client_and_repeats_itself(partitioner: str, clients: int) -> None:
    graph = rings(6, 8)
    first = assign_nodes(graph, partitioner=partitioner, clients=clients, seed=4)
    again = assign_nodes(graph, partitioner=partitioner, clients=clients, seed=4)
    assert first.dtype == np.int32
    assert sorted(set(first.tolist())) == list(range(clients))
    np.testing.assert_array_equal(first, again)


def test_random_partition_is_balanced_and_depends_on_the_seed() -> None:
    graph = rings(10, 5)
    parts = [assign_nodes(graph, partitioner="random", clients=7, seed=seed) for seed in (0, 1)]
    assert sorted(np.bincount(parts[0]).tolist()) == [7, 7, 7, 7, 7, 7, 8]
    assert (parts[0] != parts[1]).any()


def test_one_node_gives_each_node_a_client() -> None:
    found = assign_nodes(small_graph(), partitioner="one-node", clients=6, seed=0)
    assert found.tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(ConfigurationError, match="clients: got 5; expected 6 .*'one-node'"):
        assign_nodes(small_graph(), partitioner="one-node", clients=5, seed=0)


def test_attribute_gives_each_value_a_client_in_byte_order() -> None:
    graph = small_graph(attributes={"site": np.array(["b", "10", "9", "b", "a", "10"])})
    found = assign_nodes(graph, partitioner="attribute:site", clients=4, seed=0)
    assert found.tolist() == [3, 0, 1, 3, 2, 0]
    assert found.dtype == np.int32
    for clients in (3, 5):
        told = f"^clients: got {clients}; expected 4, .*'site'.*'small'$"
        with pytest.raises(ConfigurationError, match=told):
            assign_nodes(graph, partitioner="attribute:site", clients=clients, seed=0)
    with pytest.raises(DatasetError, match="'small': .*attribute 'town'.*: site$"):
        assign_nodes(graph, partitioner="attribute:town", clients=4, seed=0)


def test_dirichlet_shares_classes_the_more_alike_the_larger_the_number() -> None:
    graph = labelled_graph()
    equal = assign_nodes(graph, partitioner="dirichlet:10000", clients=3, seed=1)
    for label in (-1, 0, 1, 2):
        counts = np.bincount(equal[graph.labels == label], minlength=3)
        assert counts.max() - counts.min() <= 2
    skewed = assign_nodes(graph, partitioner="dirichlet:.5", clients=3, seed=1)
    assert np.bincount(skewed).min() >= 10
    most = [np.bincount(skewed[graph.labels == label], minlength=3).max() for label in range(3)]
    assert max(most) > 0.6 * sum(graph.labels == int(np.argmax(most)))
    others = assign_nodes(graph, partitioner="dirichlet:.5", clients=3, seed=2)
    assert (skewed != others).any()


def test_dirichlet_is_refused_where_it_cannot_share_out() -> None:
    told = "'dirichlet:0.001' left one of 20 clients with fewer than 1 nodes of data set 'random'"
    with pytest.raises(ConfigurationError, match=told):
        assign_nodes(labelled_graph(), partitioner="dirichlet:0.001", clients=20, seed=0)
    for text in ("dirichlet:0", "dirichlet:-1", "dirichlet:many", "dirichlet:inf", "dirichlet:"):
        with pytest.raises(ConfigurationError, match="expected dirichlet:BETA with a number above"):
            assign_nodes(labelled_graph(), partitioner=text, clients=2, seed=0)
    numbers = small_graph(labels=np.linspace(0, 1, 6, dtype=np.float32))
    with pytest.raises(ConfigurationError, match="'dirichlet' shares out classes, .*'small' are"):
        assign_nodes(numbers, partitioner="dirichlet:1", clients=2, seed=0)


def test_plugin_is_called_and_checked() -> None:
    found = assign_nodes(small_graph(), partitioner=f"{__name__}:halves", clients=2, seed=5)
    assert found.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.dtype == np.int32


@pytest.mark.parametrize(
    ("attribute", "sentence"),
    [
        ("a_list", r"got list; expected an array of integers of shape \(6,\)"),
        ("of_graph_only", r"expected a callable \(graph, clients, seed\)"),
        ("not_integers", r"got float64 of shape \(6,\); expected integers of shape \(6,\)"),
        ("too_many", "node 2 .*client 2; expected 0 to 1"),
        ("only_first", "no nodes for clients 1 of 2; expected at least one"),
    ],
)
def test_plugin_result_is_refused_by_name(attribute: str, sentence: str) -> None:
    with pytest.raises(PluginError, match=f"{attribute}': {sentence}"):
        assign_nodes(small_graph(), partitioner=f"{__name__}:{attribute}", clients=2, seed=5)


def test_clients_without_nodes_are_counted() -> None:
    with pytest.raises(PluginError, match="clients 1, 2, 3, 4, 5 and 4 more of 10;"):
        assign_nodes(rings(3, 4), partitioner=f"{__name__}:only_first", clients=10, seed=0)


def test_plugin_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(PluginError, match="got str; expected a callable"):
        assign_nodes(small_graph(), partitioner=f"{__name__}:NOT_CALLABLE", clients=2, seed=5)


@pytest.mark.parametrize("clients", [0, 7])
def test_assign_nodes_refuses_a_number_of_clients(clients: int) -> None:
    with pytest.raises(ConfigurationError, match=f"clients: got {clients}; expected 1 to 6"):
        assign_nodes(small_graph(), partitioner="random", clients=clients, seed=0)


def test_assign_nodes_refuses_unknown_partitioner_with_nearest() -> None:
    with pytest.raises(ConfigurationError, match="got 'lovain'; did you mean 'louvain'"):
        assign_nodes(small_graph(), partitioner="lovain", clients=2, seed=0)
    with pytest.raises(ConfigurationError, match="got '@'; expected one of random, metis"):
        assign_nodes(small_graph(), partitioner="@", clients=2, seed=0)


def test_metis_keeps_rings_whole() -> None:
    graph = rings(4, 10)
    found = assign_nodes(graph, partitioner="metis", clients=4, seed=0)
    ends = found[graph.edge_list()]
    assert np.count_nonzero(ends[0] != ends[1]) <= 6
    assert np.bincount(found).max() <= 11


def test_metis_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(ConfigurationError, match=r"pip install pymetis"):
        assign_nodes(small_graph(), partitioner="metis", clients=2, seed=0)


def test_louvain_leaves_the_shared_random_generator_alone() -> None:
    random.seed(11)
    expected = random.random()
    random.seed(11)
    assign_nodes(rings(4, 10), partitioner="louvain", clients=3, seed=0)
    assert random.random() == expected


def test_louvain_keeps_communities_whole_where_they_fit() -> None:
    graph = rings(6, 8)
    found = assign_nodes(graph, partitioner="louvain", clients=3, seed=0)
    ends = found[graph.edge_list()]
    assert np.count_nonzero(ends[0] != ends[1]) <= 5
    assert np.bincount(found).tolist() == [16, 16, 16]


def test_louvain_chops_a_community_that_is_too_large() -> None:
    nodes = 12  # a clique is one community
    edges = np.array([(u, v) for u in range(nodes) for v in range(u)]).T
    features = np.ones((nodes, 1), dtype=np.float32)
    graph = Graph.from_edges(
        edges, name="clique", features=features, labels=np.zeros(nodes, dtype=int)
    )
    for clients, sizes in ((1, [12]), (5, [2, 2, 2, 3, 3]), (12, [1] * 12)):
        found = assign_nodes(graph, partitioner="louvain", clients=clients, seed=0)
        assert sorted(np.bincount(found).tolist()) == sizes


@pytest.mark.parametrize(("count", "size", "clients"), [(3, 50, 2), (7, 30, 4), (2, 90, 7)])
def test_louvain_gives_no_client_much_more_than_its_share(
    count: int, size: int, clients: int
) -> None:
    found = assign_nodes(rings(count, size), partitioner="louvain", clients=clients, seed=1)
    share = count * size / clients
    assert np.bincount(found).max() <= 1.05 * share + 1
