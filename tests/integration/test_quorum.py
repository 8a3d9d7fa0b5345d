"""Rounds that are closed without some clients: min-clients and round-deadline-s."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from retexo_fl.client import api
from retexo_fl.client.api import HelloAnswer, TrainRequest
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.errors import ConfigurationError, RoundIncomplete
from retexo_fl.federation import records
from retexo_fl.federation.rounds import checked_answers
from retexo_fl.graph import GraphPartition
from retexo_fl.simulation.inline_engine import run_inline
from tests.support.fickle_grid import FickleGrid
from tests.support.fickle_training import Change, node_of, train_on_fickle_grid
from tests.support.runs import (
    configured,
    events_of,
    ledger_of,
    model_bytes,
    model_weights,
    result_of,
)

KEYS: dict[str, Any] = {
    "clients": 3,
    "rounds": 4,
    "hidden": 4,
    "layers": 2,
    "dtype": "float64",
    "missing_peers": "drop",
}
QUORUM: dict[str, Any] = {"min_clients": 2, "round_deadline_s": 0.3, "message_timeout_s": 20.0}
#: Flower node of client 1.
NODE = node_of(1)


@cache
def parts() -> list[GraphPartition]:
    """Return the parts of all trainings here, cut once."""
    return make_parts(make_config({"clients": 3}))


def train_in(out: Path, change: Change, **keys: Any) -> Path:
    """Train while ``change`` may do to the grid what it likes before each message is sent."""
    train_on_fickle_grid(configured(out, **{**KEYS, **keys}), parts(), change)
    return out


def during(rounds: set[tuple[int, int]]) -> Change:
    """Return a change: client 1 answers nothing in these (stage, round)."""

    def change(grid: FickleGrid, message: Message) -> None:
        if message.metadata.message_type == api.TRAIN.message_type:
            ticket = records.read_request(message).ticket
            grid.weather.mute = {NODE} if (ticket.stage, ticket.round) in rounds else set()

    return change


def without_update(rounds: set[tuple[int, int]]) -> Callable[[Message, Message], Message]:
    """Return what takes client 1 out of the sums of these (stage, round)."""

    def replace(message: Message, reply: Message) -> Message:
        if (
            message.metadata.message_type != api.TRAIN.message_type
            or message.metadata.dst_node_id != NODE
        ):
            return reply
        ticket = records.read_request(message).ticket
        if (ticket.stage, ticket.round) in rounds:
            weights = records.weights_of(reply.content.array_records["weights"])
            reply.content["weights"] = records.weights_record(np.zeros_like(weights))
            metrics = reply.content.metric_records["metrics"]
            for name, value in metrics.items():
                metrics[name] = 0.0 if isinstance(value, float) else 0
        return reply

    return replace


def test_rounds_without_a_client_are_sums_without_its_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = {(0, 2), (0, 3), (1, 1)}
    got = train_in(tmp_path / "quorum", during(rounds), **QUORUM)

    def change(grid: FickleGrid, message: Message) -> None:
        del message
        grid.weather.replace = without_update(rounds)

    def believe(hello: HelloAnswer, answer: object, declared: object) -> None:
        del hello, answer, declared

    # Nothing is what a client with train nodes may not answer.
    monkeypatch.setattr(checked_answers, "check_sums", believe)
    wanted = train_in(tmp_path / "sums", change)
    assert model_bytes(got) == model_bytes(wanted)
    events = [event for event in events_of(got) if event["event"] == "round"]
    assert {(e["stage"], e["round"]) for e in events if e.get("absent") == [1]} == rounds
    assert result_of(got)["absences"] == {"1": 3}
    assert result_of(wanted)["absences"] == {}


def test_a_client_that_was_away_gets_weights_whole(tmp_path: Path) -> None:
    few: dict[str, Any] = {
        **{"update_bits": 8, "weight_bits": 8, "row_bits": 8, "basis_bits": 8},
        **{"basis": "supervised", "basis_blocks": 2, "optimizer": "lbfgs", "dropout": 0.0},
        **{"dtype": "float32", "hidden": 32, "warm_start": True, "patience": 9},
    }
    rounds = {(0, 2), (0, 3), (1, 1)}
    runs = [
        train_in(tmp_path / name, during(away), **few, **QUORUM)
        for name, away in (("away", rounds), ("there", set()))
    ]
    results = [result_of(run) for run in runs]
    assert [result["absences"] for result in results] == [{"1": 3}, {}]
    down = [ledger_of(run).sum(kind="weights_down", client=1).payload for run in runs]
    assert down[0] > down[1]
    assert results[0]["test_accuracy"] > results[1]["test_accuracy"] - 0.05


def test_a_client_that_missed_the_first_round_is_corrected_when_it_is_back(tmp_path: Path) -> None:
    keys = {"local_steps": 2, "local_optimizer": "sgd", "local_correction": "scaffold"}
    rounds = {(0, 2), (1, 1)}
    sizes: dict[tuple[int, int], int] = {}

    def change(grid: FickleGrid, message: Message) -> None:
        during(rounds)(grid, message)
        request = records.read_request(message)
        if isinstance(request, TrainRequest) and message.metadata.dst_node_id == NODE:
            sizes[request.ticket.stage, request.ticket.round] = len(request.weights)

    run = train_in(tmp_path / "run", change, **keys, **QUORUM)
    assert result_of(run)["absences"] == {"1": 2}
    for stage_index in (0, 1):
        found = [sizes[stage_index, number] for number in range(1, 5)]
        assert found == [found[0], *[2 * found[0]] * 3]
    again = train_in(tmp_path / "again", during(rounds), **keys, **QUORUM)
    assert model_bytes(again) == model_bytes(run)
    there = train_in(tmp_path / "there", during(set()), **keys, **QUORUM)
    assert model_bytes(there) != model_bytes(run)


def test_deadline_that_is_never_reached_changes_no_bit(tmp_path: Path) -> None:
    quorum, default = tmp_path / "quorum", tmp_path / "default"
    run_inline(configured(quorum, **KEYS, min_clients=2, round_deadline_s=600.0), parts())
    run_inline(configured(default, **KEYS), parts())
    assert model_bytes(quorum) == model_bytes(default)
    assert [e.get("absent") for e in events_of(quorum)] == [None] * len(events_of(quorum))


def test_client_that_missed_an_exchange_catches_up_and_trains(tmp_path: Path) -> None:
    """It is away from the second exchange on, and back for the third round of its stage."""

    left: list[bool] = []

    def change(grid: FickleGrid, message: Message) -> None:
        ticket, kind = records.read_request(message).ticket, message.metadata.message_type
        if kind == api.PUBLISH.message_type and ticket.stage == 1 and not left:
            left.append(True)
            grid.weather.away = {NODE}
        if kind == api.TRAIN.message_type and (ticket.stage, ticket.round) == (1, 2):
            grid.weather.away = set()

    out = train_in(tmp_path / "run", change, engine="deployment", **QUORUM)
    rounds = [e for e in events_of(out) if e["event"] == "round" and e["stage"] == 1]
    assert [e.get("absent") for e in rounds] == [[1], [1], None, None]
    exchanges = [e for e in events_of(out) if e["event"] == "exchange"]
    assert exchanges[0]["missing"] == 0
    assert exchanges[1]["missing"] > 0
    assert all(np.isfinite(tensor).all() for tensor in model_weights(out).values())


def test_client_absent_from_the_start_is_left_out(tmp_path: Path) -> None:
    def change(grid: FickleGrid, message: Message) -> None:
        grid.weather.away = {NODE}

    out = train_in(tmp_path / "run", change, engine="deployment", **QUORUM)
    events = events_of(out)
    assert events[0]["absent"] == [1]
    assert events[1]["missing"] > 0
    assert [row["client"] for row in result_of(out)["client_table"]] == [0, 2]
    rounds = [event for event in events if event["event"] == "round"]
    assert result_of(out)["absences"] == {"1": len(rounds)}


def test_too_few_clients_end_the_run_by_name(tmp_path: Path) -> None:
    def change(grid: FickleGrid, message: Message) -> None:
        if message.metadata.message_type == api.TRAIN.message_type:
            grid.weather.mute = {NODE, NODE + 1}

    keys = {**QUORUM, "message_timeout_s": 0.5}
    with pytest.raises(RoundIncomplete, match="no answer from client 1, client 2 .*0.5 s"):
        train_in(tmp_path / "run", change, **keys)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"min-clients": 2}, "round-deadline-s: got 0; expected .* min-clients"),
        ({"round-deadline-s": 5}, "min-clients: got 0; expected .* round-deadline-s"),
        ({"min-clients": 6, "round-deadline-s": 5}, "min-clients: got 6; expected at most 5"),
        ({"engine": "deployment", "partitions": "parts"}, "partitions: 'parts' does not go with"),
        ({"engine": "deployment", "data-dir": "data"}, "data-dir: 'data' does not go with"),
        ({"engine": "deployment", "links": "4g"}, "links: '4g' cannot be modelled"),
    ],
)
def test_keys_that_contradict_are_refused(keys: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        make_config(keys)


def test_deployment_calls_its_graph_by_name_or_parts() -> None:
    assert make_config({"engine": "deployment"}).graph_name == "parts"
    assert make_config({"engine": "deployment", "dataset": "cora"}).graph_name == "cora"


def test_aggregator_that_needs_more_clients_is_refused(tmp_path: Path) -> None:
    keys = {"aggregator": "krum:1", "min_clients": 2, "round_deadline_s": 5.0}
    with pytest.raises(ConfigurationError, match="aggregator: .*got 2"):
        run_inline(configured(tmp_path / "run", **KEYS, **keys), parts())
