"""Models that are found in no round: sums over neighbours, and a ridge regression of the last."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.client.api import GramRequest, Ticket
from retexo_fl.client.client import GraphClient
from retexo_fl.client.factory import InProcessClients
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.errors import (
    ConfigurationError,
    ExchangeIncomplete,
    LocalProtocolError,
    RemoteProtocolError,
    TrainingDiverged,
)
from retexo_fl.graph import write_partitions
from tests.support.cli import CommandLine
from tests.support.data import cora_dir
from tests.support.predictions import summary_of
from tests.support.runs import (
    events_of,
    ledger_of,
    model_bytes,
    model_weights,
    result_of,
    train,
)
from tests.support.ways import profile_keys

ONE_SHOT: dict[str, Any] = profile_keys("one-shot")
PLAIN: dict[str, Any] = {
    **{"solver": "ridge", "basis": "supervised", "basis_blocks": 2, "dtype": "float64"}
}


def test_cora_takes_less_than_a_megabyte_and_is_as_accurate(tmp_path: Path) -> None:
    cora = {"dataset": "cora", "data_dir": cora_dir(), "clients": 10, "model": "gcn"}
    keys: dict[str, Any] = {**ONE_SHOT, **cora}
    runs = [train(tmp_path / f"{seed}", **keys, seed=seed) for seed in range(3)]
    # 100 + 100 rounds of Adam: 0.8485 in the mean of five seeds (sims/results/lean.md).
    assert np.mean([result_of(run)["test_accuracy"] for run in runs]) > 0.8485
    assert max(result_of(run)["bytes"]["payload"]["total"] for run in runs) < 815_000


def test_clients_are_asked_for_products_once_and_train_in_no_round(tmp_path: Path) -> None:
    run = train(tmp_path / "run", **ONE_SHOT, clients=3, model="sage")
    ledger = ledger_of(run)
    # Of each client once, over one channel there and back.
    assert ledger.sum(purpose="gram", direction="in").messages == 3
    assert not ledger.sum(purpose="train").messages
    closed = [event for event in events_of(run) if event["event"] == "stage_end"]
    assert [event["rounds"] for event in closed] == [0, 1]
    assert result_of(run)["test_accuracy"] > 0.9


@pytest.mark.parametrize("model", ["gcn", "sage"])
@pytest.mark.parametrize("basis", ["none", "supervised"])
def test_bytes_are_those_of_the_closed_form(tmp_path: Path, model: str, basis: str) -> None:
    keys = {**PLAIN, "codec": "dense", "model": model, "basis": basis}
    found = result_of(train(tmp_path / "run", **keys, clients=3))
    raw, predicted = found["bytes"]["raw"], found["plan"]["predicted_raw"]
    assert {kind: raw[kind] for kind in predicted} == predicted
    # Digits: 64 features, 10 classes.
    width = (20 if basis == "supervised" else 64) * (4 if model == "sage" else 1)
    products = (width + 1) * (width + 2) // 2 + (width + 1) * 10
    ledger = ledger_of(tmp_path / "run")
    assert ledger.sum(kind="updates_up", purpose="gram").raw == 3 * 8 * products


@pytest.mark.parametrize("masked", ["none", "masked"])
def test_validation_nodes_choose_the_penalty_in_the_same_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, masked: str
) -> None:
    # Of few train nodes the two differ.
    split = {"split": "random-unstratified:0.03/0.1/0.7", "clients": 4}
    keys = {**PLAIN, **split, "codec": "dense", "model": "gcn", "secure_aggregation": masked}
    runs = {
        name: train(tmp_path / name, **keys, ridge_penalty=name) for name in ("gcv", "validation")
    }
    # Digits: 20 coordinates and a one, 10 classes.
    products = 21 * 22 // 2 + 21 * 10
    for name, values in (("gcv", products), ("validation", 2 * products + 1)):
        found = ledger_of(runs[name]).sum(kind="updates_up", purpose="gram")
        raw, predicted = (result_of(runs[name])["bytes"]["raw"], result_of(runs[name])["plan"])
        if masked == "none":
            assert found.raw == 4 * 8 * values
            assert raw["updates_up"] == predicted["predicted_raw"]["updates_up"]
    weights = {name: model_weights(run)["layer-1/layer.weight"] for name, run in runs.items()}
    assert np.abs(weights["gcv"] - weights["validation"]).max() > 1e-6
    losses = {name: result_of(run)["stages"][-1]["val_loss"] for name, run in runs.items()}
    assert losses["validation"] != losses["gcv"]
    # Agents leave few validation nodes out of sums in the clear.
    monkeypatch.setattr(GraphClient, "least_validation", 10_000)
    few = train(tmp_path / "few", **keys, ridge_penalty="validation")
    as_well = runs["gcv" if masked == "none" else "validation"]
    assert model_bytes(few) == model_bytes(as_well)


def test_the_model_predicts_what_it_was_tested_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    retexo = CommandLine(capfd)
    parts = tmp_path / "parts"
    write_partitions(make_parts(make_config({"clients": 3})), parts)
    shown = retexo.done("run", "--profile", "one-shot", "--clients", "3", "--out", tmp_path / "run")
    assert "test accuracy" in shown
    retexo.done("predict", tmp_path / "run", "--partitions", parts, "--quiet")
    test = summary_of(parts)["labelled"]["test"]
    assert test["right"] / test["nodes"] == result_of(tmp_path / "run")["test_accuracy"] > 0.9
    page = (tmp_path / "run" / "report.html").read_text()
    assert "NaN" not in page
    assert "It has no rounds: rows cross, and nothing is trained." in page
    # Of coordinates there is no such comparison.
    assert "Standard training" not in page


def test_the_plan_knows_its_messages(capfd: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(CommandLine(capfd).done("plan", "--json"))["profiles"]["one-shot"]
    # Hello, features with their mean, two blocks, two exchanges, validation and test.
    assert (facts["rounds"], facts["messages"]) == (1, 8)


@pytest.mark.parametrize(
    "keys",
    [
        {"model": "gat"},
        {"model": "gin"},
        {"algorithm": "standard"},
        {"aggregator": "median"},
        {"loss": "focal:2"},
        {"class_weights": "balanced"},
        {"local_steps": 2},
        {"min_clients": 2, "round_deadline_s": 9.0},
    ],
)
def test_what_is_not_linear_or_no_sum_is_refused(tmp_path: Path, keys: dict[str, Any]) -> None:
    key, value = next((key.replace("_", "-"), value) for key, value in keys.items())
    with pytest.raises(ConfigurationError, match=f"solver: ridge .*{key} .*{value}.*expected"):
        train(tmp_path / "run", solver="ridge", **keys)
    assert not (tmp_path / "run" / "result.json").exists()


def test_a_client_answers_no_products_that_it_does_not_solve_with() -> None:
    parts = make_parts(make_config({"clients": 2}))
    ticket = Ticket(job="job-0123456789ab", attempt=1, stage=1)
    for keys, stage in (({}, 1), ({"solver": "ridge"}, 0)):
        clients = InProcessClients(parts, make_config({"clients": 2, **keys}))
        with pytest.raises(LocalProtocolError, match=f"stage {stage}: asked for sums of products"):
            clients.find(ticket.job, 0).ask(GramRequest(ticket=replace(ticket, stage=stage)))


def test_a_client_without_nodes_adds_zeros_without_rows() -> None:
    """In the clear; under masks test_masked_constancy has it answer as all others do."""
    config = make_config({"clients": 3, "solver": "ridge"})
    first, *others = make_parts(config)
    none = np.zeros(first.num_inner, bool)
    parts = [replace(first, train_mask=none, val_mask=none), *others]
    clients = InProcessClients(parts, config)
    asked = GramRequest(ticket=Ticket(job="job-0123456789ab", attempt=1, stage=1))
    answer = clients.find(asked.ticket.job, 0).ask(asked)
    assert (answer.examples, np.abs(answer.sums).max()) == (0, 0)
    with pytest.raises(ExchangeIncomplete, match="stage 1 is not closed"):
        clients.find(asked.ticket.job, 1).ask(asked)


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        (lambda a: replace(a, examples=a.examples + 1), RemoteProtocolError, "num-examples"),
        (lambda a: replace(a, sums=a.sums[1:]), RemoteProtocolError, "shape"),
        (lambda a: replace(a, sums=a.sums * np.float32(np.nan)), TrainingDiverged, "not finite"),
    ],
)
def test_false_products_end_the_run_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, error: type[Exception], told: str
) -> None:
    from retexo_fl.methods.ridge.answers import RidgeClient

    answer = RidgeClient.gram

    def lying(client: RidgeClient, request: GramRequest) -> Any:
        honest = answer(client, request)
        return change(honest) if client.crossing.plan.client == 1 else honest

    monkeypatch.setattr(RidgeClient, "gram", lying)
    with pytest.raises(error, match=f"client 1: .*{told}"):
        train(tmp_path / "run", **ONE_SHOT, clients=3)
