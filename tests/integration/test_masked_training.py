"""Trainings whose sums the server sees under masks alone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from retexo_fl.client import api
from retexo_fl.client.weights import ClientWeights
from retexo_fl.config import make_config
from retexo_fl.errors import (
    ConfigurationError,
    RemoteProtocolError,
    RoundIncomplete,
    SecureAggregationRefused,
    TrainingDiverged,
)
from retexo_fl.federation import records
from retexo_fl.graph import Graph, Split
from retexo_fl.graph.splits import make_split
from retexo_fl.masking.keys import SecretKeys
from retexo_fl.simulation.inline_engine import run_inline
from retexo_fl.training.end_to_end import EndToEndTrainer
from retexo_fl.training.layer_trainer import LayerTrainer
from tests.support.each_choice import by_day
from tests.support.fickle_grid import FickleGrid
from tests.support.fickle_training import Change, node_of, nothing
from tests.support.masked_training import (
    HALVES,
    MASKED,
    QUORUM,
    cohort_of,
    parts,
    train_in,
    without_masks,
)
from tests.support.runs import (
    configured,
    events_of,
    ledger_of,
    model_bytes,
    page_of,
    result_of,
    stop_after,
    train,
)
from tests.support.ways import takes_devices


def courses(run: Path) -> list[dict[str, Any]]:
    """Return a run's events without their times."""
    timed = ("time_s", "seconds", "waited_s", "open_s")
    return [{k: v for k, v in event.items() if k not in timed} for event in events_of(run)]


WAYS: dict[str, dict[str, Any]] = {
    "lazy": {},
    "few bits": {"update_bits": 8, "weight_bits": 8},
    "one bit": {"update_bits": 1, "weight_bits": 4},
    "standard": {"algorithm": "standard"},
    "bns": {"algorithm": "bns", "boundary_rate": 0.5},
    "drop": {"algorithm": "drop"},
    "sampled": {"algorithm": "drop", "sampler": "neighbour", "fanouts": "5/5", "batch_nodes": 64},
    "basis": {"basis": "supervised", "basis_blocks": 2},
    "lean": {"basis": "supervised", "basis_rows": "sums", "update_bits": 8, "weight_bits": 8},
    "choice": {"basis": "supervised", "basis_rows": "choose", "basis_blocks": 4},
    "ridge": {"solver": "ridge", "model": "gcn"},
    "balanced": {"model": "gat", "heads": 2, "class_weights": "balanced", "metric": "macro-f1"},
    "ranking": {"model": "gin", "metric": "roc-auc", "dtype": "float64"},
    "links": {"task": "links", "model": "gcn", "hidden": 8},
}


#: Those that the table of compositions (test_composition.py) has no cell of.
def named(way: str) -> Any:
    """Return a way as a parameter, which takes mini-batches or not."""
    return pytest.param(way, marks=[pytest.mark.devices] if takes_devices(WAYS[way]) else [])


#: Each masks something else: updates in bits, rounds that exchange, samples, rows that a basis
#: chooses, a regression's products, counts of a metric.
OF_DAY: Final = ("few bits", "standard", "sampled", "choice", "ridge", "ranking")


@pytest.mark.parametrize(
    "way",
    [
        *(named(way) for way in OF_DAY),
        *(
            pytest.param(way, marks=pytest.mark.slow)
            for way in WAYS
            if way not in {"lazy", "links", *OF_DAY}
        ),
    ],
)
def test_masked_equals_the_same_whole_numbers_in_the_clear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    keys = {**MASKED, "rounds": 2, **WAYS[way]}
    masked = train(tmp_path / "masked", **keys)
    without_masks(monkeypatch)
    clear = train(tmp_path / "clear", **keys)
    assert model_bytes(masked) == model_bytes(clear)
    assert courses(masked) == courses(clear)
    assert ledger_of(masked).totals() == ledger_of(clear).totals()


@pytest.mark.parametrize(
    "way",
    by_day(
        ("lazy", "standard", "balanced", "ranking", "links", "ridge"),
        *("lazy", "ranking", "ridge"),
        others=pytest.mark.slow,
    ),
)
def test_whole_numbers_train_as_floats_do(tmp_path: Path, way: str) -> None:
    keys = {**MASKED, **WAYS[way]}
    masked = result_of(train(tmp_path / "masked", **keys))
    plain = result_of(train(tmp_path / "plain", **keys | {"secure_aggregation": "none"}))
    assert masked["test_accuracy"] == pytest.approx(plain["test_accuracy"], abs=0.01)
    for stage, known in zip(masked["stages"], plain["stages"], strict=True):
        if known["val_loss"] is not None:
            assert stage["val_loss"] == pytest.approx(known["val_loss"], rel=1e-3)
    # Of cohorts the same is known that of clients is in the clear.
    tables = masked["client_table"], plain["client_table"]
    for name in ("nodes", "train", "val", "test", "boundary_vectors_in", "boundary_vectors_out"):
        ours, theirs = (sum(row[name] for row in table) for table in tables)
        assert ours == theirs > 0, name
    assert [row["cohort"] for row in masked["client_table"]] == [[0, 1, 2, 3]]
    assert ">clients 0, 1, 2, 3<" in page_of(tmp_path / "masked")
    assert masked["plan"] == plain["plan"]


def test_answers_of_broken_cohorts_are_not_enough_to_close_a_round(tmp_path: Path) -> None:
    """Four of six answer, but of both cohorts one is missing."""
    one = cohort_of(0)[1]
    other = next(client for client in range(6) if client not in cohort_of(0))

    def change(grid: FickleGrid, message: Message) -> None:
        if message.metadata.message_type == api.TRAIN.message_type:
            grid.weather.mute = {node_of(one), node_of(other)}

    keys = {**QUORUM, **HALVES, "min_clients": 4, "message_timeout_s": 1.0}
    with pytest.raises(RoundIncomplete, match=f"no answer from client {min(one, other)}"):
        train_in(tmp_path / "run", change, **keys)


def test_clients_of_broken_cohorts_are_not_enough_to_begin_with(tmp_path: Path) -> None:
    """Four of six say hello by the deadline, and sums could be asked of none of them."""
    one = cohort_of(0)[1]
    other = next(client for client in range(6) if client not in cohort_of(0))
    looks = count()

    def come_late(grid: FickleGrid) -> None:
        grid.weather.mute = {node_of(one), node_of(other)} if next(looks) < 200 else set()

    def change(grid: FickleGrid, message: Message) -> None:
        del message
        grid.on_look = partial(come_late, grid)

    keys = {**QUORUM, **HALVES, "min_clients": 4}
    late = train_in(tmp_path / "late", change, **keys)
    assert next(looks) > 200
    assert model_bytes(late) == model_bytes(train_in(tmp_path / "all", nothing, **keys))


def test_that_few_bits_cut_a_value_in_a_thousand_is_counted_and_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = train(tmp_path / "run", **MASKED | {"rounds": 10, "hidden": 16}, update_bits=8)
    assert sum(event.get("cut", 0) for event in events_of(run)) > 0
    assert "exceeded" not in caplog.text


def test_a_basis_is_of_the_cohorts_that_answered_first(tmp_path: Path) -> None:
    """By whose squares its sums are bounded."""
    asked: list[tuple[int, int]] = []

    def change(grid: FickleGrid, message: Message) -> None:
        if message.metadata.message_type == api.BASIS.message_type:
            asked.append((records.read_request(message).ticket.round, _client_of(message)))
            grid.weather.mute = {node_of(1)} if not asked[-1][0] else set()

    keys = {**QUORUM, **HALVES, "rounds": 1, "basis": "supervised", "basis_blocks": 2}
    train_in(tmp_path / "run", change, **keys)
    there = {*range(6)} - {*cohort_of(1)}
    assert {client for number, client in asked if number == 2} == there


def _client_of(message: Message) -> int:
    return message.metadata.dst_node_id - node_of(0)


def test_a_resumed_attempt_has_new_keys_and_the_same_model(tmp_path: Path) -> None:
    seen: list[bytes] = []

    def see(message: Message, reply: Message) -> Message:
        if message.metadata.message_type == api.HELLO.message_type:
            seen.append(reply.content.config_records["retexo"]["mask-key"])  # type: ignore[arg-type]
        return reply

    whole = train(tmp_path / "whole", **MASKED)
    config = configured(tmp_path / "run", **MASKED)
    with pytest.raises(KeyboardInterrupt):
        run_inline(config, parts(), [stop_after(2, stage=1)])
    train_in(tmp_path / "run", nothing, see=see, resume=str(tmp_path / "run"))
    assert model_bytes(tmp_path / "run") == model_bytes(whole)
    train_in(tmp_path / "other", nothing, see=see)
    assert len(set(seen)) == len(seen) == 8


def test_checkpoints_hold_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets: list[bytes] = []
    drawn = SecretKeys.draw

    def draw() -> SecretKeys:
        found = drawn()
        secrets.extend([found.private, found.own])
        return found

    monkeypatch.setattr(SecretKeys, "draw", draw)
    run = train(tmp_path / "run", **MASKED, **QUORUM)
    assert len(secrets) == 8
    written = b"".join(path.read_bytes() for path in run.rglob("*") if path.is_file())
    assert not any(secret in written or secret.hex().encode() in written for secret in secrets)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"aggregator": "median"}, "does not go with aggregator 'median'"),
        ({"aggregator": "norm-clipping"}, "does not go with aggregator"),
        ({"per_client_metrics": True}, "does not go with per-client-metrics True"),
        ({"algorithm": "central"}, "does not go with algorithm central"),
        ({"missing_peers": "drop"}, "does not go with missing-peers 'drop'"),
        ({"clients": 2}, "clients 2; expected 3 clients at least"),
        ({"min_clients": 2, "round_deadline_s": 1.0}, "min-clients 2; expected 3 at least"),
        (
            {"local_steps": 2, "local_optimizer": "sgd", "local_correction": "scaffold"},
            "does not go with local-correction 'scaffold'",
        ),
        (
            {"introductions": True, "engine": "deployment"},
            "does not go with introductions True",
        ),
        (
            {"relay": True, "engine": "deployment"},
            "does not go with relay true and codec lossless, by whose lengths",
        ),
    ],
)
def test_what_cannot_be_masked_is_refused_before_a_round(
    changes: dict[str, Any], sentence: str
) -> None:
    values = {key.replace("_", "-"): value for key, value in {**MASKED, **changes}.items()}
    with pytest.raises(ConfigurationError, match=sentence):
        make_config(values)


def fails(*given: Any, **named: Any) -> Any:
    del named
    raise FloatingPointError(f"the data of client 2: {given}")


@pytest.mark.parametrize("way", [*map(named, ("lazy", "drop", "sampled", "standard"))])
def test_what_a_client_cannot_compute_is_told_of_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Where its peers wait for the rest of a round it says one sentence; else it adds zeros."""
    # By the last of these mini-batches are validated.
    whole = [(EndToEndTrainer, name) for name in ("update_steps", "tally_steps")]
    for trainer, name in ((LayerTrainer, "update"), *whole):
        monkeypatch.setattr(trainer, name, fails)
    expected, sentence = {
        "standard": (SecureAggregationRefused, "an answer could not be computed; the log of its"),
    }.get(way, (TrainingDiverged, "train.layer: 4 values of all clients could not be computed"))
    with pytest.raises(expected, match=sentence) as told:
        train(tmp_path / "run", **{**MASKED, **WAYS[way]})
    assert "data" not in str(told.value)
    assert "2" not in str(told.value)


@pytest.mark.parametrize("way", ["standard", "bns"])
def test_a_run_that_a_failure_amid_a_round_has_ended_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    keys = {**MASKED, **WAYS[way], "rounds": 3}
    whole = train(tmp_path / "whole", **keys)
    run, calls, steps = tmp_path / "run", count(1), EndToEndTrainer.update_steps

    def breaks(self: EndToEndTrainer, *given: Any, **named: Any) -> Any:
        # Of the second of four clients, in the second round.
        return fails() if next(calls) == 6 else steps(self, *given, **named)

    monkeypatch.setattr(EndToEndTrainer, "update_steps", breaks)
    with pytest.raises(SecureAggregationRefused) as told:
        train(run, **keys)
    sentence = "an answer could not be computed; the log of its agent says why"
    # In one process, all of a round are stepped for the first.
    assert (str(told.value), told.value.exit_code) == (f"client 0: {sentence}", 1)
    train(run, **keys, resume=run)
    assert [event["attempt"] for event in events_of(run) if event["event"] == "start"] == [1, 2]
    assert model_bytes(run) == model_bytes(whole)
    assert result_of(run)["stages"] == result_of(whole)["stages"]


def test_a_round_that_is_asked_twice_tells_what_it_moved_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client lost the weights that a message changes; its peers had its rows of others."""
    keys = {**MASKED, **WAYS["standard"], "weight_bits": 8, "update_bits": 8, "rounds": 3}
    once = ledger_of(train(tmp_path / "once", **keys))
    held, calls = ClientWeights.held, [0]

    def forgotten(self: ClientWeights, *named: Any) -> Any:
        calls[0] += self._client == 1
        # Of the third round: then the stage's first weights give other rows.
        return None if calls[0] == 3 and self._client == 1 else held(self, *named)

    monkeypatch.setattr(ClientWeights, "held", forgotten)
    twice = ledger_of(train(tmp_path / "twice", **keys))
    assert calls[0] > 3
    messages = [ledger.sum(kind="boundary", purpose="train").messages for ledger in (once, twice)]
    assert messages[1] == messages[0] * 4 // 3


def few_train(graph: Graph, assignment: np.ndarray, seed: int) -> Split:
    """Have two of four clients train."""
    found = make_split(graph, assignment, split="random:0.2/0.1/0.7", seed=seed)
    train = np.asarray(found.train)
    return replace(found, train=train & (assignment < 2))


def test_too_few_clients_with_train_nodes_are_refused(tmp_path: Path) -> None:
    keys = {**MASKED, "split": "tests.integration.test_masked_training:few_train"}
    with pytest.raises(
        ConfigurationError, match="2 clients of 4 have train nodes; expected 3 at least in a cohort"
    ):
        train(tmp_path / "run", **keys)


def change_request(kind: str, **changes: Any) -> Change:
    """Return a change: client 1 is asked messages of a kind with other values in the terms."""

    def change(grid: FickleGrid, message: Message) -> None:
        del grid
        if message.metadata.message_type == kind and message.metadata.dst_node_id == node_of(1):
            for name, value in changes.items():
                message.content.config_records["retexo"][name] = value

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            change_request(api.KEYS.message_type, **{"mask-cohort": [0, 1]}),
            "a sum of 2 clients; expected 3 at least",
        ),
        (
            change_request(api.KEYS.message_type, **{"mask-cohort": [0, 2, 3]}),
            "clients in ascending order, client 1 among them",
        ),
        (
            change_request(api.KEYS.message_type, keys=bytes(128)),
            "two clients have the same masking key",
        ),
        (
            change_request(api.KEYS.message_type, keys=bytes(range(128))),
            "another masking key than the client's own",
        ),
    ],
)
def test_keys_that_would_tell_more_are_refused_by_the_client(
    tmp_path: Path, change: Change, sentence: str
) -> None:
    def own(grid: FickleGrid, message: Message) -> None:
        # Messages share their content; only one is to differ.
        content = RecordDict(dict(message.content))
        content["retexo"] = ConfigRecord(dict(message.content.config_records["retexo"]))
        message.content = content
        change(grid, message)

    with pytest.raises(SecureAggregationRefused, match=sentence):
        train_in(tmp_path / "run", own)


def test_a_client_that_is_shown_other_weights_spoils_the_sum(tmp_path: Path) -> None:
    """Model inconsistency (arXiv 2111.07380): masks no longer cancel, so nothing is learned."""

    def change(grid: FickleGrid, message: Message) -> None:
        del grid
        if (
            message.metadata.message_type == api.TRAIN.message_type
            and message.metadata.dst_node_id == node_of(1)
        ):
            weights = records.weights_of(message.content.array_records["weights"])
            content = RecordDict(dict(message.content))
            content["weights"] = records.weights_record(weights + 1)
            message.content = content

    with pytest.raises(RemoteProtocolError, match="a masked sum has|the sum over clients"):
        train_in(tmp_path / "run", change)
