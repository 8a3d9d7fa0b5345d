"""What edges weigh, carry and where they lead: read, counted, and refused where it does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.client.preparation import make_parts
from retexo_fl.errors import PartitionError, RetexoError
from retexo_fl.graph import BoundaryPlan
from retexo_fl.methods.forecasts import FORECASTS
from retexo_fl.simulation.inline_engine import run_inline
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.training.volume import sampled_vectors
from tests.support.cli import CommandLine
from tests.support.played_devices import play_devices
from tests.support.predictions import cut, read_npz
from tests.support.runs import (
    configured,
    largest_difference,
    ledger_of,
    model_bytes,
    size_of,
    train,
)
from tests.support.valued_graphs import VALUED, write_valued
from tests.support.workers import train_in_workers

TOLERANCE = 1e-9
KEYS: dict[str, Any] = {
    **VALUED,
    **{"hidden": 12, "heads": 3, "layers": 2, "rounds": 3, "dropout": 0.3, "dtype": "float64"},
}
#: Models with the graphs that they are trained on: what :func:`write_valued` is told.
WEIGHTED: dict[str, Any] = {"weighted": True}
CARRYING: dict[str, Any] = {"weighted": True, "carrying": 2}
DIRECTED: dict[str, Any] = {"weighted": True, "carrying": 2, "directed": True}
MODELS = (
    *(("gcn", WEIGHTED), ("sage", WEIGHTED), ("gat", WEIGHTED), ("gin", WEIGHTED)),
    *(("gat", CARRYING), ("gine", CARRYING), ("gine", DIRECTED)),
    *(("dir-gcn", DIRECTED), ("dir-sage", DIRECTED), ("dir-gat", DIRECTED), ("dir-gin", DIRECTED)),
)
EACH = pytest.mark.parametrize(("model", "graph"), MODELS)
#: One of each kind of graph: how vectors and messages take what edges have is no layer's say.
OF_EACH_GRAPH = pytest.mark.parametrize(
    ("model", "graph"), [("gcn", WEIGHTED), ("gine", CARRYING), ("dir-gat", DIRECTED)]
)


@pytest.fixture
def retexo(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


def keys_of(folder: Path, model: str, graph: dict[str, Any]) -> dict[str, Any]:
    """Write a graph; return the keys of a training on it."""
    edges = {"edges_are": "directed"} if graph.get("directed") else {}
    return {**KEYS, **edges, "data_dir": write_valued(folder, **graph), "model": model}


@EACH
@pytest.mark.each_choice
def test_what_edges_have_is_read(tmp_path: Path, model: str, graph: dict[str, Any]) -> None:
    keys = keys_of(tmp_path, model, graph)
    run = train(tmp_path / "run", clients=2, **keys)
    path = tmp_path / "valued.npz"
    with np.load(path) as arrays:
        given = dict(arrays)
    changes: list[dict[str, np.ndarray]] = [{"edge_weight": given["edge_weight"][::-1]}]
    if graph.get("carrying"):
        changes.append({"edge_attr": given["edge_attr"][::-1]})
    if graph.get("directed") and model != "gine":
        changes.append({"edge_index": given["edge_index"][::-1]})
    for at, change in enumerate(changes):
        np.savez(path, **(given | change))
        other = train(tmp_path / f"other-{at}", clients=2, **keys)
        is_read = "edge_attr" not in change or model in {"gat", "gine", "dir-gat"}
        assert (largest_difference(run, other) > 1e-4) == is_read, change.keys()


@pytest.mark.devices
@EACH
@pytest.mark.each_choice
def test_samplers_with_all_neighbours_train_the_weights_of_none(
    tmp_path: Path, model: str, graph: dict[str, Any]
) -> None:
    keys = keys_of(tmp_path, model, graph)
    keys |= {"algorithm": "central", "clients": 1, "cache_share": 1.0, "batch_nodes": 48}
    whole = train(tmp_path / "whole", **keys)
    # All train nodes in one mini-batch, and more neighbours than there are.
    other = ("neighbour", "shadow", "gns")[MODELS.index((model, graph)) % 3]
    for sampler in ("full", other):
        hops = "48/48/48" if sampler == "shadow" else "48/48"
        run = train(tmp_path / sampler, sampler=sampler, fanouts=hops, **keys)
        assert largest_difference(whole, run) < (1e-4 if sampler == "gns" else 1e-7), sampler


@OF_EACH_GRAPH
def test_sampling_every_boundary_node_is_standard_training(
    tmp_path: Path, model: str, graph: dict[str, Any]
) -> None:
    keys = {**keys_of(tmp_path, model, graph), "clients": 3}
    every = train(tmp_path / "every", algorithm="bns", boundary_rate=1.0, **keys)
    standard = train(tmp_path / "standard", algorithm="standard", **keys)
    assert largest_difference(every, standard) == 0
    fewer = train(tmp_path / "fewer", algorithm="bns", boundary_rate=0.2, **keys)
    assert largest_difference(fewer, standard) > 1e-4


@pytest.mark.devices
@pytest.mark.parametrize(("model", "graph"), [("dir-gat", DIRECTED)])
def test_devices_train_the_weights_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, graph: dict[str, Any]
) -> None:
    play_devices(monkeypatch)
    keys = {**keys_of(tmp_path, model, graph), "clients": 2}
    one = train(tmp_path / "one", **keys)
    devices = train(tmp_path / "devices", devices="cpu:2", **keys)
    assert largest_difference(one, devices) < TOLERANCE


@pytest.mark.parametrize(
    ("model", "graph"), [("gcn", WEIGHTED), ("gine", CARRYING), ("dir-gcn", DIRECTED)]
)
@pytest.mark.parametrize("algorithm", ["lazy", "standard", "bns"])
@pytest.mark.each_choice
def test_bytes_are_those_of_the_closed_form(
    tmp_path: Path, model: str, graph: dict[str, Any], algorithm: str
) -> None:
    keys = {**keys_of(tmp_path, model, graph), "clients": 3, "algorithm": algorithm}
    run = train(tmp_path / "run", **keys)
    config = configured(tmp_path / "planned", **keys)
    parts = make_parts(config)
    plans = [BoundaryPlan.from_partition(part, "rows") for part in parts]
    pairs = [peer.send.count for plan in plans for peer in plan.peers]
    size = replace(
        size_of(config, parts), sampled_vectors=sampled_vectors(pairs, config.boundary_rate)
    )
    predicted = FORECASTS[algorithm].volume(ModelShape.of_part(config, parts[0]), size)
    assert predicted is not None
    ledger = ledger_of(run)
    assert ledger.sum(kind="boundary").raw == predicted.boundary
    assert ledger.sum(kind="updates_up").raw == predicted.updates_up
    assert ledger.sum(kind="weights_down").raw == predicted.weights_down


@OF_EACH_GRAPH
def test_predictions_do_not_depend_on_the_partition(
    tmp_path: Path, retexo: CommandLine, model: str, graph: dict[str, Any]
) -> None:
    keys = keys_of(tmp_path, model, graph)
    run = train(tmp_path / "run", clients=1, **keys)
    found = []
    for clients, partitioner in ((1, "random"), (16, "random")):
        parts = cut(tmp_path / f"{clients}", clients=clients, partitioner=partitioner, **keys)
        retexo.done("predict", run, "--partitions", parts, "--format", "npz")
        found.append(read_npz(parts).probabilities)
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], atol=1e-6)


def test_a_model_refuses_parts_whose_edges_do_not_fit(tmp_path: Path, retexo: CommandLine) -> None:
    keys = keys_of(tmp_path, "gine", CARRYING)
    run = train(tmp_path / "run", clients=1, **keys)
    write_valued(tmp_path, carrying=3)
    parts = cut(tmp_path / "parts", clients=2, **keys)
    told = retexo.refused("predict", run, "--partitions", parts)
    assert "have 3 attributes of edges; expected 2, as the model" in told


@pytest.mark.parametrize(
    ("model", "graph", "keys", "told"),
    [
        ("sage", DIRECTED, (), "edges have a direction, which model sage does not take; expected"),
        ("dir-sage", WEIGHTED, (), "edges have no direction, which model dir-sage does not take"),
        ("gine", WEIGHTED, (), "edges have no attributes, which model gine needs; expected colum"),
        ("dir-gcn", DIRECTED, ("--codec", "fixed"), "codec: fixed does not go with model dir-gcn"),
        ("dir-gcn", DIRECTED, ("--row-bits", "8"), "row-bits: 8 does not go with model dir-gcn"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(
    tmp_path: Path,
    retexo: CommandLine,
    model: str,
    graph: dict[str, Any],
    keys: tuple[str, ...],
    told: str,
) -> None:
    write_valued(tmp_path, **graph)
    edges = ("--edges-are", "directed") if graph.get("directed") else ()
    data = ("--dataset", "valued", "--data-dir", tmp_path, "--split", "random:0.4/0.3/0.3")
    out = ("--out", tmp_path / "run")
    assert told in retexo.refused("run", *data, *edges, "--model", model, *keys, *out)
    assert not (tmp_path / "run").exists()


def test_negative_weights_and_nan_end_before_anything_is_written(
    tmp_path: Path, retexo: CommandLine
) -> None:
    write_valued(tmp_path)
    with np.load(tmp_path / "valued.npz") as arrays:
        given = dict(arrays)
    data = ("--dataset", "valued", "--data-dir", tmp_path, "--split", "random:0.4/0.3/0.3")
    for value, told in ((-1.0, "weighs -1; expected at least 0 with model gcn"), (np.nan, "NaN")):
        given["edge_weight"][3] = value
        np.savez(tmp_path / "valued.npz", **given)
        out = ("--out", tmp_path / "run")
        assert told in retexo.refused("run", *data, "--model", "gcn", *out)
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("model", "graph"), [("gat", CARRYING), ("dir-gcn", DIRECTED)])
def test_workers_of_flowers_simulation_leave_the_same_model(
    tmp_path: Path, model: str, graph: dict[str, Any]
) -> None:
    keys = {**keys_of(tmp_path, model, graph), "clients": 2}
    one = train(tmp_path / "inline", **keys)
    assert model_bytes(train_in_workers(tmp_path / "workers", **keys)) == model_bytes(one)


def test_clients_whose_edges_carry_unequally_much_are_refused_by_name(tmp_path: Path) -> None:
    config = configured(tmp_path / "run", **keys_of(tmp_path, "gat", CARRYING), clients=3)
    parts = make_parts(config)
    values = parts[1].edge_values
    assert values.attributes is not None
    wider = replace(values, attributes=np.tile(values.attributes, (1, 2)))
    parts[1] = replace(parts[1], edge_values=wider)
    with pytest.raises(PartitionError, match="edge_features differs .*client 1: 4"):
        run_inline(config, parts)


def test_clients_that_weigh_an_edge_differently_do_not_train(tmp_path: Path) -> None:
    config = configured(tmp_path / "run", **keys_of(tmp_path, "gcn", WEIGHTED), clients=2)
    parts = make_parts(config)
    values = parts[1].edge_values
    assert values.weights is not None
    crossing = parts[1].indices >= parts[1].num_inner
    other = replace(values, weights=values.weights * np.where(crossing, 2, 1))
    parts[1] = replace(parts[1], edge_values=other)
    with pytest.raises(RetexoError, match="edges"):
        run_inline(config, parts)


@pytest.mark.parametrize(
    "sampler",
    ["none", *(pytest.param(it, marks=pytest.mark.devices) for it in ("neighbour", "shadow"))],
)
def test_weights_of_one_are_no_weights(tmp_path: Path, sampler: str) -> None:
    keys: dict[str, Any] = {**KEYS, "model": "gcn", "clients": 3}
    if sampler != "none":
        # Few of the neighbours: what a node is normalised with is the sampler's say.
        keys |= {"algorithm": "drop", "sampler": sampler, "fanouts": "2/1", "batch_nodes": 8}
    plain = train(tmp_path / "a", data_dir=write_valued(tmp_path, weighted=False), **keys)
    with np.load(tmp_path / "valued.npz") as arrays:
        ones = dict(arrays) | {"edge_weight": np.ones(arrays["edge_index"].shape[1])}
    np.savez(tmp_path / "valued.npz", **ones)
    assert largest_difference(plain, train(tmp_path / "b", data_dir=tmp_path, **keys)) < 1e-12
