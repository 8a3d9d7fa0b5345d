"""Label propagation: rows of classes cross once for each step, and nothing is trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any, Final

import numpy as np
import pytest

from retexo_fl.api.plan_exchanges import PlannedParts
from retexo_fl.api.plan_facts import plan_facts
from retexo_fl.api.plan_profiles import profile_facts
from retexo_fl.client.api import Ticket, TrainRequest
from retexo_fl.client.factory import InProcessClients
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.errors import ConfigurationError, LocalProtocolError, RunDirectoryError
from retexo_fl.federation.run_directory import check_resumable
from retexo_fl.federation.trained_model import read_trained_model
from retexo_fl.graph import GraphPartition
from retexo_fl.training.stage_model import ModelShape
from tests.support.agents import agents, train_with
from tests.support.cli import CommandLine
from tests.support.data import data_dir
from tests.support.runs import configured, events_of, ledger_of, page_of, result_of, train
from tests.support.valued_graphs import VALUED, write_valued
from tests.support.workers import train_in_workers

PROPAGATION: Final[dict[str, Any]] = {"algorithm": "propagation", "layers": 4, "model": "gcn"}
#: About half of its nodes, and none of some clients, have a label that is propagated.
GRAPH: Final[dict[str, Any]] = {
    **PROPAGATION,
    "dataset": "synthetic:nodes=90,edges=200,classes=3,features=12,homophily=0.8,words=4",
    "split": "random:0.2/0.3/0.5",
    "dtype": "float64",
}


def judged(run: Path) -> dict[str, Any]:
    """Return all that is said of the scores."""
    result = result_of(run)
    names = ("val_accuracy", "test_accuracy", "confusion")
    return {**{name: result[name] for name in names}, "loss": result["stages"][-1]["val_loss"]}


def assert_alike(one: Path, other: Path, *, rel: float = 1e-9) -> None:
    """Expect equal answers, of scores that differ in their last digits at most."""
    first, second = judged(one), judged(other)
    assert first.pop("loss") == pytest.approx(second.pop("loss"), rel=rel)
    assert first == second


# ---- what is computed ---------------------------------------------------------------------------


def symmetric(adjacency: np.ndarray) -> np.ndarray:
    """Return D^(-1/2) (A + I) D^(-1/2)."""
    with_self = adjacency + np.eye(len(adjacency))
    scale = 1.0 / np.sqrt(with_self.sum(axis=1))
    scaled: np.ndarray = scale[:, None] * with_self * scale
    return scaled


def row_normalised(adjacency: np.ndarray) -> np.ndarray:
    """Return D^(-1) A; zeros for nodes without edges."""
    means: np.ndarray = adjacency / np.maximum(adjacency.sum(axis=1, keepdims=True), 1e-300)
    return means


def propagated(
    part: GraphPartition, matrix: Callable[[np.ndarray], np.ndarray], steps: int
) -> np.ndarray:
    """Return the (N, C) scores of a whole graph, densely."""
    nodes = part.num_inner
    adjacency = np.zeros((nodes, nodes))
    weights = part.edge_values.weights
    targets = np.repeat(np.arange(nodes), np.diff(part.indptr))
    adjacency[targets, part.indices] = 1.0 if weights is None else weights
    train = np.flatnonzero(part.train_mask)
    labels = np.zeros((nodes, part.num_classes))
    labels[train, part.labels[train]] = 1.0
    scores = labels
    for _ in range(steps):
        scores = matrix(adjacency) @ scores
        scores[train] = labels[train]
    return scores


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("model", "matrix"), [("gcn", symmetric), ("sage", row_normalised)])
def test_scores_are_those_of_the_whole_graph(
    tmp_path: Path, model: str, matrix: Callable[[np.ndarray], np.ndarray], weighted: bool
) -> None:
    keys = {**GRAPH, "model": model}
    if weighted:
        keys |= {**VALUED, "data_dir": write_valued(tmp_path, weighted=True)}
    run = train(tmp_path / "run", clients=3, **keys)
    (part,) = make_parts(configured(tmp_path / "unused", clients=1, **keys))
    scores = propagated(part, matrix, steps=keys["layers"])
    labels, held_out = np.asarray(part.labels), np.flatnonzero(part.val_mask)
    test = np.flatnonzero(part.test_mask)
    found = judged(run)
    assert found["test_accuracy"] == np.mean(scores[test].argmax(axis=1) == labels[test])
    # A node that no label reaches has equal shares; a class that none reaches, one in a million.
    sums = scores.sum(axis=1, keepdims=True)
    shares = np.maximum(np.divide(scores, sums, out=np.zeros_like(scores), where=sums > 0), 1e-6)
    shares /= shares.sum(axis=1, keepdims=True)
    expected = -np.log(shares[held_out, labels[held_out]]).mean()
    assert found["loss"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("model", ["gcn", "sage"])
@pytest.mark.parametrize(
    "keys",
    [
        {"clients": 3},
        {"clients": 2, "partitioner": "louvain"},
        {"clients": 90, "partitioner": "one-node"},
        {"clients": 4, "boundary_plan": "cover"},
        {"clients": 3, "codec": "dense"},
        {"clients": 3, "feature_normalisation": "row", "hidden": 8, "dropout": 0.5, "seed": 0},
    ],
)
@pytest.mark.each_choice
def test_many_partitions_score_as_one(tmp_path: Path, model: str, keys: dict[str, Any]) -> None:
    whole = train(tmp_path / "whole", clients=1, **GRAPH | {"model": model})
    assert_alike(whole, train(tmp_path / "run", **GRAPH | {"model": model, **keys}))


@pytest.mark.real_graphs
@pytest.mark.parametrize(("share", "expected"), [(0.2, 0.785), (0.05, 0.69)])
def test_accuracy_on_cora(tmp_path: Path, share: float, expected: float) -> None:
    cora = {"dataset": "cora", "data_dir": data_dir(), "split": f"random:{share}/0.1/0.7"}
    keys: dict[str, Any] = {**PROPAGATION, **cora, "layers": 10, "clients": 10}
    runs = [train(tmp_path / f"{seed}", **keys, seed=seed) for seed in range(3)]
    assert mean(result_of(run)["test_accuracy"] for run in runs) > expected


# ---- what crosses, and when ---------------------------------------------------------------------


@pytest.mark.parametrize("model", ["gcn", "sage"])
@pytest.mark.parametrize("plan", ["rows", "cover"])
def test_bytes_are_those_of_the_closed_form(tmp_path: Path, model: str, plan: str) -> None:
    keys = {**GRAPH, "model": model, "boundary_plan": plan, "codec": "dense", "clients": 3}
    result = result_of(train(tmp_path / "run", **keys))
    raw, predicted = result["bytes"]["raw"], result["plan"]["predicted_raw"]
    assert {kind: raw[kind] for kind in predicted} == predicted
    config = configured(tmp_path / "unused", **keys)
    planned = PlannedParts(make_parts(config))
    facts = plan_facts(config, planned)["plans"][plan]
    # Four exchanges of three classes in eight bytes, and no weights.
    assert raw["boundary"] == facts["vectors"] * 4 * 3 * 8 > 0
    assert raw["total"] == raw["boundary"] == facts["algorithms"]["propagation"]["total"]
    # There is no lazy training of the same model to compare with.
    assert facts["algorithms"]["propagation"]["gamma"] is None
    assert list(facts["algorithms"]) == ["propagation"]
    assert "propagation" not in _algorithms_of(planned, **keys | {"algorithm": "lazy"})


def _algorithms_of(planned: PlannedParts, **keys: Any) -> dict[str, Any]:
    config = configured(Path("unused"), **keys)
    found: dict[str, Any] = plan_facts(config, planned)["plans"]["rows"]["algorithms"]
    return found


@pytest.mark.parametrize("codec", ["dense", "lossless"])
def test_exchanges_take_what_was_planned_at_most(tmp_path: Path, codec: str) -> None:
    keys = {**GRAPH, "clients": 3, "codec": codec}
    run = train(tmp_path / "run", **keys)
    config = configured(tmp_path / "unused", **keys)
    planned = PlannedParts(make_parts(config))
    first = plan_facts(config, planned)["plans"]["rows"]["first_exchange"][codec]
    assert ledger_of(run).sum(kind="boundary", layer=0).payload == first
    known = profile_facts(config, ModelShape.of_part(config, planned.parts[0]), planned)
    crossed = ledger_of(run).sum(kind="boundary").payload
    assert first < crossed <= known["payload_at_most"]
    assert codec != "dense" or crossed == known["payload_at_most"]
    # Hello, four times publish and collect, validation, test.
    assert (known["rounds"], known["messages"]) == (0, 11)


def test_nothing_is_trained_and_no_layer_predicts(tmp_path: Path) -> None:
    run = train(tmp_path / "run", clients=3, **GRAPH)
    assert not ledger_of(run).sum(purpose="train").messages
    events = events_of(run)
    assert "round" not in {event["event"] for event in events}
    closed = [event for event in events if event["event"] == "stage_end"]
    assert [event["rounds"] for event in closed] == [0] * 4
    assert [event["val_accuracy"] is None for event in closed] == [True] * 3 + [False]
    with pytest.raises(RunDirectoryError, match="left no weights to predict with; exp"):
        read_trained_model(run)
    with pytest.raises(RunDirectoryError, match=r"extend: .*without rounds \(algorithm propag"):
        check_resumable(run, extends=True)
    page = page_of(run)
    assert "NaN" not in page
    assert "after the last exchange" in page
    assert "no round yet" not in page


def test_the_command_plans_and_runs_it(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    retexo = CommandLine(capfd)
    keys = ("--algorithm", "propagation", "--model", "gcn", "--layers", "5", "--clients", "3")
    shown = retexo.done("plan", *keys)
    assert "5 steps, an exchange before each: labels of train nodes first, then scores" in shown
    assert "no rounds" in shown
    facts = json.loads(retexo.done("plan", *keys, "--links", "delay:100ms", "--json"))
    assert facts["algorithm"] == "propagation"
    assert [one["stage"] for one in facts["network"]["exchanges"]] == [0, 1, 2, 3, 4]
    assert "test accuracy" in retexo.done("run", *keys, "--out", tmp_path / "run")


# ---- engines, agents -------------------------------------------------------------


@pytest.mark.system
def test_agents_answer_only_if_their_owners_allow_it(tmp_path: Path) -> None:
    config = configured(tmp_path / "refused", **GRAPH, clients=3)
    settings = {"least-train-nodes": 1}
    with (
        agents(tmp_path / "strict", make_parts(config), settings=settings) as made,
        pytest.raises(ConfigurationError, match="client .: algorithm: 'propagation'; exp"),
    ):
        train_with(made, config)


@pytest.mark.system
def test_both_engines_score_alike_to_the_bit(tmp_path: Path) -> None:
    keys = {**GRAPH, "clients": 3, "dtype": "float32"}
    inline = train(tmp_path / "inline", **keys)
    flower = train_in_workers(tmp_path / "flower", **keys)
    assert judged(flower) == judged(inline)
    assert ledger_of(flower).sum(kind="boundary") == ledger_of(inline).sum(kind="boundary")


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keys",
    [
        {"task": "regression"},
        {"task": "links"},
        {"model": "gat"},
        {"model": "gin"},
        {"solver": "ridge"},
        {"basis": "supervised"},
        {"loss": "focal:2"},
        {"class_weights": "balanced"},
        {"local_steps": 2},
        {"optimizer": "lbfgs"},
        {"aggregator": "median"},
        {"warm_start": True},
        {"update_bits": 8},
        {"weight_bits": 8},
        {"devices": "cpu:2"},
        {"min_clients": 2, "round_deadline_s": 9.0},
    ],
)
def test_what_has_nothing_to_train_is_refused(keys: dict[str, Any]) -> None:
    key, value = next((key.replace("_", "-"), value) for key, value in keys.items())
    told = f"algorithm: propagation .*{key} '?{value!s}'?, .*expected {key} "
    with pytest.raises(ConfigurationError, match=told):
        configured(Path("unused"), **PROPAGATION | keys)


def test_a_client_answers_no_question_for_an_update() -> None:
    config = make_config({"algorithm": "propagation", "model": "gcn", "clients": 2})
    clients = InProcessClients(make_parts(config), config)
    ticket = Ticket(job="job-0123456789ab", attempt=1, stage=1, round=1)
    request = TrainRequest(ticket=ticket, weights=np.zeros(0, np.float32))
    with pytest.raises(LocalProtocolError, match="stage 1: asked to train; expected evaluations"):
        clients.find(ticket.job, 0).ask(request)
