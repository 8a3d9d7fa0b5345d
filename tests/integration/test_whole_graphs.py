"""The same graph as a data set, tables, PyG and NetworkX gives the same parts, byte for byte."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from retexo_fl.client.preparation import make_parts
from retexo_fl.config import RunConfig
from retexo_fl.graph import Graph, from_networkx, from_pyg, load_dataset, write_partitions
from tests.support.cli import TINY, CommandLine
from tests.support.data import cora_dir, data_dir
from tests.support.runs import configured, model_bytes
from tests.support.tables import FORMATS, sparse_text, write_table

with warnings.catch_warnings():
    # It compiles parts of itself by a function that torch calls outdated.
    warnings.simplefilter("ignore")
    from torch_geometric.data import Data

CLIENTS = 4
#: An attribute that Cora does not have: three sites of unequal size, named as text and as numbers.
SITES = np.array(["north", "9", "10"])
PARTITIONERS = ["random", "metis", "attribute:site"]


def cora(*, dense: bool) -> Graph:
    """Return a graph of Cora's shape, as it is or with a hundred features, dense."""
    graph = load_dataset("cora", data_dir=cora_dir(with_masks=True))
    features = graph.features
    if dense and isinstance(features, csr_array):
        features = features[:, :100].toarray()
    return Graph.from_edges(
        graph.edge_list(),
        name="cora",
        features=features,
        labels=graph.labels,
        split=graph.published_split,
        attributes={"site": sites(graph.num_nodes)},
    )


def sites(num_nodes: int) -> np.ndarray:
    return SITES[np.arange(num_nodes) % 7 % 3]


# ---- the graph as somebody else keeps it; each function writes what its source needs


def as_npz(graph: Graph, folder: Path) -> dict[str, Any]:
    """Write a data set."""
    split = graph.published_split
    assert split is not None
    arrays = {
        **feature_arrays(graph),
        **split.named(),
        "edge_index": graph.edge_list(),
        "y": graph.labels,
        "site": sites(graph.num_nodes),
    }
    write_table(folder / "cora.npz", arrays)
    return {"dataset": "cora", "data_dir": folder}


def as_tables(ending: str) -> Callable[[Graph, Path], dict[str, Any]]:
    """Return a function that writes tables, whose rows are in the order of the nodes."""

    def write(graph: Graph, folder: Path) -> dict[str, Any]:
        keys, split = graph.node_keys, graph.published_split
        assert split is not None
        words = np.select([split.train, split.val, split.test], ["train", "val", "test"], "")
        columns = {"key": keys, "label": graph.labels, "split": words}
        columns["site"] = sites(graph.num_nodes)
        nodes = write_table(folder / f"nodes.{ending}", {**columns, **columns_of(graph, ending)})
        low, high = keys[graph.edge_list()]
        edges = write_table(folder / f"edges.{ending}", {"source": high, "target": low})
        return {"nodes": nodes, "edges": edges}

    return write


def as_pyg() -> Any:
    """Return Cora as PyG has it; a user's function, named by module:attribute."""
    return pyg_of(cora(dense=True))


def as_sparse_pyg() -> Any:
    """Return Cora as PyG has it, with sparse features."""
    return pyg_of(cora(dense=False))


def as_networkx() -> Any:
    """Return Cora as NetworkX has it."""
    graph = cora(dense=True)
    found = nx.Graph()
    split = graph.published_split
    assert split is not None
    uses = {name: mask.tolist() for name, mask in split.named().items()}
    for node in range(graph.num_nodes):
        found.add_node(
            node,
            x=graph.features[node],
            y=int(graph.labels[node]),
            site=str(sites(graph.num_nodes)[node]),
            **{name: mask[node] for name, mask in uses.items()},
        )
    found.add_edges_from(graph.edge_list().T.tolist())
    return found


def named(function: Callable[[], Any]) -> Callable[[Graph, Path], dict[str, Any]]:
    """Return how a configuration names a function of this module."""
    return lambda _graph, _folder: {"dataset": f"{__name__}:{function.__name__}"}


def feature_arrays(graph: Graph) -> dict[str, np.ndarray]:
    if isinstance(graph.features, np.ndarray):
        return {"x": graph.features}
    parts = {f"x_{part}": getattr(graph.features, part) for part in ("indptr", "indices", "data")}
    return {**parts, "x_shape": np.array(graph.features.shape)}


def columns_of(graph: Graph, ending: str) -> dict[str, Any]:
    """Return the features of a table of nodes."""
    features = graph.features
    if ending == "npz":
        return feature_arrays(graph)
    if isinstance(features, csr_array):
        return {"x": sparse_text(features)}
    if ending == "parquet":
        return {"x": features}
    return {f"x{at}": features[:, at] for at in range(features.shape[1])}


def pyg_of(graph: Graph) -> Any:
    one = torch.tensor(graph.edge_list())
    split = graph.published_split
    assert split is not None
    features = graph.features
    if isinstance(features, np.ndarray):
        x = torch.tensor(features)
    else:
        coo = features.tocoo()
        places = torch.tensor(np.stack((coo.row, coo.col)))
        x = torch.sparse_coo_tensor(
            places, torch.tensor(coo.data), coo.shape, check_invariants=True
        )
    return Data(
        edge_index=torch.cat((one, one.flip(0)), dim=1),
        x=x,
        y=torch.tensor(graph.labels),
        site=sites(graph.num_nodes).tolist(),
        **{name: torch.tensor(mask) for name, mask in split.named().items()},
    )


DENSE = {
    "csv": as_tables("csv"),
    "parquet": as_tables("parquet"),
    "npz tables": as_tables("npz"),
    "PyG": named(as_pyg),
    "NetworkX": named(as_networkx),
}
SPARSE = {
    **{f"{ending} with sparse text": as_tables(ending) for ending in FORMATS if ending != "npz"},
    "npz tables": as_tables("npz"),
    "PyG": named(as_sparse_pyg),
}


def parts_bytes(config: RunConfig, folder: Path) -> dict[str, bytes]:
    """Make parts as a run does and return their files."""
    write_partitions(make_parts(config), folder)
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.*")}


#: What is unpacked, or has another delimiter, is read as the rest of its kind.
READ_ALIKE = {f"{ending} with sparse text" for ending in ("csv.gz", "csv.zip", "tsv")}
assert SPARSE.keys() > READ_ALIKE


@pytest.mark.parametrize(
    ("dense", "source"),
    [
        *((True, name) for name in DENSE),
        *((False, name) for name in SPARSE if name not in READ_ALIKE),
        *(pytest.param(False, name, marks=pytest.mark.slow) for name in sorted(READ_ALIKE)),
    ],
)
@pytest.mark.each_choice
def test_parts_are_the_same_bytes(tmp_path: Path, dense: bool, source: str) -> None:
    graph = cora(dense=dense)
    given = (DENSE if dense else SPARSE)[source](graph, tmp_path)
    reference = as_npz(graph, tmp_path)
    for number, partitioner in enumerate(PARTITIONERS):
        clients = len(SITES) if ":" in partitioner else CLIENTS
        keys = {"partitioner": partitioner, "split": "published", "clients": clients}
        expected, found = (
            parts_bytes(configured(tmp_path, **keys, **source_keys), tmp_path / f"{name}{number}")
            for name, source_keys in (("expected", reference), ("found", given))
        )
        assert len(expected) > 10 * clients
        assert found == expected


def test_a_run_on_tables_trains_the_model_of_the_data_set(
    retexo: CommandLine, tmp_path: Path
) -> None:
    graph = cora(dense=False)
    as_npz(graph, tmp_path)
    as_tables("csv.gz")(graph, tmp_path)
    cut = ("--partitioner", "attribute:site", *TINY)
    retexo.done("run", "--nodes", "nodes.csv.gz", "--edges", "edges.csv.gz", *cut, "--out", "one")
    retexo.done("run", "--dataset", "cora", "--data-dir", ".", *cut, "--out", "other")
    assert model_bytes(tmp_path / "one") == model_bytes(tmp_path / "other")


def test_converters_and_data_sets_give_the_same_graph() -> None:
    graph = cora(dense=True)
    for found in (from_pyg(as_pyg()), from_networkx(as_networkx())):
        np.testing.assert_array_equal(found.indices, graph.indices)
        np.testing.assert_array_equal(found.features, graph.features)
        np.testing.assert_array_equal(found.node_keys, graph.node_keys)
        assert (found.num_nodes, found.num_edges, found.num_classes) == (2708, 5278, 7)


@pytest.mark.real_graphs
def test_the_schools_of_a_real_network_are_its_clients(retexo: CommandLine, tmp_path: Path) -> None:
    """The attribute is read alone to count the clients: the whole graph would take a minute."""
    from retexo_fl.api.settling import Asked, settled

    values = {"data-dir": str(data_dir()), "dataset": "fb100_union8"}
    config = settled(Asked(values={**values, "partitioner": "attribute:school"}))
    assert config.clients == 8
