"""Graphs with types of nodes and edges: trained as one client would, counted, kept, predicted."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import retexo_fl
from retexo_fl.api.plan_exchanges import PlannedParts
from retexo_fl.api.plan_facts import plan_facts
from retexo_fl.client.preparation import make_parts
from retexo_fl.errors import PartitionError
from retexo_fl.federation.trained_model import read_trained_model
from retexo_fl.graph import open_partition, write_partition
from retexo_fl.graph.parts.partition import check_partition
from retexo_fl.methods.forecasts import FORECASTS
from retexo_fl.simulation.inline_engine import run_inline
from retexo_fl.training.stage_model import ModelShape
from tests.support.agents import agents, train_with
from tests.support.cli import CommandLine
from tests.support.limits import PERMISSIVE
from tests.support.loopback import free_ports
from tests.support.played_devices import play_devices
from tests.support.predictions import cut, read_npz
from tests.support.runs import (
    Cuts,
    by_turns,
    configured,
    largest_difference,
    ledger_of,
    model_bytes,
    result_of,
    size_of,
    stop_after,
    train,
)
from tests.support.typed_graphs import BANK, CHAINED, chained, write_bank
from tests.support.ways import profile_keys
from tests.support.workers import train_in_workers

TOLERANCE = 1e-9
KEYS: dict[str, Any] = {
    **BANK,
    **{"hidden": 8, "layers": 2, "rounds": 3, "dropout": 0.3, "dtype": "float64"},
}
#: With as many matrices as make relations share them.
BASES: dict[str, Any] = {"model": "rel-gcn", "num_bases": 2}
#: Labels of customers train the weights of devices and shops, too, and then both layers together.
TAUGHT: dict[str, Any] = {"unlabelled_types": "refined"}
#: Two edges away from those with labels is what tells them, of which a basis is.
FAR: dict[str, Any] = {
    **{"dataset": "tests.support.typed_graphs:chain", "split": "random:0.5/0.2/0.3"},
    **{"basis": "supervised", "basis_blocks": 3, **TAUGHT},
}
#: Of all types' sums over two edges, the coordinates of which are widest.
ALL_FAR: dict[str, Any] = {"basis": "supervised", "basis_blocks": 2, "basis_rows": "far", **TAUGHT}
#: Solved for from sums of rows that are as wide as those of the widest type.
RIDGE: dict[str, Any] = {"solver": "ridge"}
SUPERVISED: dict[str, Any] = {"basis": "supervised", "basis_blocks": 2, "basis_rows": "sums"}
ONE_SHOT: dict[str, Any] = profile_keys("one-shot")
#: By turns: a cut that follows types or communities, and one that follows nothing.
CUTS = (
    ((2, "louvain"), (7, "random")),
    ((3, "random"), (3, "attribute:type")),
)


@pytest.fixture
def retexo(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


@pytest.mark.parametrize(
    ("keys", "cuts"),
    by_turns(
        CUTS,
        {},
        {"layers": 3},
        {"model": "rel-gcn", "num_bases": 2, "layers": 3},
        {"model": "rel-gcn", "algorithm": "standard"},
        {"model": "rel-gcn", "basis": "supervised", "basis_blocks": 2, "num_bases": 2},
        {"model": "rel-gat", "layers": 3},
        {"model": "rel-gat", "algorithm": "standard", "local_steps": 1},
        {"model": "rel-gat", "basis": "supervised", "basis_blocks": 2},
        {"model": "pyg:SAGEConv"},
        {"model": "pyg:TransformerConv", "algorithm": "standard"},
        {"algorithm": "standard"},
        {"edges_are": "directed"},
        {"candidates": "own-row", "warm_start": True, "optimizer": "lbfgs"},
        {"basis": "supervised", "basis_blocks": 2},
        TAUGHT,
        TAUGHT | {"layers": 3, "model": "rel-gcn"},
        TAUGHT
        | {"basis": "supervised", "basis_blocks": 2, "warm_start": True, "candidates": "auto"},
        FAR,
        ALL_FAR,
        ALL_FAR | {"edges_are": "directed", "layers": 3, "model": "rel-gcn"},
        RIDGE,
        RIDGE | {"layers": 3, "model": "rel-gcn"},
        RIDGE | SUPERVISED | {"edges_are": "directed"},
        FAR | RIDGE,
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
        # What is solved for from few nodes and many columns rounds more.
        most = 1e-8 if keys.get("solver") == "ridge" else TOLERANCE
        assert largest_difference(one, run) < most, (clients, partitioner)


LEAN: dict[str, Any] = {**profile_keys("lean", "rounds"), "model": "rel-sage"}


@pytest.mark.parametrize(
    ("clients", "keys"),
    [
        (3, {}),
        (3, {"model": "rel-gat"}),
        (3, BASES),
        *((3, TAUGHT | {"layers": layers}) for layers in (2, 3)),
        (3, TAUGHT | {"algorithm": "standard"}),
        (3, FAR),
        (3, ALL_FAR),
        (7, LEAN | {"basis_rows": "far"}),
        (4, LEAN | {"basis_rows": "far", "secure_aggregation": "masked"}),
        # Clients and layers are factors of their own.
        *((clients, LEAN | {"layers": layers}) for clients, layers in ((2, 3), (3, 2), (7, 3))),
        *((3, RIDGE | SUPERVISED | {"layers": layers}) for layers in (2, 3)),
        (7, ONE_SHOT | {"layers": 3}),
        (4, ONE_SHOT | {"secure_aggregation": "masked"}),
        (7, {"layers": 3, "codec": "dense"}),
        *((3, {"algorithm": "standard", "layers": layers}) for layers in (2, 3)),
        *((3, {"algorithm": "bns", "layers": layers}) for layers in (2, 3)),
        (4, LEAN | {"secure_aggregation": "masked"}),
        (3, {"secure_aggregation": "masked", "layers": 3}),
        (3, {"secure_aggregation": "masked", "layers": 3, "algorithm": "standard"}),
    ],
    ids=str,
)
@pytest.mark.each_choice
def test_bytes_are_those_of_the_closed_form(
    tmp_path: Path, clients: int, keys: dict[str, Any]
) -> None:
    keys = {**KEYS, **keys, "clients": clients, "boundary_rate": 0.5, "partitioner": "random"}
    keys |= {"dataset": CHAINED, "rounds": 2}
    run = train(tmp_path / "run", **keys)
    config = configured(tmp_path / "planned", **keys)
    parts = make_parts(config)
    size = size_of(config, parts)
    assert len({size.vectors, *size.later}) == config.layers
    facts = plan_facts(config, PlannedParts(parts))["plans"]["rows"]
    assert (facts["vectors"], *facts["vectors_later"]) == (size.vectors, *size.later)
    size = replace(size, sampled_vectors=facts["sampled_vectors"])
    predicted = FORECASTS[config.algorithm].volume(ModelShape.of_part(config, parts[0]), size)
    assert predicted is not None
    ledger = ledger_of(run)
    told = result_of(run)["plan"]["predicted_raw"]["boundary"]
    planned = facts["algorithms"][config.algorithm]["boundary"]
    assert ledger.sum(kind="boundary").raw == predicted.boundary == told == planned
    if clients == 3 and config.update_bits == 32 and config.secure_aggregation == "none":
        assert ledger.sum(kind="updates_up").raw == predicted.updates_up
        assert ledger.sum(kind="weights_down").raw == predicted.weights_down
    payload = ledger.sum(kind="boundary", layer=0).payload
    if config.algorithm == "lazy" and config.row_bits == 32:
        assert payload == facts["first_exchange"][config.codec]


@pytest.mark.parametrize("rows", ["sums", "far"])
def test_directions_are_those_of_sums_and_far_ones_are_evened(tmp_path: Path, rows: str) -> None:
    """The Krylov space of dense rows: own ones, and means over every way along edges, added."""
    rng = np.random.default_rng(3)
    people, items = 40, 12
    likes = np.stack([rng.integers(0, people, 70), rng.integers(0, items, 70)])
    knows = np.stack([rng.integers(0, people, 60), rng.integers(0, people, 60)])
    knows = knows[:, knows[0] < knows[1]]
    likes, knows = (np.unique(pairs, axis=1) for pairs in (likes, knows))
    x, made = rng.normal(size=(people, 5)), rng.normal(size=(items, 4)) * 9.0
    x, made = x.astype(np.float32), made.astype(np.float32)
    labels, trains = rng.integers(0, 2, people), np.arange(people) < 16
    masks = {"train_mask": trains, "val_mask": ~trains, "test_mask": np.zeros(people, bool)}
    masks["val_mask"][-5:], masks["test_mask"][-5:] = False, True
    graph = {
        "nodes": {"person": {"x": x, "y": labels, **masks}, "item": {"x": made}},
        "edges": {("person", "likes", "item"): likes, ("person", "knows", "person"): knows},
    }
    out = tmp_path / "run"
    keys: dict[str, Any] = {"model": "rel-sage", "clients": 3, "rounds": 1, "hidden": 4}
    keys |= {"basis": "supervised", "basis_blocks": 2, "basis_rows": rows}
    keys |= {"basis_bits": 32, "row_bits": 32, "dtype": "float64"}
    retexo_fl.run(graph=graph, out=out, quiet=True, **keys)
    features = np.zeros((people + items, 9))
    features[:people, :5], features[people:, 5:] = x, made
    along = np.zeros((people + items, people + items))
    # Of people with each other an edge has no direction.
    both = np.hstack([knows, knows[::-1]])
    for source, target in ((likes[0], likes[1] + people), (likes[1] + people, likes[0]), both):
        way = np.zeros_like(along)
        way[source, target] = 1.0
        along += way / np.maximum(way.sum(axis=1, keepdims=True), 1.0)
    sums = features + along @ features
    if rows == "far":
        sums += along @ (along @ features)
    of_train = sums[:people][trains]
    scales = np.square(of_train).sum(axis=0) ** (-0.125 if rows == "far" else 0)
    centred = (of_train - of_train.mean(axis=0)) * scales
    first = centred.T @ np.eye(2)[labels[trains]]
    space = scales[:, None] * np.hstack([first, centred.T @ (centred @ first)])
    basis = read_trained_model(out).basis
    assert basis is not None
    np.testing.assert_allclose(basis[:9], of_train.mean(axis=0), rtol=1e-6)
    directions = basis[9:].reshape(9, 4)
    outside = space - directions @ np.linalg.lstsq(directions, space, rcond=None)[0]
    assert np.abs(outside).max() < 1e-6 * np.abs(space).max()


@pytest.mark.parametrize("profile", ["lean", "retexo"])
def test_rows_that_no_layer_reads_stay_where_they_are(tmp_path: Path, profile: str) -> None:
    keys: dict[str, Any] = {"model": "rel-sage", "split": BANK["split"], "clients": 3, "rounds": 2}
    keys |= {"hidden": 8, "profile": profile, "partitioner": "random", "quiet": True}
    ran = {
        (scale, layers): retexo_fl.run(
            graph=chained(scale), out=tmp_path / f"{scale}-{layers}", layers=layers, **keys
        )
        for scale in (0.0, 9.0)
        for layers in (2, 3)
    }
    crossed = {
        of: (model_bytes(run.path), run.result.volumes["payload"]["boundary"])
        for of, run in ran.items()
    }
    assert crossed[0.0, 2] == crossed[9.0, 2]
    assert crossed[0.0, 3] != crossed[9.0, 3]


@pytest.mark.parametrize(
    "keys",
    [
        {},
        pytest.param({"basis": "supervised", "basis_blocks": 2}, marks=pytest.mark.slow),
        pytest.param(BASES, marks=pytest.mark.slow),
        {"model": "rel-gat"},
        TAUGHT | {"basis": "supervised", "basis_blocks": 2, "candidates": "auto"},
        FAR,
        ALL_FAR,
    ],
    ids=str,
)
@pytest.mark.each_choice
def test_masks_and_an_interruption_change_no_model(tmp_path: Path, keys: dict[str, Any]) -> None:
    keys = {**KEYS, **keys, "clients": 4}
    plain = train(tmp_path / "plain", **keys)
    masked = train(tmp_path / "masked", **keys, secure_aggregation="masked")
    assert largest_difference(plain, masked) < 1e-4
    for stage in (0, 1):
        out = tmp_path / f"resumed-{stage}"
        with pytest.raises(KeyboardInterrupt):
            train(out, stop_after(2, stage=stage), **keys)
        train(out, **keys, resume=out)
        assert model_bytes(out) == model_bytes(plain)


@pytest.mark.parametrize("datagrams", [False, True])
@pytest.mark.parametrize(
    ("partitioner", "ways"),
    [
        # Some have nothing to send to a peer, or nobody of theirs reads it.
        ("attribute:type", [{}, LEAN | {"rounds": 2}, LEAN | {"rounds": 1, "basis_rows": "far"}]),
        ("random", [{"algorithm": "standard"}, {"algorithm": "bns", "boundary_rate": 0.5}]),
    ],
)
@pytest.mark.system
@pytest.mark.each_choice
def test_agents_train_the_bits_of_one_process(
    tmp_path: Path, partitioner: str, ways: list[dict[str, Any]], datagrams: bool
) -> None:
    keys = {**KEYS, "dataset": CHAINED, "clients": 4, "layers": 3, "partitioner": partitioner}
    keys |= {"message_timeout_s": 120.0}
    parts = make_parts(configured(tmp_path / "planned", **keys))
    ports, schemes = iter(free_ports(8)), ("tcp", "udp")[: 1 + datagrams]
    addresses = [tuple(f"{scheme}://127.0.0.1:{next(ports)}" for scheme in schemes) for _ in parts]
    codec = {"codec": "fixed"} if datagrams else {}
    with agents(tmp_path / "agents", parts, addresses=addresses, settings=PERMISSIVE) as made:
        for number, way in enumerate(ways):
            out = tmp_path / f"{number}"
            train_with(made, configured(out / "deployed", **keys | way | codec))
            train(out / "inline", **keys | way | codec)
            assert model_bytes(out / "deployed") == model_bytes(out / "inline"), way
            raw = [
                ledger_of(out / name).sum(kind="boundary").raw for name in ("deployed", "inline")
            ]
            assert raw[0] == raw[1], way


@pytest.mark.parametrize("model", [{}, {"model": "rel-gat"}, TAUGHT], ids=str)
def test_workers_of_flowers_simulation_leave_the_same_model(
    tmp_path: Path, model: dict[str, Any]
) -> None:
    keys = {**KEYS, **model, "clients": 2}
    one = train(tmp_path / "inline", **keys)
    assert model_bytes(train_in_workers(tmp_path / "workers", **keys)) == model_bytes(one)


@pytest.mark.devices
@pytest.mark.parametrize("model", [{}, BASES, {"model": "rel-gat"}, TAUGHT], ids=str)
def test_devices_train_the_weights_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: dict[str, Any]
) -> None:
    play_devices(monkeypatch)
    keys = {**KEYS, **model, "clients": 2}
    one = train(tmp_path / "one", **keys)
    assert largest_difference(one, train(tmp_path / "two", **keys, devices="cpu:2")) < TOLERANCE


@pytest.mark.parametrize(
    ("layers", "model"),
    [(2, {}), (3, {}), (2, BASES), (3, {"model": "rel-gat"}), (3, TAUGHT), (3, RIDGE)],
    ids=str,
)
def test_predictions_do_not_depend_on_the_partition(
    tmp_path: Path, retexo: CommandLine, layers: int, model: dict[str, Any]
) -> None:
    keys = {**KEYS, **model, "layers": layers}
    run = train(tmp_path / "run", clients=1, **keys)
    found = []
    for clients in (1, 5):
        parts = cut(tmp_path / f"{clients}", clients=clients, **keys)
        retexo.done("predict", run, "--partitions", parts, "--format", "npz", "--allow-plugins")
        found.append(read_npz(parts).probabilities)
    np.testing.assert_allclose(found[1], found[0], atol=1e-6)


def test_tables_of_types_and_relations_are_the_graph(tmp_path: Path, retexo: CommandLine) -> None:
    tables = write_bank(tmp_path)
    keys = ("--model", "rel-sage", "--split", BANK["split"], "--clients", "3", "--rounds", "2")
    retexo.done("run", *tables, *keys, "--out", tmp_path / "tables")
    retexo.done("run", "--dataset", BANK["dataset"], *keys, "--out", tmp_path / "mapping")
    one, other = (model_shapes(tmp_path / name) for name in ("tables", "mapping"))
    assert one == other
    names = {"nodes": tables[1:6:2], "edges": tables[7::2]}
    toml = "".join(f"{key} = {[str(path) for path in paths]}\n" for key, paths in names.items())
    (tmp_path / "bank.toml").write_text(toml.replace("'", '"'))
    retexo.done("run", "--config", tmp_path / "bank.toml", *keys, "--out", tmp_path / "toml")
    assert model_bytes(tmp_path / "toml") == model_bytes(tmp_path / "tables")
    retexo_fl.run(
        nodes=[Path(path) for path in names["nodes"]],
        edges=names["edges"],
        out=tmp_path / "python",
        model="rel-sage",
        split=BANK["split"],
        clients=3,
        rounds=2,
    )
    assert model_bytes(tmp_path / "python") == model_bytes(tmp_path / "tables")
    retexo.done("predict", tmp_path / "tables", *tables, "--out", tmp_path / "predicted")
    of_type = ("--partitioner", "attribute:type", "--model", "rel-sage", "--split", BANK["split"])
    retexo.done("run", *tables, *of_type, "--rounds", "1", "--out", tmp_path / "types")
    assert '"clients": 3' in (tmp_path / "types" / "result.json").read_text()


def test_one_table_of_edges_holds_several_relations(tmp_path: Path, retexo: CommandLine) -> None:
    tables = write_bank(tmp_path)
    keys = ("--model", "rel-sage", "--split", BANK["split"], "--clients", "3", "--rounds", "2")
    retexo.done("run", *tables, *keys, "--out", tmp_path / "several")
    rows = ["target,weight,type,source"]
    for option, path in zip(tables[6::2], tables[7::2], strict=True):
        assert option == "--edges"
        for line in Path(path).read_text().splitlines()[1:]:
            source, target, *weight = line.split(",")
            rows.append(f"{target},{''.join(weight) or 1},{Path(path).stem},{source}")
    one = tmp_path / "edges.csv"
    one.write_text("\n".join(rows))
    retexo.done("run", *tables[:6], "--edges", one, *keys, "--out", tmp_path / "one")
    assert model_bytes(tmp_path / "one") == model_bytes(tmp_path / "several")
    one.write_text("\n".join([*rows, "d1,1,,c1"]))
    told = retexo.refused("run", *tables[:6], "--edges", one, *keys, "--out", tmp_path / "none")
    assert f"edges.csv: line {len(rows) + 1}: type: is empty; expected the name of a rel" in told


def model_shapes(run: Path) -> dict[str, Any]:
    return {
        f"{path.name} {name}": item.shape
        for path in sorted((run / "model").glob("*.safetensors"))
        for name, item in load_file(path).items()
    }


def _change(path: Path, old: str | None, new: str) -> None:
    """Put a text in the place of another one, or of the whole file."""
    text = path.read_text(encoding="utf-8")
    old = text if old is None else old
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [
        ("owns", "\nc", "\nz", "source: 'customer/z"),
        ("buys", "source,target,weight\n", "source,target,weight\nc0,s0,x\n", "line 2: weight: "),
        ("customer", "label", "class", "labels: no type has them; expected one type with labels"),
        ("shop", "s1\n", "s0\n", "key: 's0' is already in line 2; expected unique keys"),
        ("stands", "source", "from", "column 'source' is missing"),
        ("stands", "\nd", "\nq", "source: 'device/q"),
        ("owns", None, "source,target\n", "has no edges; expected at least one in each relation"),
        (
            "owns",
            None,
            "source,target\nq1,d1\n",
            "source: got 'q1', and no other key of customer, ",
        ),
    ],
)
def test_tables_that_do_not_fit_are_refused_by_file_and_line(
    tmp_path: Path, retexo: CommandLine, file: str, old: str | None, new: str, told: str
) -> None:
    tables = write_bank(tmp_path)
    _change(tmp_path / f"{file}.csv", old, new)
    keys = ("--model", "rel-sage", "--split", BANK["split"], "--out", tmp_path / "run")
    assert told in retexo.refused("run", *tables, *keys)
    assert not (tmp_path / "run").exists()


def test_keys_of_two_types_have_to_be_told_apart(tmp_path: Path, retexo: CommandLine) -> None:
    tables = write_bank(tmp_path)
    for name in ("device", "shop", "stands"):
        path = tmp_path / f"{name}.csv"
        text = path.read_text()
        path.write_text(text.replace("\nd", "\n").replace("\ns", "\n").replace(",s", ","))
    (tmp_path / "owns.csv").unlink()
    (tmp_path / "buys.csv").unlink()
    tables = [one for at, one in enumerate(tables) if at // 2 not in (3, 4)]
    keys = ("--model", "rel-sage", "--split", BANK["split"], "--out", tmp_path / "run")
    told = retexo.refused("run", *tables, *keys)
    assert "target: its keys are of device and shop alike; expected keys of one type, or" in told
    path = tmp_path / "stands.csv"
    head, *rows = path.read_text().splitlines()
    lines = [f"{head},source_type,target_type", *(f"{row},device,shop" for row in rows)]
    path.write_text("\n".join(lines))
    told = retexo.refused("run", *tables, *keys, "--rounds", "0")
    assert "rounds" in told
    path.write_text("\n".join(lines).replace("device,shop", "device,branch", 1))
    told = retexo.refused("run", *tables, *keys)
    assert "line 2: target_type: got 'branch'; expected one of customer, device, shop" in told
    path.write_text("\n".join([*lines[:-1], lines[-1].replace("device,shop", "device,device")]))
    told = retexo.refused("run", *tables, *keys)
    assert "target_type: got 'device'; expected shop, as in the rows before" in told


def test_tables_of_one_name_are_refused(tmp_path: Path, retexo: CommandLine) -> None:
    tables = write_bank(tmp_path)
    keys = ("--model", "rel-sage", "--split", BANK["split"], "--out", tmp_path / "run")
    told = retexo.refused("run", *tables, *tables[:2], *keys)
    assert "are both of customer; expected files of other names" in told


def test_a_part_is_kept_with_its_types(tmp_path: Path) -> None:
    part = make_parts(configured(tmp_path / "run", **KEYS, clients=2))[1]
    write_partition(part, tmp_path / "part")
    again = open_partition(tmp_path / "part")
    assert again.relations == part.relations is not None
    assert again.edge_values.weights is not None
    np.testing.assert_array_equal(again.edge_values.weights, part.edge_values.weights)
    manifest = tmp_path / "part" / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('\\"labelled\\":0', '\\"labelled\\":9'))
    with pytest.raises(PartitionError, match="relations: got 9 as labelled type"):
        open_partition(tmp_path / "part")


def test_parts_that_contradict_their_types_are_refused(tmp_path: Path) -> None:
    part = make_parts(configured(tmp_path / "run", **KEYS, clients=2))[0]
    weights = part.edge_values.weights
    assert weights is not None
    odd = replace(part, edge_values=replace(part.edge_values, weights=np.ones_like(weights)))
    with pytest.raises(PartitionError, match="is of relation owns; expected nodes of its types"):
        check_partition(odd, source="part")
    assert part.relations is not None
    other = replace(part.relations, types=("person", "device", "shop"))
    with pytest.raises(PartitionError, match="node_keys: row .* is of no type; expected one of"):
        check_partition(replace(part, relations=other), source="part")
    labels = np.zeros_like(part.labels)
    with pytest.raises(PartitionError, match="has one; expected them of type customer"):
        check_partition(replace(part, labels=labels), source="part")


def test_clients_of_other_relations_are_refused_by_name(tmp_path: Path) -> None:
    config = configured(tmp_path / "run", **KEYS, clients=2)
    parts = make_parts(config)
    assert parts[1].relations is not None
    first, *others = parts[1].relations.relations
    named = replace(parts[1].relations, relations=(replace(first, name="has"), *others))
    parts[1] = replace(parts[1], relations=named)
    with pytest.raises(PartitionError, match="clients 1 and 0 have relations customer has device"):
        run_inline(config, parts)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (("--model", "sage"), "nodes have types, which model sage does not take; expected model r"),
        (("--model", "rel-sage", "--sampler", "full", "--algorithm", "drop"), "sampler: full d"),
        (("--model", "rel-gat", "--solver", "ridge"), "solver: ridge does not go with model rel-g"),
        (
            ("--model", "rel-gcn", "--solver", "ridge", "--num-bases", "2"),
            "solver: ridge does not go with num-bases 2, since relations share no matrices then; e",
        ),
        (("--model", "rel-sage", "--num-bases", "2"), "num-bases: 2 does not go with model 'rel-s"),
        (
            ("--model", "pyg:GCNConv"),
            "model pyg:GCNConv does not take; expected model rel-sage, re",
        ),
        (("--model", "rel-gat", "--heads", "7"), "hidden: 64 cannot be shared by 7 heads"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(
    tmp_path: Path, retexo: CommandLine, keys: tuple[str, ...], told: str
) -> None:
    data = ("--dataset", BANK["dataset"], "--split", BANK["split"], "--clients", "2")
    assert told in retexo.refused("run", *data, *keys, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_graph_without_types_is_refused_in_one_line(tmp_path: Path, retexo: CommandLine) -> None:
    data = ("--dataset", "synthetic:nodes=60,edges=90,classes=2,features=4,words=2")
    told = retexo.refused("run", *data, "--model", "rel-sage", "--out", tmp_path / "run")
    assert "rel-sage does not go with a graph whose nodes have no types; expected sage" in told
    assert not (tmp_path / "run").exists()


def test_a_graph_is_predicted_without_labels_in_any_order(
    tmp_path: Path, retexo: CommandLine
) -> None:
    tables = write_bank(tmp_path)
    keys = ("--model", "rel-sage", "--split", BANK["split"], "--clients", "3", "--rounds", "2")
    retexo.done("run", *tables, *keys, "--out", tmp_path / "run")
    retexo.done("predict", tmp_path / "run", *tables, "--out", tmp_path / "known")
    path = tmp_path / "customer.csv"
    head, *rows = (line.split(",") for line in path.read_text().splitlines())
    at = head.index("label")
    path.write_text("\n".join(",".join(r[:at] + r[at + 1 :]) for r in (head, *rows)))
    turned = [one for place in (4, 0, 2, 10, 12, 6, 8) for one in tables[place : place + 2]]
    assert sorted(turned) == sorted(tables)
    retexo.done("predict", tmp_path / "run", *turned, "--out", tmp_path / "turned")
    known, new = (
        sorted(next((tmp_path / name).rglob("*.csv")).read_text().splitlines())
        for name in ("known", "turned")
    )
    assert known == new


def test_features_none_leaves_types_alone_and_says_so(
    tmp_path: Path, retexo: CommandLine, caplog: pytest.LogCaptureFixture
) -> None:
    tables = write_bank(tmp_path)
    keys = ("--model", "rel-sage", "--split", BANK["split"], "--clients", "2", "--rounds", "1")
    for name, data in (("tables", tables), ("mapping", ["--dataset", BANK["dataset"]])):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            retexo.done("run", *data, "--features", "none", *keys, "--out", tmp_path / name)
        assert "no type of nodes has features: a row says its type alone" in caplog.text
    assert model_shapes(tmp_path / "tables") == model_shapes(tmp_path / "mapping")
    given = ("--features", "none", "--out", tmp_path / "predicted")
    retexo.done("predict", tmp_path / "tables", *tables, *given)
