"""Graphs of a user's own function; the functions of this module are such."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest

from retexo_fl.errors import DatasetError, PluginError
from retexo_fl.graph import Graph, load_dataset
from retexo_fl.graph.sources.datasets import count_dataset_values
from tests.unit.graph.graphs import small_graph
from tests.unit.graph.sources.test_from_networkx import small_networkx, with_split
from tests.unit.graph.sources.test_from_pyg import assert_same, masks, small_data

SITES = [2, 10, 2, 2, 9, 2]


def ours() -> Graph:
    return small_graph(node_keys=None, attributes={"site": np.array(SITES)})


def of_pyg() -> Any:
    return small_data(site=SITES, **masks())


def of_networkx() -> Any:
    graph = with_split(small_networkx())
    nx.set_node_attributes(graph, dict(zip(graph.nodes, SITES, strict=True)), "site")
    return nx.convert_node_labels_to_integers(graph)


def a_list() -> list[int]:
    """Break the contract: no graph."""
    return [1]


def with_an_argument(path: str) -> Graph:
    """Break the contract: called with nothing."""
    del path
    return ours()


@pytest.mark.parametrize("maker", ["ours", "of_pyg", "of_networkx"])
def test_a_function_may_return_any_of_three_kinds_of_graph(maker: str) -> None:
    name = f"{__name__}:{maker}"
    graph = load_dataset(name, data_dir=None, attributes=("site",))
    assert_same(graph, small_graph(node_keys=None))
    assert graph.attributes["site"].tolist() == [str(site).encode() for site in SITES]
    assert count_dataset_values(name, "site", data_dir=None) == 3
    if maker != "ours":
        assert graph.name == name
    with pytest.raises(DatasetError, match="attribute 'town'"):
        load_dataset(name, data_dir=None, attributes=("town",))


@pytest.mark.parametrize(
    ("maker", "sentence"),
    [
        ("a_list", "returned list; expected a retexo_fl.Graph, a PyG Data or HeteroData"),
        ("with_an_argument", "expected a callable"),
        ("SITES", "got list; expected a callable"),
        ("absent", f"dataset '{__name__}:absent': '{__name__}' has no 'absent'"),
    ],
)
def test_what_is_no_function_or_returns_no_graph_is_refused(maker: str, sentence: str) -> None:
    with pytest.raises(PluginError, match=sentence):
        load_dataset(f"{__name__}:{maker}", data_dir=None)


def test_a_module_that_is_not_there_is_refused() -> None:
    with pytest.raises(PluginError, match="dataset 'no_such_module:x': cannot import"):
        load_dataset("no_such_module:x", data_dir=None)
