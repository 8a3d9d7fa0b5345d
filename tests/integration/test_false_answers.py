"""One client's answers are not what its hello promised: the run ends, and names the client."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import Message

from retexo_fl.client import api
from retexo_fl.client.answers import SumFacts, sums_of
from retexo_fl.client.api import (
    BasisAnswer,
    BasisRequest,
    PredictAnswer,
    PredictRequest,
    Ticket,
)
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.errors import RemoteProtocolError, RetexoError, TrainingDiverged
from retexo_fl.federation.rounds.checked_answers import check_sums
from retexo_fl.graph import GraphPartition
from tests.support.fickle_training import node_of, train_on_fickle_grid
from tests.support.promises import hello_of
from tests.support.runs import configured, result_of

KEYS: dict[str, Any] = {"clients": 2, "rounds": 1, "hidden": 4, "layers": 2, "codec": "fixed"}
#: Client 1's Flower node.
_LIAR = node_of(1)


@cache
def parts() -> list[GraphPartition]:
    return make_parts(make_config({"clients": 2}))


def _train(
    out: Path, kind: str, changes: dict[str, Any], *, of_test: bool = False, **keys: Any
) -> None:
    """Train while client 1's answers to messages of one kind say something else."""

    def lie(message: Message, reply: Message) -> Message:
        asked = message.content.config_records["retexo"]
        if of_test and asked.get("nodes") != "test":
            return reply
        if message.metadata.message_type == kind and message.metadata.dst_node_id == _LIAR:
            told = reply.content
            found: list[Any] = [*told.metric_records.values(), *told.config_records.values()]
            for name, value in changes.items():
                found[0][name] = value
        return reply

    train_on_fickle_grid(configured(out, **{**KEYS, **keys}), parts(), see=lie)


def test_who_tells_the_truth_is_believed(tmp_path: Path) -> None:
    _train(tmp_path / "run", api.TRAIN.message_type, {})
    assert 0 < result_of(tmp_path / "run")["test_accuracy"] <= 1


@pytest.mark.parametrize(
    ("kind", "name", "value", "error"),
    [
        (api.HELLO.message_type, "client", 7, RemoteProtocolError),
        (api.HELLO.message_type, "client", -1, RemoteProtocolError),
        (api.HELLO.message_type, "nodes", -1, RemoteProtocolError),
        (api.HELLO.message_type, "nodes", 2**60, RemoteProtocolError),
        (api.HELLO.message_type, "train", 10**9, RemoteProtocolError),
        (api.HELLO.message_type, "test", -1, RemoteProtocolError),
        (api.HELLO.message_type, "vectors-out", 2**60, RemoteProtocolError),
        (api.HELLO.message_type, "vectors-later", [2**40], RemoteProtocolError),
        (api.HELLO.message_type, "vectors-later", [0], RemoteProtocolError),
        (api.HELLO.message_type, "vectors-drawn", 2**60, RemoteProtocolError),
        (api.HELLO.message_type, "partitioning", "x" * 129, RemoteProtocolError),
        (api.HELLO.message_type, "partitioning", "\x1b[2J", RemoteProtocolError),
        (api.PUBLISH.message_type, "vectors", 2**60, RemoteProtocolError),
        (api.PUBLISH.message_type, "vectors", 0, RemoteProtocolError),
        (api.PUBLISH.message_type, "boundary-raw", 2**60, RemoteProtocolError),
        (api.PUBLISH.message_type, "error-bound", [math.nan], RemoteProtocolError),
        (api.PUBLISH.message_type, "error-bound", [0.1, 0.1], RemoteProtocolError),
        (api.COLLECT.message_type, "missing", 1, RemoteProtocolError),
        (api.COLLECT.message_type, "missing-peers", 2, RemoteProtocolError),
        (api.TRAIN.message_type, "num-examples", 2**60, RemoteProtocolError),
        (api.TRAIN.message_type, "num-examples", 10**6, RemoteProtocolError),
        (api.TRAIN.message_type, "num-examples", 0, RemoteProtocolError),
        (api.TRAIN.message_type, "loss-sum", math.nan, TrainingDiverged),
        (api.TRAIN.message_type, "loss-sum", -0.1, RemoteProtocolError),
        (api.TRAIN.message_type, "loss-sum", [0.5], RemoteProtocolError),
        (api.TRAIN.message_type, "validation-examples", 1, RemoteProtocolError),
        (api.TRAIN.message_type, "validation-correct", 10**9, RemoteProtocolError),
        (api.TRAIN.message_type, "validation-loss-sum", -math.inf, TrainingDiverged),
        (api.TRAIN.message_type, "validation-loss-sum", -1e9, RemoteProtocolError),
        (api.EVALUATE.message_type, "num-examples", 2**40, RemoteProtocolError),
        (api.EVALUATE.message_type, "correct", 10**9, RemoteProtocolError),
        (api.EVALUATE.message_type, "loss-sum", math.nan, TrainingDiverged),
        (api.EVALUATE.message_type, "loss-sum", -1e-9, RemoteProtocolError),
        (api.EVALUATE.message_type, "report-length", 2**40, RemoteProtocolError),
        (api.EVALUATE.message_type, "own", [0.5, 0.5], RemoteProtocolError),
    ],
)
def test_what_cannot_be_ends_the_run_and_names_the_client(
    tmp_path: Path, kind: str, name: str, value: Any, error: type[RetexoError]
) -> None:
    client = value if name == "client" else 1
    with pytest.raises(error, match=f"^client {client}: .*{name.replace('-', '.')}"):
        _train(tmp_path / "run", kind, {name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("label-uses", [8] * 10),
        ("label-uses", [7] * 9),
        ("label-sums", [1.0] * 10),
        ("label-sums", [200.0] * 9),
        ("label-sums", [-1.0] * 10),
        ("label-sums", [math.nan] * 10),
        ("label-sums", []),
    ],
)
def test_train_nodes_by_class_are_as_many_as_there_are(
    tmp_path: Path, name: str, value: list[float]
) -> None:
    with pytest.raises(RemoteProtocolError, match=f"^client 1: .*{name}"):
        _train(tmp_path / "run", api.HELLO.message_type, {name: value}, class_weights="balanced")


@pytest.mark.parametrize(
    ("kind", "changes", "error"),
    [
        (api.TRAIN, {"validation-metric-values": [math.inf] * 30}, TrainingDiverged),
        (api.TRAIN, {"validation-metric-length": 29}, RemoteProtocolError),
        (api.TRAIN, {"validation-metric-values": [1.0] * 29}, RemoteProtocolError),
        (api.TRAIN, {"validation-metric-places": [30]}, RemoteProtocolError),
        (api.EVALUATE, {"metric-values": [math.nan] * 30}, TrainingDiverged),
        (api.EVALUATE, {"metric-length": 2**40}, RemoteProtocolError),
    ],
)
def test_sums_of_a_metric_are_those_of_its_classes(
    tmp_path: Path, kind: api.Question, changes: dict[str, Any], error: type[RetexoError]
) -> None:
    with pytest.raises(error, match=r"^client 1: "):
        _train(tmp_path / "run", kind.message_type, changes, metric="macro-f1")


@pytest.mark.devices
@pytest.mark.parametrize(("count", "is_refused"), [(0, True), (1, False), (1000, True)])
def test_a_round_of_some_nodes_is_of_no_more_than_there_are(
    tmp_path: Path, count: int, is_refused: bool
) -> None:
    sampled = {"sampler": "full", "batch_nodes": 4}
    keys: dict[str, Any] = {"algorithm": "drop", "codec": "lossless", **sampled}
    if not is_refused:
        _train(tmp_path / "run", api.TRAIN.message_type, {"num-examples": count}, **keys)
        return
    with pytest.raises(RemoteProtocolError, match=r"^client 1: num-examples is .*; expected 1 to"):
        _train(tmp_path / "run", api.TRAIN.message_type, {"num-examples": count}, **keys)


@pytest.mark.devices
@pytest.mark.parametrize(
    ("told", "sampler", "refused"),
    [
        ([4.0, 2.0, 1.0, 8.0, 0.0], "full", ""),
        ([4.0, 2.0, 1.0, 8.0], "full", "cached is .*; expected 5 counts"),
        ([4.0, 2.5, 1.0, 8.0, 0.0], "full", "cached is .*; expected 5 counts"),
        ([4.0, 2.0, 1.0, 2.0**63, 0.0], "full", "cached is .*; expected 5 counts"),
        ([4.0, -2.0, 1.0, 8.0, 0.0], "full", "cached is .*; expected a number from 0"),
        ([4.0, 2.0, 1.0, 8.0, 0.0], "none", "it sent cached rows; expected none"),
    ],
)
def test_cached_rows_are_counts_where_any_are_told(
    tmp_path: Path, told: list[float], sampler: str, refused: str
) -> None:
    keys: dict[str, Any] = {"algorithm": "drop", "sampler": sampler, "codec": "lossless"}
    run = tmp_path / "run"
    changes = {"cached": told}
    if not refused:
        _train(run, api.EVALUATE.message_type, changes, of_test=True, **keys)
        (stage,) = result_of(run)["stages"]
        assert stage["cached"]["rows"] == 3
        return
    with pytest.raises(RemoteProtocolError, match=f"^client 1: {refused}"):
        _train(run, api.EVALUATE.message_type, changes, of_test=True, **keys)


def test_cached_rows_are_told_at_the_test_alone(tmp_path: Path) -> None:
    changes = {"cached": [4.0, 2.0, 1.0, 8.0, 0.0]}
    with pytest.raises(RemoteProtocolError, match="^client 1: it sent cached rows; expected none"):
        _train(tmp_path / "run", api.EVALUATE.message_type, changes)


ASKED = PredictRequest(
    ticket=Ticket(job="predict-0123456789ab", attempt=1), weights=np.zeros(0), form="csv"
)
PREDICTED = PredictAnswer(
    nodes=10,
    train=4,
    train_correct=4,
    validation=3,
    validation_correct=3,
    test=3,
    test_correct=3,
)


@pytest.mark.parametrize(
    ("name", "value"), [("nodes", 11), ("train", 0), ("test_correct", 4), ("train_correct", 2**40)]
)
def test_predictions_are_of_the_nodes_that_there_are(name: str, value: int) -> None:
    hello, changes = hello_of(1), cast(Any, {name: value})
    declared = sums_of(ASKED, SumFacts())
    check_sums(hello, PREDICTED, declared)
    with pytest.raises(RemoteProtocolError, match=f"^client 1: {name.replace('_', '-')} is"):
        check_sums(hello, replace(PREDICTED, **changes), declared)


def test_over_no_nodes_there_are_no_sums() -> None:
    declared = sums_of(ASKED, SumFacts(metric=2))
    told = {name: api.SparseSums.of(np.ones(2)) for name in ("validation_metric", "test_metric")}
    answer = replace(PREDICTED, **cast(Any, told))
    check_sums(hello_of(1), answer, declared)
    none = replace(answer, test=0, test_correct=0)
    with pytest.raises(RemoteProtocolError, match="^client 1: test-metric-length is 2; expected 0"):
        check_sums(hello_of(1, test=0), none, declared)
    check_sums(hello_of(1, test=0), replace(none, test_metric=api.SparseSums()), declared)


def test_squares_add_up_to_no_less_than_0() -> None:
    answer = BasisAnswer(sums=np.zeros(5), examples=4, squares=(2.0, -0.5))
    declared = sums_of(BasisRequest(ticket=ASKED.ticket), SumFacts())
    with pytest.raises(RemoteProtocolError, match=r"^client 1: squares is \(2.0, -0.5\); expected"):
        check_sums(hello_of(1), answer, declared)
    check_sums(hello_of(1), replace(answer, squares=(2.0, 0.0)), declared)


def test_sums_of_predictions_are_finite() -> None:
    sums = api.SparseSums(length=2, places=(1,), values=(math.nan,))
    with pytest.raises(TrainingDiverged, match="^client 1: test-metric-values is nan"):
        check_sums(hello_of(1), replace(PREDICTED, test_metric=sums), sums_of(ASKED, SumFacts()))
