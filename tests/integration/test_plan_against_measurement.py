"""What `retexo plan` predicts is what the ledgers of real runs hold.

Measured from ``ledger.csv`` by code that knows no closed form.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from retexo_fl.cli.plan_facts import plan_facts
from retexo_fl.client.preparation import load_parts
from retexo_fl.ledger import TrafficLedger
from sims.measured import MeasuredVolume, measured_gamma
from tests.support.data import cora_dir
from tests.support.runs import configured, result_of, train

KEYS = {"dataset": "cora", "hidden": 16, "rounds": 2, "model": "sage"}


@pytest.mark.parametrize("clients", [2, 4, 8])
def test_measured_volumes_and_gamma_are_the_predicted_ones(tmp_path: Path, clients: int) -> None:
    predicted = _predicted(clients=clients)["algorithms"]
    runs = {}
    for algorithm in ("lazy", "standard", "bns", "drop"):
        runs[algorithm] = _train(tmp_path / algorithm, clients=clients, algorithm=algorithm)
        measured, expected = MeasuredVolume.of(runs[algorithm]), predicted[algorithm]
        assert measured.boundary_training == expected["boundary_training"], algorithm
        assert measured.boundary_evaluation == expected["boundary_evaluation"], algorithm
        assert measured.updates_up == expected["updates_up"], algorithm
        totals = result_of(runs[algorithm])["bytes"]["raw"]
        assert totals["weights_down"] == expected["weights_down"], algorithm
        assert totals["total"] == expected["total"], algorithm
        assert measured_gamma(runs["lazy"], runs[algorithm]) == expected["gamma"], algorithm


def test_central_run_moves_what_was_predicted(tmp_path: Path) -> None:
    expected = _predicted(clients=1)["algorithms"]["central"]
    run = _train(tmp_path / "run", clients=1, algorithm="central")
    assert result_of(run)["bytes"]["raw"]["total"] == expected["total"]


@pytest.mark.parametrize(("model", "plan"), [("gcn", "rows"), ("gcn", "cover"), ("sage", "rows")])
def test_payload_is_predicted_for_all_codecs(tmp_path: Path, model: str, plan: str) -> None:
    keys = {"model": model, "layers": 3, "clients": 3, "boundary_plan": plan}
    facts = _predicted(**keys)
    payload = facts["algorithms"]["lazy"]["payload"]
    for codec in ("dense", "lossless", "fixed"):
        run = _train(tmp_path / codec, codec=codec, **keys)
        with (run / "ledger.csv").open() as lines:
            ledger = TrafficLedger.from_csv(lines)
        first = ledger.sum(kind="boundary", layer=0).payload
        moved = ledger.sum(kind="boundary").payload
        assert first == facts["first_exchange"][codec]
        assert moved <= payload[codec]["boundary_at_most"]
        assert codec != "dense" or moved == payload[codec]["boundary_at_most"]


def test_result_holds_the_prediction_of_its_own_algorithm(tmp_path: Path) -> None:
    plans, moved = {}, {}
    for algorithm in ("standard", "bns", "drop"):
        result = result_of(_train(tmp_path / algorithm, clients=3, algorithm=algorithm))
        plans[algorithm], moved[algorithm] = result["plan"], result["bytes"]["raw"]
        for kind, expected in plans[algorithm]["predicted_raw"].items():
            assert expected == moved[algorithm][kind], (algorithm, kind)
    predicted = _predicted(clients=3)["algorithms"]
    for algorithm in ("standard", "bns"):
        assert plans[algorithm]["gamma"] == predicted["standard"]["gamma"]
        assert plans[algorithm]["standard_raw_total"] == moved["standard"]["total"]
    # Its clients have no edges between them to count.
    assert plans["drop"]["gamma"] is None


def test_standard_moves_fewer_vectors_along_a_cover_as_predicted(tmp_path: Path) -> None:
    totals = {}
    for plan in ("rows", "cover"):
        keys = {"clients": 3, "boundary_plan": plan, "algorithm": "standard"}
        run = _train(tmp_path / plan, **keys)
        totals[plan] = result_of(run)["bytes"]["raw"]["total"]
        assert totals[plan] == _predicted(**keys)["algorithms"]["standard"]["total"]
    assert totals["cover"] < totals["rows"]


@pytest.mark.parametrize(
    "keys", [{"clients": 3}, {"clients": 30, "basis_blocks": 3, "model": "gcn"}]
)
def test_a_basis_takes_what_was_predicted(tmp_path: Path, keys: dict[str, Any]) -> None:
    keys = {**keys, "algorithm": "lazy", "basis": "supervised", "codec": "dense"}
    found = result_of(_train(tmp_path / "run", **keys))["bytes"]["raw"]
    predicted = _predicted(**keys)["algorithms"]["lazy"]
    for kind in ("boundary", "updates_up", "weights_down", "total"):
        assert found[kind] == predicted[kind], kind


def _train(out: Path, **keys: Any) -> Path:
    return train(out, **{**KEYS, "data_dir": cora_dir(), **keys})


def _predicted(**keys: Any) -> dict[str, Any]:
    config = configured(Path("unused"), **{**KEYS, "data_dir": cora_dir(), **keys})
    facts = plan_facts(config, load_parts(config))
    predicted: dict[str, Any] = facts["plans"][facts["boundary_plan"]]
    return predicted
