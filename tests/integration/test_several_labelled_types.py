"""Typed graphs with labels on several types: one model of all, judged by type, however cut."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import retexo_fl
from retexo_fl.errors import InputError
from retexo_fl.graph import find_partitions, open_partition
from retexo_fl.graph.parts.peers import read_peers
from tests.support.cli import CommandLine
from tests.support.each_choice import by_day
from tests.support.played_devices import play_devices
from tests.support.predictions import cut
from tests.support.runs import (
    Cuts,
    by_turns,
    largest_difference,
    model_bytes,
    result_of,
    stop_after,
    train,
)
from tests.support.typed_graphs import (
    BANK,
    CUSTOMERS,
    DEVICES,
    JUDGED,
    bank,
    bank_arrays,
    bank_networkx,
    export_typed_part,
    judged_bank,
    write_bank,
)
from tests.support.workers import train_in_workers

TOLERANCE = 1e-9
KEYS: dict[str, Any] = {
    **JUDGED,
    **{"hidden": 8, "layers": 2, "rounds": 3, "dropout": 0.3, "dtype": "float64"},
}
BASES: dict[str, Any] = {"model": "rel-gcn", "num_bases": 2}
LEAN: dict[str, Any] = {"basis": "supervised", "basis_blocks": 2}
CUTS = (
    ((2, "louvain"), (3, "attribute:type")),
    ((3, "attribute:type"), (7, "random")),
)


@pytest.mark.parametrize(
    ("keys", "cuts"),
    by_turns(
        CUTS,
        {},
        {"layers": 3, "metric": "macro-f1", "class_weights": "balanced"},
        {"model": "rel-gcn", "warm_start": True},
        {**BASES, "layers": 3, "warm_start": True},
        {**BASES, **LEAN},
        {**LEAN, "candidates": "own-row", "warm_start": True, "optimizer": "lbfgs"},
        {"model": "rel-gat", "layers": 3},
        {"model": "rel-gat", **LEAN, "candidates": "own-row"},
        {"model": "pyg:SAGEConv"},
        {"algorithm": "standard"},
    ),
    ids=str,
)
@pytest.mark.each_choice
def test_any_cut_trains_the_weights_of_one(
    tmp_path: Path, keys: dict[str, Any], cuts: Cuts
) -> None:
    one = train(tmp_path / "one", **KEYS | keys, clients=1)
    for clients, partitioner in cuts:
        out = tmp_path / f"{clients}-{partitioner.partition(':')[0]}"
        run = train(out, **KEYS | keys, clients=clients, partitioner=partitioner)
        assert largest_difference(one, run) < TOLERANCE, (clients, partitioner)


@pytest.mark.parametrize(
    "keys",
    by_day([{}, LEAN, BASES, {"model": "rel-gat"}], LEAN, others=pytest.mark.slow),
    ids=str,
)
def test_masks_and_an_interruption_change_no_model(tmp_path: Path, keys: dict[str, Any]) -> None:
    keys = {**KEYS, **keys, "clients": 4}
    plain = train(tmp_path / "plain", **keys)
    masked = train(tmp_path / "masked", **keys, secure_aggregation="masked")
    assert largest_difference(plain, masked) < 1e-4
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "resumed", stop_after(2, stage=1), **keys)
    train(tmp_path / "resumed", **keys, resume=tmp_path / "resumed")
    assert model_bytes(tmp_path / "resumed") == model_bytes(plain)


def test_workers_of_flowers_simulation_leave_the_same_model(tmp_path: Path) -> None:
    keys = {**KEYS, "clients": 2, "metric": "macro-f1"}
    one = train(tmp_path / "inline", **keys)
    other = train_in_workers(tmp_path / "workers", **keys)
    assert model_bytes(other) == model_bytes(one)
    assert result_of(other)["types"] == result_of(one)["types"]


@pytest.mark.devices
@pytest.mark.parametrize("model", [{}, BASES, {"model": "rel-gat"}], ids=str)
def test_devices_train_the_weights_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: dict[str, Any]
) -> None:
    play_devices(monkeypatch)
    keys = {**KEYS, **model, "clients": 2}
    one = train(tmp_path / "one", **keys)
    two = train(tmp_path / "two", **keys, devices="cpu:2")
    assert largest_difference(one, two) < TOLERANCE
    assert result_of(two)["types"] == result_of(one)["types"]


@pytest.mark.parametrize("metric", ["auto", "roc-auc", "log-loss", "macro-f1"])
@pytest.mark.parametrize("how", [{}, {"secure_aggregation": "masked"}, {"algorithm": "standard"}])
@pytest.mark.each_choice
def test_a_test_is_told_by_type_and_of_all(
    tmp_path: Path, metric: str, how: dict[str, Any]
) -> None:
    keys = {**KEYS, "clients": 3, "metric": metric, "rounds": 2, **how}
    result = result_of(train(tmp_path / "run", **keys))
    types = {one["name"]: one for one in result["types"]}
    assert "test" not in types["shop"]
    judged = [types["customer"], types["device"]]
    assert sum(one["test"] for one in judged) == sum(c["test"] for c in result["client_table"])
    right = [one["test"] * one["test_accuracy"] for one in judged]
    share = sum(right) / sum(one["test"] for one in judged)
    assert share == pytest.approx(result["test_accuracy"], abs=1e-12)
    assert np.trace(np.array(result["confusion"])) == round(sum(right))
    if metric == "log-loss":
        weighed = sum(one["test"] * one["metric"]["value"] for one in judged)
        mean = weighed / sum(one["test"] for one in judged)
        assert mean == pytest.approx(result["metric"]["value"], abs=1e-4)
    elif metric != "auto":
        values = [one["metric"]["value"] for one in judged]
        assert values[0] != values[1]
        assert all(0 <= value <= 1 for value in values)


def test_predictions_say_types_and_do_not_depend_on_the_partition(
    tmp_path: Path, retexo: CommandLine
) -> None:
    run = train(tmp_path / "run", clients=1, metric="macro-f1", **KEYS)
    found = []
    for clients in (1, 5):
        parts = cut(tmp_path / f"{clients}", clients=clients, **KEYS)
        told = retexo.done("predict", run, "--partitions", parts, "--format", "npz")
        files = [np.load(path) for path in sorted(parts.glob("*.npz"))]
        nodes = [node for one in files for node in zip(one["type"], one["key"], strict=True)]
        shares = np.concatenate([one["probability"] for one in files])
        order = sorted(range(len(nodes)), key=nodes.__getitem__)
        found.append(shares[order])
    np.testing.assert_allclose(found[1], found[0], atol=1e-6)
    assert len(found[0]) == CUSTOMERS + DEVICES
    types = {one["name"]: one for one in result_of(run)["types"]}
    for name in ("customer", "device"):
        one = types[name]
        assert f"of {name}" in told
        assert (
            f"macro-f1 {one['metric']['value']:.4f}, accuracy {one['test_accuracy']:.4f} of "
            f"{one['test']} labelled test nodes" in told
        )
    retexo.done("predict", run, "--partitions", parts, "--overwrite")
    rows = [path.read_text().splitlines() for path in parts.glob("predictions-*.csv")]
    assert {lines[0] for lines in rows} == {"key,type,class,p0,p1,p2"}
    said = [tuple(line.split(",")[:2]) for lines in rows for line in lines[1:]]
    assert sorted(said) == sorted(
        [(str(at), "customer") for at in range(CUSTOMERS)]
        + [(str(at), "device") for at in range(DEVICES)]
    )


def write_npz(path: Path, made: dict[str, Any]) -> None:
    arrays: dict[str, Any] = dict(bank_arrays(made))
    np.savez(path, **arrays)


def test_every_form_of_the_graph_trains_one_model(tmp_path: Path, retexo: CommandLine) -> None:
    keys = ("--model", "rel-sage", "--split", JUDGED["split"], "--rounds", "2", "--clients", "3")
    tables = write_bank(tmp_path, judged_bank())
    retexo.done("run", *tables, *keys, "--out", tmp_path / "tables")
    told = retexo.done("run", "--dataset", JUDGED["dataset"], *keys, "--out", tmp_path / "mapping")
    assert "of customer" in told
    assert "of device" in told
    write_npz(tmp_path / "bank.npz", judged_bank())
    retexo.done("run", "--dataset", tmp_path / "bank.npz", *keys, "--out", tmp_path / "npz")
    more = {"model": "rel-sage", "split": JUDGED["split"], "rounds": 2, "clients": 3}
    retexo_fl.run(graph=bank_networkx(judged_bank()), out=tmp_path / "networkx", **more)
    for name in ("tables", "mapping", "npz", "networkx"):
        types = result_of(tmp_path / name)["types"]
        assert [one["labels"] for one in types] == ["classes", "classes", ""], name
    retexo.done("predict", tmp_path / "tables", *tables, "--out", tmp_path / "predicted")
    page = (tmp_path / "tables" / "report.html").read_text()
    assert "Test by type" in page


def test_labels_of_some_types_are_learned_alone(tmp_path: Path, retexo: CommandLine) -> None:
    keys = ("--model", "rel-sage", "--split", JUDGED["split"], "--rounds", "2", "--clients", "3")
    alone = ("--label-types", "customer")
    tables = write_bank(tmp_path, judged_bank())
    for name, data in (("tables", tables), ("mapping", ("--dataset", JUDGED["dataset"]))):
        retexo.done("run", *data, *alone, *keys, "--out", tmp_path / name)
    retexo.done("run", "--dataset", BANK["dataset"], *keys, "--out", tmp_path / "one")
    assert model_bytes(tmp_path / "mapping") == model_bytes(tmp_path / "one")
    for name, made, more in (("all", judged_bank(), alone), ("bare", bank(), ())):
        write_npz(tmp_path / "bank.npz", made)
        data = ("--dataset", tmp_path / "bank.npz", *more)
        retexo.done("run", *data, *keys, "--out", tmp_path / name)
    assert model_bytes(tmp_path / "all") == model_bytes(tmp_path / "bare")
    # The labels of devices are there, and are not read.
    retexo.done("predict", tmp_path / "tables", *tables, "--out", tmp_path / "predicted")
    written = next((tmp_path / "predicted").rglob("*.csv")).read_text().splitlines()
    assert written[0].startswith("key,class,")
    assert len(written) == 1 + CUSTOMERS


def test_named_classes_are_those_of_all_types(tmp_path: Path, retexo: CommandLine) -> None:
    made = judged_bank()
    for kind, names in (("customer", ("a", "b", "c")), ("device", ("d", "b", "c"))):
        labels = made["nodes"][kind]["y"]
        made["nodes"][kind]["y"] = np.array(["" if y < 0 else names[y] for y in labels])
    more = {"model": "rel-sage", "split": JUDGED["split"], "rounds": 2, "quiet": True}
    run = retexo_fl.run(graph=made, out=tmp_path / "mapping", clients=2, **more)
    assert np.array(run.result.confusion).shape == (4, 4)
    tables = write_bank(tmp_path, judged_bank())
    for kind, letters in (("customer", "abc"), ("device", "dbc")):
        path = tmp_path / f"{kind}.csv"
        head, *rows = [line.split(",") for line in path.read_text().splitlines()]
        for row in rows:
            row[1] = row[1] and letters[int(row[1])]
        path.write_text("\n".join(",".join(row) for row in (head, *rows)))
    keys = ("--features", "auto", "--model", "rel-sage", "--split", JUDGED["split"])
    retexo.done("run", *tables, *keys, "--rounds", "2", "--out", tmp_path / "tables")
    retexo.done("predict", tmp_path / "tables", *tables, "--out", tmp_path / "predicted")
    written = next((tmp_path / "predicted").rglob("*.csv")).read_text().splitlines()
    assert written[0] == "key,type,class,p_a,p_b,p_c,p_d"
    assert len(written) == 1 + CUSTOMERS + DEVICES
    # What is not learned is no feature either.
    alone = ("--label-types", "customer", "--rounds", "1", "--out", tmp_path / "alone")
    retexo.done("run", *tables, *keys, *alone)
    widths = {one["name"]: one["features"] for one in result_of(tmp_path / "alone")["types"]}
    assert widths == {
        one["name"]: one["features"] for one in result_of(tmp_path / "tables")["types"]
    }


@pytest.mark.parametrize("told", [False, True])
def test_local_parts_are_the_cut_ones_byte_for_byte(retexo: CommandLine, told: bool) -> None:
    data = ("--dataset", JUDGED["dataset"]) if told else write_bank(Path(), judged_bank())
    graph = (*data, "--split", JUDGED["split"], "--clients", "3")
    retexo.done("partition", "make", *graph, "--out", "cut")
    assert 'labelled = [\n    "customer",\n    "device",\n]' in Path("cut/peers.toml").read_text()
    clients = read_peers(Path("cut/peers.toml")).clients
    for at, folder in enumerate(find_partitions(Path("cut"))):
        tables = export_typed_part(
            open_partition(folder), Path(f"of-{at}"), clients=clients, told=told
        )
        place = ("--peers", "cut/peers.toml", "--name", f"client-{at}", "--out", "local")
        retexo.done("partition", "local", *tables, *place)
        local = Path("local") / folder.name
        for path in folder.iterdir():
            assert path.read_bytes() == (local / path.name).read_bytes(), path
    assert "3 parts agree" in retexo.done("partition", "check", *find_partitions(Path("local")))
    short = ("--model", "rel-sage", "--rounds", "2", "--hidden", "8")
    retexo.done("run", "--partitions", "local", *short, "--out", "of-local")
    retexo.done("run", *graph, *short, "--out", "whole")
    assert model_bytes(Path("of-local")) == model_bytes(Path("whole"))


def _labels_of_shops(made: dict[str, Any]) -> None:
    made["nodes"]["shop"]["y"] = np.arange(12) % 2


def _flags(made: dict[str, Any]) -> None:
    made["nodes"]["device"]["y"] = np.zeros((DEVICES, 2), int)


def _other_names(made: dict[str, Any]) -> None:
    labels = made["nodes"]["customer"]["y"]
    made["nodes"]["customer"]["y"] = np.array([("a", "b", "c", "")[y] for y in labels])
    _words(made)


def _words(made: dict[str, Any]) -> None:
    made["nodes"]["device"]["y"] = np.array(["x"] * DEVICES)


@pytest.mark.parametrize(
    ("change", "keys", "told"),
    [
        (_labels_of_shops, {}, "those of customer are classes 0 to 2, of shop classes 0 to 1; exp"),
        (_flags, {}, "labels of device: got shape"),
        (_words, {}, "of customer are classes 0 to 2, of device names of classes; expected"),
        (
            _other_names,
            {},
            "labels: types customer and device have no class in common: customer a, b, c, device "
            "x; expected classes that both have, or label-types with one of them",
        ),
        (None, {"label_types": "shop"}, "label-types: got 'shop'; expected of customer, device"),
        (
            None,
            {"solver": "ridge"},
            "solver: ridge does not go with labels of several types (customer, device); expected l",
        ),
        (None, {"label_types": "x"}, "label-types: got 'x'; expected of customer, device"),
        (
            None,
            {"label_types": "device", "task": "links"},
            "label-types: 'device' does not go with task",
        ),
        (
            None,
            {"label_types": "device", "partitions": "cut"},
            "label-types: got 'device', but the parts have labels of customer and device",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    tmp_path: Path, change: Any, keys: dict[str, Any], told: str
) -> None:
    graph: dict[str, Any] | None = judged_bank()
    if change is not None:
        change(graph)
    if "partitions" in keys:
        cut(tmp_path / "cut", clients=2, **KEYS)
        keys, graph = {**keys, "partitions": str(tmp_path / "cut")}, None
    with pytest.raises(InputError, match=re.escape(told)):
        retexo_fl.run(graph=graph, out=tmp_path / "run", model="rel-sage", quiet=True, **keys)
    assert not (tmp_path / "run").exists()
