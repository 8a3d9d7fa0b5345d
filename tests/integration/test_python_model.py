"""A trained model as a PyTorch module says of a whole graph what `retexo predict` does."""

from __future__ import annotations

import csv
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import retexo_fl
from retexo_fl.errors import DatasetError, PartitionError, PluginError, RunDirectoryError
from retexo_fl.graph import Graph
from retexo_fl.graph.sources.npz_graph import read_npz_graph
from tests.support.cli import CommandLine

with warnings.catch_warnings():
    # PyTorch deprecates what PyG does when it is imported.
    warnings.simplefilter("ignore")
    from torch_geometric.data import Data

NODES = 60


def write_graph(folder: Path, *, task: str = "classes", sparse: bool = False) -> Path:
    """Write a random graph with weights and attributes of edges as ``small.npz``."""
    random = np.random.default_rng(5)
    ends = random.integers(0, NODES, (2, 400))
    ends = np.unique(np.sort(ends[:, ends[0] != ends[1]], axis=0), axis=1)
    labels: Any = random.integers(0, 3, NODES)
    if task == "multi-label":
        labels = random.integers(0, 2, (NODES, 4))
    elif task == "regression":
        labels = random.normal(100.0, 5.0, NODES)
    features = np.asarray(random.normal(size=(NODES, 9)), np.float32)
    if sparse:
        features *= random.random((NODES, 9)) < 0.2
    weights = np.asarray(random.random(ends.shape[1]) + 0.5, np.float32)
    attributes = np.asarray(random.normal(size=(ends.shape[1], 2)), np.float32)
    path = folder / "small.npz"
    arrays = {"edge_index": ends, "x": features, "y": labels}
    np.savez(path, **arrays, edge_weight=weights, edge_attr=attributes)
    return path


def as_data(path: Path) -> Data:
    """Return the graph as PyG has it, every edge from both ends, without labels."""
    arrays = np.load(path)
    ends = torch.from_numpy(arrays["edge_index"])
    return Data(
        x=torch.from_numpy(arrays["x"]),
        edge_index=torch.cat([ends, ends.flip(0)], dim=1),
        edge_weight=torch.from_numpy(np.tile(arrays["edge_weight"], 2)),
        edge_attr=torch.from_numpy(np.tile(arrays["edge_attr"], (2, 1))),
    )


def predicted(folder: Path) -> dict[str, list[float]]:
    """Return the numbers behind each key of all files, without the class."""
    found = {}
    for path in sorted(folder.glob("predictions-*.csv")):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                kept = [v for k, v in row.items() if k not in {"key", "class"}]
                found[row["key"]] = [float(v) for v in kept]
    return found


def check(run: retexo_fl.Run, path: Path, tmp_path: Path) -> None:
    """Compare module and command on a graph, given as a PyG ``Data`` and as ours."""
    graph = read_npz_graph(path)
    model = run.model()
    task: Any = run.config.task
    retexo_fl.partition(graph=graph, task=task, clients=1, out=tmp_path / "whole")
    found = predicted(run.predict(tmp_path / "whole", quiet=True).folder)
    assert len(found) == NODES
    expected = np.array([found[key.decode()] for key in graph.node_keys])
    for handed in (as_data(path), graph):
        outputs = model(handed)
        match run.config.task:
            case "regression":
                shares = outputs
            case "multi-label":
                expected_shape = (NODES, 4)
                assert outputs.shape == expected_shape
                shares = torch.sigmoid(outputs)
                expected = expected[:, -4:]
            case _:
                shares = torch.softmax(outputs, dim=1)
        assert np.abs(shares.numpy() - expected).max() < 1e-5 * max(1.0, np.abs(expected).max())


KEYS: dict[str, Any] = {"clients": 3, "hidden": 8, "rounds": 3, "quiet": True, "dataset": "small"}


@pytest.mark.parametrize(
    "keys",
    [
        {"model": "gcn"},
        {"model": "sage", "basis_rows": "own", "basis": "supervised"},
        {"model": "gcn", "profile": "lean", "basis_rows": "sums"},
        {"model": "gin", "profile": "retexo", "feature_normalisation": "l2"},
        {"model": "gat"},
        {"model": "sage-pool", "layers": 3},
        {"model": "gine"},
        {"model": "pyg:GATv2Conv"},
        {"model": "gcn", "profile": "one-shot"},
        {"model": "sage", "algorithm": "standard"},
        {"model": "gcn", "dtype": "float64"},
        {"model": "sage", "task": "multi-label"},
        {"model": "gcn", "task": "regression"},
    ],
    ids=lambda keys: "-".join(map(str, keys.values())),
)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.each_choice
def test_module_computes_what_is_predicted(
    tmp_path: Path, keys: dict[str, Any], sparse: bool
) -> None:
    path = write_graph(tmp_path, task=keys.get("task", "classes"), sparse=sparse)
    run = retexo_fl.run(data_dir=tmp_path, out=tmp_path / "run", **KEYS, **keys)
    check(run, path, tmp_path)


def test_directed_layers_read_directed_edges(tmp_path: Path) -> None:
    path = write_graph(tmp_path)
    run = retexo_fl.run(
        data_dir=tmp_path, out=tmp_path / "run", **KEYS, model="dir-sage", edges_are="directed"
    )
    data, model = as_data(path), run.model()
    count = data.edge_index.shape[1] // 2
    data.edge_index = data.edge_index[:, :count]
    data.edge_weight, data.edge_attr = data.edge_weight[:count], data.edge_attr[:count]
    out = model(data)
    data.edge_index = data.edge_index.flip(0)
    assert not torch.allclose(out, model(data))


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"link_head": "mlp"},
        pytest.param({"model": "gat"}, marks=pytest.mark.slow),
        pytest.param({"model": "dir-sage", "edges_are": "directed"}, marks=pytest.mark.slow),
        {"model": "dir-gat", "edges_are": "directed", "link_head": "mlp"},
    ],
    ids=str,
)
def test_embeddings_score_links_as_they_are_suggested(tmp_path: Path, keys: dict[str, Any]) -> None:
    path = write_graph(tmp_path)
    run = retexo_fl.run(
        data_dir=tmp_path, out=tmp_path / "run", **KEYS | {"hidden": 16}, task="links", **keys
    )
    parts = tmp_path / "parts"
    directions = {"edges_are": keys.get("edges_are", "undirected")}
    retexo_fl.partition(
        data_dir=tmp_path, dataset="small", task="links", clients=1, out=parts, **directions
    )
    run.predict(parts, quiet=True)
    model, rows = run.model(), (parts / "predictions-0.csv").read_text().splitlines()
    data = as_data(path)
    if "edges_are" in keys:
        count = data.edge_index.shape[1] // 2
        data.edge_index, data.edge_attr = data.edge_index[:, :count], data.edge_attr[:count]
        data.edge_weight = data.edge_weight[:count]
    found = model(data)
    for row in rows[1:]:
        first, second, share = row.split(",")
        score = model.score(found[[int(first)]], found[[int(second)]])
        assert abs(float(torch.sigmoid(score)) - float(share)) < 1e-5
    shares = [float(row.split(",")[2]) for row in rows[1:]]
    assert max(shares) - min(shares) > 1e-3


def test_parameters_are_what_is_computed_with(tmp_path: Path) -> None:
    path = write_graph(tmp_path)
    run = retexo_fl.run(data_dir=tmp_path, out=tmp_path / "run", **KEYS)
    model, data = run.model(), as_data(path)
    before = model(data)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for parameter in model.parameters():
        parameter.mul_(1.5)
    assert not torch.allclose(model(data), before)
    model.load_state_dict(state)
    assert torch.equal(model(data), before)


def test_what_is_no_graph_of_the_model_is_refused(tmp_path: Path) -> None:
    path = write_graph(tmp_path)
    run = retexo_fl.run(data_dir=tmp_path, out=tmp_path / "run", **KEYS)
    model, data = run.model(), as_data(path)
    with pytest.raises(DatasetError, match="got list; expected a retexo_fl"):
        model([1])
    data.x = data.x[:, :5]
    with pytest.raises(PartitionError, match="5 features; expected 9"):
        model(data)
    (run.path / "result.json").unlink()
    with pytest.raises(RunDirectoryError, match="has not finished"):
        retexo_fl.Run.open(run.path).model()


def test_runs_of_others_import_no_plugins(tmp_path: Path) -> None:
    write_graph(tmp_path)
    run = retexo_fl.run(
        data_dir=tmp_path,
        out=tmp_path / "run",
        **KEYS,
        model="retexo_fl.layers.sage:SageLayer",
        profile="retexo",
    )
    assert isinstance(run.model(), torch.nn.Module)
    with pytest.raises(PluginError, match="names plug-ins"):
        retexo_fl.Run.open(run.path).model()
    assert retexo_fl.Run.open(run.path, allow_plugins=True).model()


def test_graphs_and_parts_are_predicted_without_a_folder(
    tmp_path: Path, retexo: CommandLine
) -> None:
    path = write_graph(tmp_path)
    run = retexo_fl.run(data_dir=tmp_path, out=tmp_path / "run", **KEYS)
    graph = read_npz_graph(path)
    folder = retexo_fl.partition(graph=graph, clients=3, out=tmp_path / "parts")
    retexo.done("predict", run.path, "--partitions", folder, "--out", tmp_path / "by-command")
    parts = retexo_fl.open_parts(folder)
    made = run.predict(parts, out=tmp_path / "by-parts", quiet=True)
    assert [file.name for file in made.files] == [f"predictions-{c}.csv" for c in range(3)]
    assert made.summary["nodes"] == NODES
    for file in made.files:
        assert file.read_bytes() == (tmp_path / "by-command" / file.name).read_bytes()
    data = as_data(path)
    data.y = torch.from_numpy(np.load(path)["y"])
    known = run.predict(data, out=tmp_path / "known", quiet=True)
    assert known.summary["labelled"]["test"]["nodes"] == NODES
    unlabelled = replace(graph, labels=np.full(NODES, -1))
    again = run.predict(unlabelled, out=tmp_path / "unknown", quiet=True)
    assert again.summary["labelled"]["test"]["nodes"] == 0
    assert predicted(known.folder) == predicted(again.folder)


@pytest.fixture
def retexo(capfd: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capfd)


def test_graph_type_is_public() -> None:
    assert retexo_fl.Graph is Graph
