"""Graphs whose nodes have no features, from every source: what the edges say stands for them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from retexo_fl.client.preparation import load_parts, make_parts
from retexo_fl.config import RunConfig
from retexo_fl.errors import DatasetError
from retexo_fl.graph import open_partition, write_partitions
from retexo_fl.graph.parts.peers import peers_of
from retexo_fl.training.columns import with_structure
from tests.support.cli import CommandLine

with warnings.catch_warnings():
    # It compiles parts of itself by a function that torch calls outdated.
    warnings.simplefilter("ignore")
    from torch_geometric.data import Data

#: A ring with a chord, of two classes.
NODES = 8
RING = [(node, (node + 1) % NODES) for node in range(NODES)]
EDGES = np.array([*RING, (0, 4)]).T
LABELS = np.arange(NODES) % 2
KEYS: dict[str, Any] = {"split": "random:0.5/0.25/0.25", "clients": 2, "seed": 3}


def as_npz(folder: Path, **more: Any) -> dict[str, Any]:
    np.savez(folder / "ring.npz", edge_index=EDGES, y=LABELS, **more)
    return {"dataset": "ring", "data_dir": str(folder)}


def as_tables(folder: Path, head: str = "key,label", more: str = "") -> dict[str, Any]:
    rows = [f"{node},{label}{more}" for node, label in enumerate(LABELS)]
    (folder / "nodes.csv").write_text("\n".join([head, *rows]))
    edges = [f"{one},{other}" for one, other in EDGES.T]
    (folder / "edges.csv").write_text("\n".join(["source,target", *edges]))
    return {"nodes": str(folder / "nodes.csv"), "edges": str(folder / "edges.csv")}


def as_networkx() -> nx.Graph:
    graph = nx.Graph()
    graph.add_nodes_from((node, {"y": int(label)}) for node, label in enumerate(LABELS))
    graph.add_edges_from(EDGES.T.tolist())
    return graph


def as_pyg() -> Data:
    both = np.concatenate([EDGES, EDGES[::-1]], axis=1)
    return Data(edge_index=torch.from_numpy(both), y=torch.from_numpy(LABELS))


def as_matrix() -> dict[str, Any]:
    both = np.concatenate([EDGES, EDGES[::-1]], axis=1)
    adjacency = csr_array((np.ones(both.shape[1]), tuple(both)), shape=(NODES, NODES))
    return {"adj": adjacency, "y": LABELS}


def test_all_sources_give_the_same_parts(tmp_path: Path) -> None:
    parts = [
        make_parts(RunConfig(**as_npz(tmp_path), **KEYS)),
        make_parts(RunConfig(**as_tables(tmp_path), **KEYS)),
        make_parts(
            RunConfig(**as_tables(tmp_path, "key,label,age", ",7"), features="none", **KEYS)
        ),
        make_parts(RunConfig(**as_npz(tmp_path, x=np.ones((NODES, 3))), features="none", **KEYS)),
        *(
            make_parts(RunConfig(**KEYS), graph=graph)
            for graph in (as_networkx(), as_pyg(), as_matrix())
        ),
    ]
    for found in parts[1:]:
        for one, other in zip(parts[0], found, strict=True):
            assert other.num_features == 0
            assert other.node_keys.tolist() == one.node_keys.tolist()
            assert other.indices.tolist() == one.indices.tolist()


def test_degrees_stand_for_features(tmp_path: Path) -> None:
    parts = load_parts(RunConfig(**as_npz(tmp_path), **KEYS, structure="degrees"))
    for part in parts:
        assert part.is_structural
        expected = np.log1p(np.diff(part.indptr)).astype(np.float32)
        assert part.features[:, 0].tolist() == expected.tolist()


def test_parts_on_disk_have_none(tmp_path: Path) -> None:
    parts = load_parts(RunConfig(**as_npz(tmp_path), **KEYS, structure="degrees"))
    write_partitions(parts, tmp_path / "parts")
    stored = open_partition(tmp_path / "parts" / "part-0")
    assert stored.num_features == 0
    assert peers_of([stored]).num_features == 0
    again = with_structure(stored, RunConfig(**KEYS, structure="degrees"))
    assert again.features.tolist() == parts[0].features.tolist()


def test_directions_have_a_degree_each(tmp_path: Path) -> None:
    keys = {**KEYS, "edges_are": "directed", "model": "dir-sage", "structure": "degrees"}
    for part in load_parts(RunConfig(**as_npz(tmp_path), **keys)):
        assert part.features.shape == (part.num_inner, 2)


def test_a_run_and_its_predictions(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    retexo = CommandLine(capsys)
    graph = ("--dataset", "ring", "--data-dir", tmp_path)
    as_npz(tmp_path, x=np.ones((NODES, 1)))
    keys = ("--split", KEYS["split"], "--clients", "2", "--rounds", "2", "--model", "gcn")
    ended = retexo(
        "run", *graph, *keys, "--features", "none", "--structure", "degrees", "--out", "run"
    )
    assert ended.code == 0
    assert "nodes have no features: their degrees stand for them" in ended.err
    refused = retexo("predict", "run", *graph, "--out", "found")
    assert refused.code == 0, refused.err
    parts = tmp_path / "parts"
    retexo.done("partition", "make", *graph, "--clients", "2", *keys[:2], "--out", parts)
    told = retexo.refused("predict", "run", "--partitions", parts, "--out", "other")
    assert "nodes have features; expected none (features none leaves them out)" in told


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"edge_index": EDGES}, "y: missing; expected y, or task links; there is: edge_index"),
        ({"y": LABELS}, "x: missing; expected x; there is: y"),
    ],
)
def test_too_little_is_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DatasetError) as caught:
        make_parts(RunConfig(**KEYS), graph=values)
    assert sentence in str(caught.value)
