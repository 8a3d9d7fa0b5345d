"""What `retexo plan` predicts is what the ledgers of real runs hold.

Measured from ``ledger.csv`` by code that knows no closed form.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.api.plan_exchanges import PlannedParts
from retexo_fl.api.plan_facts import plan_facts
from retexo_fl.client.api import CollectRequest
from retexo_fl.client.moved import moved_length
from retexo_fl.client.preparation import load_parts
from retexo_fl.graph import Graph, Split
from retexo_fl.graph.splits import make_split
from retexo_fl.ledger import SERVER, TrafficLedger
from retexo_fl.simulation.links import Link, parse_link
from tests.support.data import cora_dir
from tests.support.measured_volume import MeasuredVolume, measured_gamma
from tests.support.runs import configured, ledger_of, result_of, train
from tests.support.ways import profile_keys

#: Sparse features, more of them than a layer is wide, as Cora has.
KEYS = {
    "dataset": "synthetic:nodes=300,edges=600,classes=7,features=150,words=8,signal=0.4",
    **{"hidden": 16, "rounds": 2, "model": "sage"},
}


@pytest.mark.parametrize("clients", [2, 8])
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
        saved = facts["first_exchange"]["dense"] - first
        for name in ("lazy", "standard", "drop"):
            dense, coded = (facts["algorithms"][name]["payload"][of] for of in ("dense", codec))
            for key in ("boundary_at_most", "total_at_most"):
                assert dense[key] - coded[key] == (0 if name == "drop" else saved), name


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
    "keys",
    [
        {"clients": 3},
        {"clients": 30, "basis_blocks": 3, "model": "gcn"},
        *({"clients": 4, "basis_rows": "choose", "basis_blocks": blocks} for blocks in (2, 3, 5)),
        {"clients": 4, "second_rows": "none", "row_dp": 2.0},
    ],
)
def test_a_basis_takes_what_was_predicted(tmp_path: Path, keys: dict[str, Any]) -> None:
    keys = {**keys, "algorithm": "lazy", "basis": "supervised", "codec": "dense"}
    found = result_of(_train(tmp_path / "run", **keys))["bytes"]["raw"]
    predicted = _predicted(**keys)["algorithms"]["lazy"]
    for kind in ("boundary", "updates_up", "weights_down", "total"):
        assert found[kind] == predicted[kind], kind


QUORUM = {"min_clients": 3, "round_deadline_s": 60.0, "message_timeout_s": 60.0}


@pytest.mark.parametrize(
    "keys",
    [
        {"clients": 3},
        {"clients": 4, "update_bits": 8, "weight_bits": 8},
        {"clients": 5, "update_bits": 1, **QUORUM, "min_clients": 4},
        {"clients": 3, "dtype": "float64", "metric": "macro-f1", "class_weights": "balanced"},
        {"clients": 4, "basis": "supervised", "basis_blocks": 2, **QUORUM},
        {"clients": 4, "basis": "supervised", "basis_rows": "sums", "model": "gcn"},
        {"clients": 4, "basis": "supervised", "second_rows": "none", "row_dp": 2.0},
        *(
            {"clients": 4, "basis": "supervised", "basis_rows": "choose", "basis_blocks": blocks}
            for blocks in (2, 3, 5)
        ),
        {"clients": 5, "solver": "ridge", "model": "gcn", "basis": "supervised"},
        *(
            {**profile_keys("one-shot"), "clients": 4, "model": "gcn", "update_dp": 4.0, **basis}
            for basis in ({"basis": "none"}, {"basis_blocks": 1}, {"basis_rows": "own"})
        ),
        {"clients": 4, "algorithm": "standard", "update_bits": 4},
        {"clients": 4, "algorithm": "propagation", "model": "gcn"},
        {"clients": 5, "algorithm": "drop", "rounds": 1, **QUORUM, "min_clients": 4},
        pytest.param(
            {"clients": 4, "algorithm": "drop", "sampler": "gns", "batch_nodes": 64},
            marks=pytest.mark.devices,
        ),
        {"clients": 4, "task": "links", "model": "gcn", "hidden": 8},
        # One client validates and does not train, then three do.
        {"clients": 5, "split": f"{__name__}:few_train", **QUORUM},
        pytest.param(
            {"clients": 7, "split": f"{__name__}:few_train", **QUORUM}, marks=pytest.mark.slow
        ),
        # Of 5 cohorts.
        {"clients": 25, "rounds": 1, "hidden": 2, **QUORUM, "min_clients": 6},
    ],
)
@pytest.mark.each_choice
def test_masked_sums_take_what_was_predicted(tmp_path: Path, keys: dict[str, Any]) -> None:
    keys = {"dataset": "digits", **keys, "secure_aggregation": "masked"}
    config = configured(tmp_path / "run", **{**KEYS, **keys})
    facts = plan_facts(config, PlannedParts(load_parts(config)))
    masked, plan = facts["masked"], facts["plans"][facts["boundary_plan"]]
    ledger = ledger_of(_train(tmp_path / "run", **keys))
    assert ledger.sum(kind="updates_up").payload == masked["updates_up"]
    assert ledger.sum(kind="masks").payload == masked["keys"]
    if config.weight_bits == 32 and "split" not in keys:
        # Where validation nodes do not count, weights are not sent for them.
        predicted = plan["algorithms"][config.algorithm]["weights_down"]
        assert ledger.sum(kind="weights_down").raw == predicted
    asked = ("counts", "labels", "basis", "choice", "gram", "train", "evaluate", "collect")
    of_answers = {"kind": "control", "direction": "out", "peer": SERVER}
    answers = {what: ledger.sum(purpose=what, **of_answers) for what in asked}
    # Whether an exchange is complete is told beside that, and 0 of what is not told.
    moved = len("moved") + 8 * (1 + moved_length(CollectRequest))
    complete = len("completemissingmissing-peers") + 17
    exchanges, rest = divmod(answers["collect"].payload, complete + moved)
    told = sum(volume.payload for volume in answers.values()) - exchanges * complete
    assert (told, rest) == (masked["beside"], 0)


def few_train(graph: Graph, assignment: np.ndarray, seed: int) -> Split:
    """Have three clients train, and all but the last validate."""
    found = make_split(graph, assignment, split="random:0.2/0.2/0.6", seed=seed)
    train, val = np.asarray(found.train), np.asarray(found.val)
    return replace(found, train=train & (assignment < 3), val=val & (assignment < assignment.max()))


def _train(out: Path, **keys: Any) -> Path:
    return train(out, **{**KEYS, "data_dir": cora_dir(), **keys})


def _predicted(**keys: Any) -> dict[str, Any]:
    config = configured(Path("unused"), **{**KEYS, "data_dir": cora_dir(), **keys})
    facts = plan_facts(config, PlannedParts(load_parts(config)))
    predicted: dict[str, Any] = facts["plans"][facts["boundary_plan"]]
    return predicted


FAST, SLOW = "4g", "rate:2mbit/delay:5ms"
#: By links, how much more of a run's modelled time its planned messages may take: few bits are
#: coded shorter than their bits, which counts where the rate is low. And how much less, for a
#: message's other values.
MOST_MORE = {FAST: 0.05, SLOW: 0.2}
MOST_LESS = 0.02
#: Planned times are of stages as they are.
LEAN = profile_keys("lean", "rounds", "candidates")


@pytest.mark.parametrize(
    ("links", "keys"),
    [
        *((links, {"dataset": "cora", **LEAN}) for links in MOST_MORE),
        (SLOW, {"dataset": "cora", **LEAN, "basis_rows": "sums", "model": "gcn"}),
        (SLOW, {"dataset": "cora", **LEAN, "basis_rows": "choose"}),
        (FAST, {"dataset": "digits", **LEAN, "update_bits": 4, "clients": 5}),
        (SLOW, {"dataset": "digits", **LEAN, "basis": "none", "weight_bits": 32}),
        (FAST, {"dataset": "digits", "algorithm": "standard", "weight_bits": 4, "codec": "dense"}),
        (FAST, {"dataset": "digits", "secure_aggregation": "masked", "update_bits": 8}),
        (SLOW, {"dataset": "digits", "secure_aggregation": "masked", **QUORUM}),
        (
            SLOW,
            {
                **profile_keys("one-shot"),
                **{"dataset": "digits", "secure_aggregation": "masked", "update_dp": 4.0},
            },
        ),
        (SLOW, {"dataset": "digits", "algorithm": "drop", "weight_bits": 8, "patience": 10}),
        # Sums of a ranking are values of messages, too, of which the plan knows nothing.
        (SLOW, {"dataset": "digits", "task": "links", "metric": "log-loss", "codec": "dense"}),
    ],
)
@pytest.mark.each_choice
def test_a_run_over_links_takes_the_planned_messages(
    tmp_path: Path, links: str, keys: dict[str, Any]
) -> None:
    # None of the stages has as many rounds as patience, so that all are trained.
    more = {"clients": 3, "hidden": 32, "rounds": 8, "links": links, **keys}
    config = configured(tmp_path / "run", **{**KEYS, "data_dir": cora_dir(), **more})
    planned = plan_facts(config, PlannedParts(load_parts(config)))["network"]
    network = result_of(_train(tmp_path / "run", **more))["network"]
    expected_s = _planned_s(planned, parse_link(links))
    assert -MOST_LESS < expected_s / network["seconds"] - 1 < MOST_MORE[links]


def _planned_s(planned: dict[str, Any], link: Link) -> float:
    """Return what planned messages and exchanges take in the model of links that a run has.

    It knows neither connections nor Flower's requests (docs/links.md). In a process vectors are
    sent in a message of its own, since nobody can wait for them.
    """
    delay_s, byte_s = float(link.delay_s), float(link.byte_s)
    found_s = _messages_s(planned["messages"], link)
    found_s += sum(2 * delay_s for one in planned["messages"] if one["first"])
    for one in planned["exchanges"]:
        sent_s = delay_s + one["payload_bytes"] * byte_s
        # Before a stage, the server's next question is under way for as long as there and back.
        before_s = 2 * delay_s if one["count"] == 1 else 0.0
        found_s += one["count"] * max(0.0, sent_s - before_s)
    return found_s


def _messages_s(messages: list[dict[str, Any]], link: Link) -> float:
    found_s = 0.0
    for one in messages:
        size_bytes = (one["down_bytes"] or 0) + (one["up_bytes"] or 0)
        found_s += one["count"] * (2 * float(link.delay_s) + size_bytes * float(link.byte_s))
    return found_s
