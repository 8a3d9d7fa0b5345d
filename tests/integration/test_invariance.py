"""Many partitions train the weights of one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.data import cora_dir
from tests.support.runs import largest_difference, result_of, train

TOLERANCE = 1e-9


@pytest.mark.parametrize("model", ["gcn", "sage", "gat", "gin", "sage-pool"])
def test_weights_do_not_depend_on_the_partition(tmp_path: Path, model: str) -> None:
    keys = {
        "dataset": "cora",
        "data_dir": cora_dir(),
        "model": model,
        "hidden": 32,
        "rounds": 6,
        "dropout": 0.3,
        "dtype": "float64",
    }
    whole = train(tmp_path / "whole", clients=1, **keys)
    accuracy = result_of(whole)["test_accuracy"]
    for partitioner, clients in (("random", 5), ("metis", 2), ("louvain", 5)):
        run = train(tmp_path / partitioner, clients=clients, partitioner=partitioner, **keys)
        assert largest_difference(whole, run) < TOLERANCE, (partitioner, clients)
        assert result_of(run)["test_accuracy"] == accuracy


@pytest.mark.parametrize("model", ["gcn", "sage", "gat", "gin", "sage-pool"])
def test_one_node_per_client_gives_the_weights_of_one_client(tmp_path: Path, model: str) -> None:
    nodes = _small_graph(tmp_path / "small.npz")
    keys = {
        "dataset": "small",
        "data_dir": tmp_path,
        "model": model,
        "layers": 3,
        "hidden": 16,
        "rounds": 3,
        "dtype": "float64",
        "split": "random:0.4/0.3/0.3",
    }
    whole = train(tmp_path / "whole", clients=1, **keys)
    single = train(tmp_path / "single", clients=nodes, partitioner="one-node", **keys)
    assert largest_difference(whole, single) < TOLERANCE


def test_weights_follow_the_assignment_file_and_the_seed(tmp_path: Path) -> None:
    nodes = _small_graph(tmp_path / "small.npz")
    assignment = tmp_path / "owners.txt"
    assignment.write_text("\n".join(str(node % 3) for node in range(nodes)))
    keys = {
        "dataset": "small",
        "data_dir": tmp_path,
        "hidden": 8,
        "rounds": 4,
        "dtype": "float64",
        "split": "random:0.4/0.3/0.3",
    }
    whole = train(tmp_path / "whole", clients=1, **keys)
    run = train(tmp_path / "filed", clients=3, partitioner=f"file:{assignment}", **keys)
    assert largest_difference(whole, run) < TOLERANCE
    other_seed = train(tmp_path / "other", clients=1, seed=1, **keys)
    assert largest_difference(whole, other_seed) > 0.01


def _small_graph(path: Path, nodes: int = 40) -> int:
    """Write a graph with isolated nodes, unlabelled nodes and dense features."""
    rng = np.random.default_rng(0)
    upper = np.triu(rng.random((nodes, nodes)) < 0.1, k=1)
    upper[:2] = upper[:, :2] = False
    labels = rng.integers(0, 3, nodes)
    labels[5] = -1
    np.savez(
        path,
        edge_index=np.array(np.nonzero(upper), dtype=np.int32),
        x=rng.normal(size=(nodes, 6)).astype(np.float32),
        y=labels.astype(np.int16),
    )
    return nodes
