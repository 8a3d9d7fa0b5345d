"""Parts of nodes without labels: cut, made locally, predicted; never trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from retexo_fl.client.preparation import open_parts
from retexo_fl.graph import GraphPartition
from retexo_fl.graph.parts.peers import peers_of
from tests.support.cli import CommandLine
from tests.support.predictions import SMALL, cut, read_csv, summary_of, write_small
from tests.support.runs import train
from tests.support.tables import export_part


@pytest.fixture
def retexo(retexo: CommandLine) -> CommandLine:
    write_small(Path("small.npz"))
    return retexo


def write_tables(part: GraphPartition, folder: Path) -> None:
    """Write the only part of a graph as two tables without a column of labels."""
    features = np.asarray(part.features)
    names = [key.decode() for key in part.node_keys.tolist()]
    head = ",".join(("key", *(f"x{column}" for column in range(features.shape[1]))))
    rows = [
        ",".join((key, *map(repr, map(float, row))))
        for key, row in zip(names, features, strict=True)
    ]
    (folder / "nodes.csv").write_text("\n".join([head, *rows]) + "\n")
    ends = [
        (names[node], names[other])
        for node in range(part.num_inner)
        for other in part.indices[part.indptr[node] : part.indptr[node + 1]].tolist()
        if node < other
    ]
    lines = [f"{one},{two}" for one, two in ends]
    (folder / "edges.csv").write_text("\n".join(["source,target", *lines]) + "\n")


def test_parts_without_labels_are_predicted_as_those_with_labels(
    tmp_path: Path, retexo: CommandLine
) -> None:
    keys = {**SMALL, "data_dir": tmp_path}
    whole = cut(tmp_path / "whole", **keys, clients=1)
    labelled = cut(tmp_path / "labelled", **keys, clients=2)
    run = train(tmp_path / "run", **keys, clients=2, rounds=3, hidden=8)
    write_tables(open_parts(whole)[0], tmp_path)
    tables = ("--nodes", "nodes.csv", "--edges", "edges.csv", "--clients", "2")
    retexo.done("partition", "make", *tables, "--unlabelled", "3", "--out", "new")
    parts = open_parts(tmp_path / "new")
    assert all((part.labels == -1).all() and part.num_classes == 3 for part in parts)
    retexo.done("partition", "check", "new/part-0", "new/part-1")
    told = retexo.done("predict", run, "--partitions", "new", "--quiet")
    assert "test accuracy   no labelled test nodes\n" in told
    assert "40 nodes of 2 clients" in told
    # Their split keeps train nodes apart.
    assert "also any that trained" not in retexo.done(
        "predict", run, "--partitions", labelled, "--quiet"
    )
    found, expected = read_csv(tmp_path / "new"), read_csv(labelled)
    assert found.keys == expected.keys
    assert np.abs(found.probabilities - expected.probabilities).max() < 1e-6
    assert summary_of(tmp_path / "new")["labelled"]["test"] == {"nodes": 0, "right": 0}
    assert "no part has a train node" in retexo.refused("run", "--partitions", "new")


@pytest.mark.parametrize(
    ("task", "outputs", "form"),
    [("classes", 3, "i8"), ("multi-label", 4, "i1"), ("regression", 1, "f8")],
)
def test_a_client_makes_its_own_part_without_labels(
    tmp_path: Path, retexo: CommandLine, task: str, outputs: int, form: str
) -> None:
    retexo.done(
        *("partition", "make", "--dataset", "small", "--data-dir", tmp_path, "--clients", "2"),
        *("--task", task, "--unlabelled", str(outputs), "--out", "new"),
    )
    parts = open_parts(tmp_path / "new")
    peers = peers_of(parts)
    assert (peers.labels.name, peers.num_classes) == (task, outputs)
    for client, part in enumerate(parts):
        assert part.labels.dtype == np.dtype(form)
        files = export_part(part, tmp_path / f"tables-{client}", "csv", clients=peers.clients)
        retexo.done(
            *("partition", "local", *files.options(), "--unlabelled"),
            *("--peers", "new/peers.toml", "--name", peers.clients[client], "--out", "own"),
        )
    own = open_parts(tmp_path / "own")
    for one, other in zip(own, parts, strict=True):
        np.testing.assert_array_equal(one.labels, other.labels)
        np.testing.assert_array_equal(one.node_keys, other.node_keys)
        assert not one.test_mask.any()


def test_how_many_outputs_a_model_has_is_checked(tmp_path: Path, retexo: CommandLine) -> None:
    make = ("partition", "make", "--dataset", "small", "--data-dir", tmp_path, "--clients", "2")
    told = retexo.refused(*make, "--task", "regression", "--unlabelled", "2", "--out", "new")
    assert told == "unlabelled: got 2; expected 1 with task regression"
    assert "unlabelled" in retexo.refused(*make, "--unlabelled", "0", "--out", "new")
    retexo.done(*make, "--split", SMALL["split"], "--out", "labelled")
    retexo.done(*make, "--unlabelled", "5", "--out", "new")
    run = train(tmp_path / "run", **SMALL, data_dir=tmp_path, clients=2, rounds=1, hidden=4)
    told = retexo.refused("predict", run, "--partitions", "new")
    assert "the parts have 5 classes; expected 3" in told
