"""Columns of the edges, where nodes have no features: the filter, who makes it, what it moves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import retexo_fl
from retexo_fl.agent.admission import admit
from retexo_fl.agent.limits import Limits
from retexo_fl.api.plan_exchanges import PlannedParts, stage_payloads
from retexo_fl.api.settling import Asked, settled
from retexo_fl.client.api import (
    HelloRequest,
    StructureRequest,
    Ticket,
    WhitenRequest,
    chain_digest,
)
from retexo_fl.client.factory import InProcessClients
from retexo_fl.client.preparation import load_parts, make_parts, make_unlabelled_parts
from retexo_fl.config import config_values, make_config
from retexo_fl.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from retexo_fl.graph import Graph, write_partitions
from retexo_fl.training.columns import ColumnMap, Interval, Walk, bits_of_step, signs
from retexo_fl.training.label_sums import (
    Turns,
    label_columns,
    next_sums,
    sums_along,
    train_labels,
)
from retexo_fl.training.stage_model import ModelShape, label_columns_of
from tests.support.agents import agents, train_with
from tests.support.runs import configured, curves_of, ledger_of, model_bytes, result_of, train

GRAPH: Final[dict[str, Any]] = {
    "dataset": "synthetic:nodes=120,edges=400,classes=3,features=4,homophily=0.9",
    **{"features": "none", "split": "random:0.3/0.3/0.4", "hidden": 8, "rounds": 3},
    **{"structure_columns": 8, "structure_steps": 5},
}
EXACT: Final[dict[str, Any]] = {
    **GRAPH,
    **{"dtype": "float64", "structure_bits": 32, "learning_rate": 0.1},
}


def valued(*, directed: bool) -> Graph:
    """Return a graph whose edges weigh something, maybe in a direction."""
    rng = np.random.default_rng(5)
    ends = rng.integers(0, 60, (2, 300))
    ends = np.unique(np.sort(ends[:, ends[0] != ends[1]], axis=0), axis=1)
    return Graph.from_edges(
        ends,
        name="valued",
        features=np.zeros((60, 0)),
        labels=np.arange(60) % 3,
        edge_weights=np.asarray(rng.uniform(0.1, 5, ends.shape[1:])),
        directed=directed,
    )


# ---- the filter ----------------------------------------------------------------------------------


def test_signs_are_those_of_a_node_and_as_often_one_as_the_other() -> None:
    hashes = np.random.default_rng(0).integers(0, 2**63, 4000, dtype=np.uint64)
    found = signs(hashes, 100, seed=1)
    assert set(np.unique(found)) == {-1.0, 1.0}
    assert np.array_equal(signs(hashes[7:9], 100, seed=1), found[7:9])
    assert np.abs(found.mean(axis=0)).max() < 0.1
    products = found.T @ found / len(found) - np.eye(100)
    assert np.abs(products).max() < 0.1
    assert not np.array_equal(signs(hashes, 100, seed=2), found)


def test_steps_are_a_polynomial_of_the_walk() -> None:
    rng, steps = np.random.default_rng(3), 7
    upper = np.triu(rng.random((30, 30)) < 0.2, 1)
    adjacency = (upper + upper.T).astype(float)
    rows, columns = np.nonzero(adjacency)
    degrees = adjacency.sum(axis=1)
    walk = Walk.of(
        indptr=np.concatenate([[0], degrees.cumsum()]).astype(np.int64),
        indices=columns,
        weights=None,
        totals=degrees,
        neighbours=degrees,
        slots=0,
    )
    del rows
    last, before = rng.standard_normal((30, 4)), None
    first, none = last, np.zeros((0, 4))
    interval = Interval(low=-0.4, high=0.6)
    for _ in range(steps):
        before, last = last, interval.next(walk.step(last, none), last, before)
    root = np.sqrt(degrees + 1)
    values, vectors = np.linalg.eigh((adjacency + np.eye(30)) / np.outer(root, root))
    shifted = np.polynomial.chebyshev.Chebyshev.basis(steps)((values - 0.1) / 0.5)
    scaled = shifted / np.polynomial.chebyshev.Chebyshev.basis(steps)((1 - 0.1) / 0.5)
    expected = vectors @ (scaled[:, None] * (vectors.T @ (first * root[:, None]))) / root[:, None]
    assert np.allclose(interval.scaled(last, steps), expected, atol=1e-10)


@pytest.mark.parametrize(("mean", "high"), [(0.0, 0.85), (3.9, 0.85), (4.6, 0.85), (15.0, 0.75)])
def test_the_interval_follows_from_the_mean_degree(mean: float, high: float) -> None:
    assert Interval.of_degree(mean) == Interval(low=-0.5, high=high)


def test_the_last_steps_have_eight_bits() -> None:
    assert [bits_of_step(step, steps=7, bits=4) for step in range(1, 7)] == [4, 4, 4, 8, 8, 8]
    assert {bits_of_step(step, steps=7, bits=32) for step in range(1, 7)} == {32}


def test_features_are_white(tmp_path: Path) -> None:
    config = configured(Path("run"), **EXACT, clients=2)
    shape = ModelShape.of_part(config, load_parts(config)[0])
    run = train(tmp_path / "run", **{**EXACT, "clients": 1})
    from retexo_fl.federation.trained_model import read_trained_model
    from retexo_fl.methods.pieces.columns.answers import features_of_whole

    model = read_trained_model(run)
    assert model.columns is not None
    (part,) = load_parts(configured(Path("run"), **{**EXACT, "clients": 1}))
    made = features_of_whole(part, model.config, model.shape, model.columns)
    assert made.shape == (120, shape.features)
    squares = made[:, 1:].T @ made[:, 1:] / len(made)
    assert np.abs(squares - np.eye(8)).max() < 1e-3
    assert abs(made[:, 0].mean()) < 1e-9
    assert abs(made[:, 0].std() - 1) < 1e-9


# ---- many clients make what one does -------------------------------------------------------------


@pytest.mark.parametrize(
    "keys",
    [
        {"model": "gcn", "boundary_plan": "cover"},
        {"model": "sage", "codec": "fixed"},
        pytest.param({"model": "gat", "heads": 2}, marks=pytest.mark.slow),
        {"model": "sage", "task": "links", "split": "random:0.8/0.1/0.1"},
        pytest.param({"model": "gcn", "solver": "ridge"}, marks=pytest.mark.slow),
        pytest.param(
            {"model": "gin", "basis": "supervised", "basis_rows": "sums"}, marks=pytest.mark.slow
        ),
        {"model": "gcn", "structure": "degrees"},
        pytest.param(
            {"model": "gcn", "structure": "labels", "boundary_plan": "cover"},
            marks=pytest.mark.slow,
        ),
        {"model": "sage", "structure": "labels", "algorithm": "standard"},
    ],
    ids=lambda keys: "-".join(map(str, keys.values())),
)
def test_parts_change_nothing(tmp_path: Path, keys: dict[str, Any]) -> None:
    few = train(tmp_path / "one", **{**EXACT, **keys, "clients": 1})
    many = train(tmp_path / "many", **{**EXACT, **keys, "clients": 5, "partitioner": "louvain"})
    most = 1e-3 if keys.get("codec") == "fixed" else 1e-9
    for one, other in zip(curves_of(few), curves_of(many), strict=True):
        assert one[-1] == pytest.approx(other[-1], abs=most)


@pytest.mark.parametrize("keys", [{"model": "gcn"}, {"model": "dir-sage", "edges_are": "directed"}])
def test_weights_and_directions_count_in_sums_of_labels(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    graph, curves = valued(directed="edges_are" in keys), []
    for clients in (1, 4):
        given = {**EXACT, **keys, "clients": clients, "quiet": True, "profile": "retexo"}
        del given["dataset"], given["features"]
        run = retexo_fl.run(graph=graph, out=tmp_path / f"{clients}", structure="labels", **given)
        curves.append([line[-1] for line in curves_of(run.path)])
    assert curves[0] == pytest.approx(curves[1], abs=1e-9)


def test_sums_of_labels_count_walks_that_do_not_turn_back() -> None:
    rng, nodes = np.random.default_rng(2), 9
    upper = np.triu(rng.random((nodes, nodes)) < 0.5, 1)
    adjacency = upper | upper.T
    indptr = np.concatenate([[0], adjacency.sum(axis=1).cumsum()])
    labels, is_train = rng.integers(0, 3, nodes), rng.random(nodes) < 0.6
    rows, turns = train_labels(labels, is_train, 3), Turns.of(indptr, None)
    kept: list[np.ndarray] = []
    walks = [[node] for node in range(nodes)]
    indices = np.nonzero(adjacency)[1]
    for length in range(1, 5):
        product = sums_along(indptr, indices, None, rows, rows[:0])
        rows, kept = next_sums(product, kept, turns), [*kept, rows]
        walks = [
            [*walk, int(to)]
            for walk in walks
            for to in np.flatnonzero(adjacency[walk[-1]])
            if walk[-2:-1] != [to]
        ]
        expected = np.zeros((nodes, 3))
        for walk in walks:
            if is_train[walk[-1]]:
                expected[walk[0], labels[walk[-1]]] += 1
        assert length == len(kept)
        assert np.array_equal(rows, expected)
    found = label_columns([*kept[1:], rows])
    assert found.shape == (nodes, label_columns_of(3))
    assert np.isfinite(found).all()


@pytest.mark.parametrize("keys", [{"model": "gcn"}, {"model": "dir-sage", "edges_are": "directed"}])
def test_weights_and_directions_are_those_of_the_graph(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    graph = valued(directed="edges_are" in keys)
    made = []
    for clients in (1, 4):
        given = {**EXACT, **keys, "clients": clients, "quiet": True, "profile": "retexo"}
        del given["dataset"], given["features"]
        run = retexo_fl.run(graph=graph, out=tmp_path / f"{clients}", **given)
        made.append(retexo_fl.Run.open(run.path).model()(graph).detach().numpy())
    assert np.abs(made[0] - made[1]).max() < 1e-9


@pytest.mark.slow
def test_agents_make_the_columns_of_a_run_here(tmp_path: Path) -> None:
    allowed: dict[str, object] = {
        "least-train-nodes": 1,
        "allow-algorithms": ["lazy", "propagation"],
    }
    for masks, structure in (("none", "columns"), ("masked", "columns"), ("masked", "labels")):
        keys = {**GRAPH, "clients": 3, "secure_aggregation": masks, "structure": structure}
        here = retexo_fl.run(out=tmp_path / f"here-{structure}-{masks}", quiet=True, **keys)
        values = {**keys, "out": str(tmp_path / f"far-{masks}-{structure}"), "engine": "deployment"}
        del values["features"]
        asked = Asked(values={k.replace("_", "-"): v for k, v in values.items()}).of_run()
        config = settled(asked)
        there = {**config_values(config), "engine": "inline", "features": "none"}
        parts = make_parts(make_config(there))
        settings = allowed if structure == "labels" else {"least-train-nodes": 1}
        with agents(tmp_path / f"{structure[0]}{masks}", parts, settings=settings) as machines:
            far = train_with(machines, config, asked=asked)
        assert model_bytes(far) == model_bytes(here.path)
        moved = [
            ledger_of(run).sum(kind="boundary", purpose="structure") for run in (far, here.path)
        ]
        assert moved[0].payload == moved[1].payload > 0


def test_a_module_and_predictions_make_them_again(tmp_path: Path) -> None:
    keys = {**EXACT, "model": "sage", "quiet": True, "profile": "retexo"}
    run = retexo_fl.run(out=tmp_path / "run", clients=3, **keys)
    graph = {key: EXACT[key] for key in ("dataset", "features")}
    retexo_fl.partition(out=tmp_path / "parts", clients=2, **graph)
    found = run.predict(tmp_path / "parts", quiet=True)
    shares: dict[bytes, list[float]] = {}
    for path in sorted(found.folder.glob("predictions-*.csv")):
        head, *lines = path.read_text().splitlines()
        at = [place for place, name in enumerate(head.split(",")) if name.startswith("p")]
        for line in lines:
            cells = line.split(",")
            shares[cells[0].encode()] = [float(cells[place]) for place in at]
    (part,) = make_parts(configured(Path("run"), **{**EXACT, "clients": 1}))
    edges = np.stack([np.repeat(np.arange(part.num_inner), np.diff(part.indptr)), part.indices])
    order = np.argsort([int(key) for key in part.node_keys])
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    outputs = run.model()({"edge_index": place[edges]}).softmax(dim=1).detach().numpy()
    keys_in_order = [part.node_keys[row] for row in order]
    assert shares.keys() == {*keys_in_order}
    expected = np.array([shares[key] for key in keys_in_order])
    assert np.abs(outputs - expected).max() < 1e-6


# ---- bytes, and what is refused ------------------------------------------------------------------


def planned_and_run(tmp_path: Path, keys: dict[str, Any]) -> tuple[Path, dict[int, int]]:
    """Return a run, and the bytes of vectors that were planned for each exchange of columns."""
    config = configured(Path("run"), **keys)
    parts = load_parts(config)
    shape, planned = ModelShape.of_part(config, parts[0]), PlannedParts(parts)
    expected = {
        stage: sum(stage_payloads(config, shape, planned, stage).values())
        for stage in shape.column_stages
    }
    return train(tmp_path / "run", **keys), expected


@pytest.mark.parametrize("bits", [4, 8, 32])
def test_bytes_are_planned(tmp_path: Path, bits: int) -> None:
    keys = {**GRAPH, "clients": 3, "structure_bits": bits}
    run, planned = planned_and_run(tmp_path, keys)
    ledger = ledger_of(run)
    for stage, expected in planned.items():
        moved = ledger.sum(kind="boundary", purpose="structure", layer=stage).payload
        assert 0 < moved <= expected
        assert moved == expected or bits < 32
    made = result_of(run)["columns"]
    assert made["bytes_between_clients"] == ledger.sum(kind="boundary", purpose="structure").payload
    assert (made["columns"], made["degrees"], made["steps"], made["bits"]) == (8, 1, 5, bits)


def test_labels_cross_without_products_and_are_said(tmp_path: Path) -> None:
    keys = {**GRAPH, "clients": 3, "structure": "labels"}
    run, planned = planned_and_run(tmp_path, keys)
    config, ledger = configured(Path("run"), **keys), ledger_of(run)
    parts = load_parts(config)
    # Three counts of four bytes for each vector.
    dense = 3 * 4 * sum(part.num_boundary for part in parts)
    assert list(planned.values()) == [dense] * 4
    for stage in planned:
        moved = ledger.sum(kind="boundary", purpose="structure", layer=stage).payload
        assert 0 < moved <= dense
    made = result_of(run)["columns"]
    assert (made["structure"], made["columns"], made["steps"]) == ("labels", 16, 4)
    client = InProcessClients(parts, config).find("job-0123456789ab", 0)
    ticket = Ticket(job="job-0123456789ab", attempt=1, stage=max(planned))
    request = StructureRequest(ticket=ticket, weights=np.array([-0.5, 0.8], np.float32))
    with pytest.raises(LocalProtocolError, match="products of label columns"):
        client.ask(request)


def test_columns_of_labels_are_those_of_train_nodes_alone(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels, use = np.arange(60) % 3, rng.integers(0, 3, 60)
    graph = {f"{name}_mask": use == at for at, name in enumerate(("train", "val", "test"))}
    ends = np.sort(rng.integers(0, 60, (2, 200)), axis=0)
    graph["edge_index"] = np.unique(ends[:, ends[0] < ends[1]], axis=1)
    keys: dict[str, Any] = {"structure": "labels", "clients": 2, "rounds": 2, "quiet": True}
    true, false = labels, np.where(use == 2, (labels + 1) % 3, labels)
    one, other = (
        retexo_fl.run(graph={**graph, "y": y}, out=tmp_path / name, **keys).path
        for name, y in (("true", true), ("false", false))
    )
    assert model_bytes(one) == model_bytes(other)


def test_a_prediction_without_train_labels_is_refused(tmp_path: Path) -> None:
    keys = {**EXACT, "structure": "labels", "quiet": True, "profile": "retexo"}
    run = retexo_fl.run(out=tmp_path / "run", clients=3, **keys)
    graph = {key: EXACT[key] for key in ("dataset", "features")}
    bare = make_unlabelled_parts(configured(tmp_path, **{**EXACT, "clients": 2}), 3)
    write_partitions(bare, tmp_path / "bare")
    with pytest.raises(retexo_fl.RetexoError, match="there is no train node"):
        run.predict(tmp_path / "bare", quiet=True)
    with pytest.raises(retexo_fl.RetexoError, match="there is no train node"):
        run.model()({"edge_index": np.array([[0, 1], [1, 2]])})
    retexo_fl.partition(out=tmp_path / "parts", clients=2, split=EXACT["split"], **graph)
    found = run.predict(tmp_path / "parts", quiet=True)
    judged = json.loads((found.folder / "predictions.json").read_text())["labelled"]["test"]
    assert judged["right"] / judged["nodes"] == pytest.approx(run.result.test_accuracy)


def test_agents_learn_labels_of_peers_only_where_owners_let_them(tmp_path: Path) -> None:
    config = configured(tmp_path / "run", **{**GRAPH, "clients": 3, "structure": "labels"})
    (part, *_) = make_parts(config)
    asked = config_values(config)
    with pytest.raises(ConfigurationError, match="structure: 'labels', by which peers learn"):
        admit(asked, part, Limits(least_train_nodes=1))
    admit(asked, part, Limits(least_train_nodes=1, allow_algorithms=("lazy", "propagation")))


def test_a_graph_with_features_is_asked_for_nothing(tmp_path: Path) -> None:
    keys = {**GRAPH, "features": "", "clients": 2}
    run = train(tmp_path / "run", **keys)
    assert ledger_of(run).sum(purpose="structure").messages == 0
    config = configured(Path("run"), **keys)
    client = InProcessClients(load_parts(config), config).find("job-0123456789ab", 0)
    ticket = Ticket(job="job-0123456789ab", attempt=1)
    assert client.ask(HelloRequest(ticket=ticket)).structural is None
    for request in (
        StructureRequest(ticket=ticket),
        WhitenRequest(ticket=ticket, weights=np.zeros(3)),
    ):
        with pytest.raises(LocalProtocolError, match="expected nodes without features"):
            client.ask(request)


def test_columns_are_not_read_before_their_exchange_is_closed() -> None:
    config = configured(Path("run"), **{**GRAPH, "clients": 2})
    client = InProcessClients(load_parts(config), config).find("job-0123456789ab", 0)
    ticket = Ticket(job="job-0123456789ab", attempt=1, stage=client.shape.column_stages[-1])
    request = StructureRequest(ticket=ticket, weights=np.array([-0.5, 0.8], np.float32))
    with pytest.raises(retexo_fl.RetexoError, match="is not closed"):
        client.ask(request)


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        (np.array([0.5, 0.2]), "an interval of eigenvalues is none"),
        (np.array([-0.5, 1.0]), "an interval of eigenvalues is none"),
        (np.array([np.nan, 0.5]), "an interval of eigenvalues is none"),
    ],
)
def test_intervals_that_are_none_are_refused(told: np.ndarray, sentence: str) -> None:
    with pytest.raises(RemoteProtocolError, match=sentence):
        Interval.read(told)
    with pytest.raises(RemoteProtocolError):
        ColumnMap.decode(np.concatenate([told, np.zeros(6)]), degrees=1, columns=2)


def test_names_of_steps_follow_from_each_other() -> None:
    told = np.array([-0.5, 0.8])
    assert chain_digest(chain_digest(b"", None), told) != chain_digest(b"", told)
