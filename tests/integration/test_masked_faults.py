"""Masked rounds whose clients answer late, too few, or what cannot be: errors name the client."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from retexo_fl.client import api
from retexo_fl.errors import (
    PartitionError,
    RemoteProtocolError,
    RetexoError,
    RoundIncomplete,
    SecureAggregationRefused,
)
from retexo_fl.federation import records
from tests.support.fickle_grid import FickleGrid
from tests.support.fickle_training import Change, See, node_of, nothing
from tests.support.masked_training import QUORUM, away_in, train_in
from tests.support.runs import events_of, model_bytes

HELLO, KEYS = api.HELLO.message_type, api.KEYS.message_type
TRAIN, OPEN = api.TRAIN.message_type, api.OPEN.message_type
DROP: dict[str, Any] = {**QUORUM, "missing_peers": "drop"}
#: Of five openers, four are needed.
FIVE: dict[str, Any] = {
    **DROP,
    "clients": 5,
    "min_clients": 4,
    "layers": 1,
    "message_timeout_s": 3.0,
}


def rounds(run: Path) -> list[dict[str, Any]]:
    return [event for event in events_of(run) if event["event"] == "round"]


# ---- answers that come late, or not -------------------------------------------------------------


def test_a_late_answer_is_in_no_sum(tmp_path: Path) -> None:
    heard: list[tuple[str, int, str]] = []

    def see(message: Message, reply: Message) -> Message:
        kind, node = message.metadata.message_type, message.metadata.dst_node_id
        heard.append((kind, node, message.metadata.group_id))
        return reply

    run = train_in(tmp_path / "run", away_in({(0, 2): 1}), see=see, **DROP)
    trained = [(node, group) for kind, node, group in heard if kind == TRAIN]
    # The answer to round 2 came, and after it the one to round 3, which counts.
    late = trained.index((node_of(1), "1.0.2"))
    assert trained[late - 1] == (node_of(0), "1.0.3") or trained[late - 1][1] == "1.0.2"
    assert (node_of(1), "1.0.3") in trained[late:]
    of_stage = [event for event in rounds(run) if event["stage"] == 0]
    assert [event["summed"] for event in of_stage] == [4, 3, 4, 4]
    assert [event.get("absent", []) for event in of_stage] == [[], [1], [], []]
    # It was not asked to open a round that it had not answered.
    opened = [node for kind, node, group in heard if (kind, group) == (OPEN, "1.0.2")]
    assert opened == [node_of(0), node_of(2), node_of(3)]
    assert heard.index((TRAIN, node_of(1), "1.0.2")) > heard.index((OPEN, node_of(0), "1.0.2"))


def trial_of(message: Message) -> int:
    trial = message.content.config_records["retexo"].get("mask-trial", 0)
    assert isinstance(trial, int)
    return trial


def mute_at(places: dict[tuple[str, int], set[int]]) -> Change:
    """Return a change: by kind of message and trial, who is silent in round 2."""

    def change(grid: FickleGrid, message: Message) -> None:
        kind = message.metadata.message_type
        if kind == TRAIN:
            ticket = records.read_request(message).ticket
            trial = trial_of(message) if ticket.round == 2 else -1
            grid.weather.mute = {node_of(c) for c in places.get((kind, trial), set())}
        elif kind == OPEN:
            asked = records.read_request(message)
            assert isinstance(asked, api.OpenRequest)
            trial = asked.asked_with.trial if asked.ticket.round == 2 else -1
            grid.weather.mute = {node_of(c) for c in places.get((kind, trial), set())}

    return change


def test_a_round_that_is_asked_again_is_of_the_clients_of_before(tmp_path: Path) -> None:
    """Client 4 is away, then too few open; it is back, and stays out of this round's sum."""
    away = {(TRAIN, 0): {4}, (OPEN, 0): {3, 4}}
    run = train_in(tmp_path / "run", mute_at(away), **FIVE)
    assert [event.get("absent", []) for event in rounds(run)] == [[], [4], [], []]
    other = train_in(tmp_path / "other", mute_at({(TRAIN, 0): {4}}), **FIVE)
    assert model_bytes(run) == model_bytes(other)
    assert [event.get("absent", []) for event in rounds(other)] == [[], [4], [], []]


@pytest.mark.parametrize(
    ("again", "sentence"),
    [
        (
            {(TRAIN, 1): {4}},
            r"train\.layer: asked again because too few clients opened the sum, and now client 4 "
            "did not answer; expected all of before",
        ),
        (
            {(OPEN, 1): {3, 4}},
            "no answer from client 3, client 4 within 3 s",
        ),
    ],
)
def test_a_round_that_cannot_go_on_ends_the_run_which_resumes(
    tmp_path: Path, again: dict[tuple[str, int], set[int]], sentence: str
) -> None:
    whole = train_in(tmp_path / "whole", nothing, **FIVE)
    run = tmp_path / "run"
    with pytest.raises(RoundIncomplete, match=sentence):
        train_in(run, mute_at({(OPEN, 0): {3, 4}, **again}), **FIVE)
    train_in(run, nothing, **FIVE, resume=str(run))
    assert model_bytes(run) == model_bytes(whole)


# ---- what cannot be -----------------------------------------------------------------------------

Values = dict[str, Any]


def told(kind: str, change: Callable[[Values], object], *, client: int = 1) -> See:
    """Return a see: what a client answers to messages of a kind has other values."""

    def see(message: Message, reply: Message) -> Message:
        is_it = message.metadata.dst_node_id == node_of(client)
        if message.metadata.message_type == kind and is_it:
            content = RecordDict(dict(reply.content))
            values = dict(content.config_records["retexo"])
            change(values)
            content["retexo"] = ConfigRecord(values)
            reply.content = content
        return reply

    return see


def cut(name: str) -> Callable[[Values], object]:
    return lambda values: values.update({name: values[name][:-1]})


def flipped(name: str, at: int = 40) -> Callable[[Values], object]:
    def change(values: Values) -> None:
        content = bytearray(values[name])
        content[at] ^= 1
        values[name] = bytes(content)

    return change


def in_the_clear(values: Values) -> None:
    del values["mask-key"]
    values["label-uses"] = [7] * 10


@pytest.mark.parametrize(
    ("see", "sentence"),
    [
        (told(HELLO, in_the_clear), "client 1: sent no masking key; expected one"),
        (
            told(HELLO, lambda values: values.update({"mask-key": bytes(31)})),
            "client 1: bytes of mask-key is 31; expected 32",
        ),
        (
            told(HELLO, lambda values: values.update({"mask-signature": bytes(64)})),
            "client 0: its masking key is not signed; expected a signature",
        ),
        (
            told(HELLO, lambda values: values.update(version=12)),
            f"client 1: message version 12; expected {api.MESSAGE_VERSION}",
        ),
        (told(KEYS, flipped("digest", 0)), "client 1: it believes other masking keys"),
        (told(TRAIN, cut("numbers")), r"client 1: masked numbers have \d+ bytes; expected"),
        (told(TRAIN, cut("beside")), r"client 1: masked numbers have \d+ bytes; expected"),
        (told(TRAIN, cut("shares")), r"client 1: \d+ bytes of sealed shares; expected"),
        (
            told(TRAIN, lambda values: values.pop("shares")),
            "client 1: 0 bytes of sealed shares; expected",
        ),
        (
            told(TRAIN, lambda values: values.update({"numbers": b"", "beside": b""})),
            "client 1: masked numbers have 0 bytes; expected",
        ),
        (told(OPEN, cut("shares")), r"client 1: told 127 bytes of shares; expected 128"),
        (
            told(OPEN, flipped("shares")),
            "client 1: shares of a mask do not fit together, as clients 0, 1, 2, 3 told them",
        ),
    ],
)
def test_what_a_client_sends_that_cannot_be_names_it(
    tmp_path: Path, see: See, sentence: str
) -> None:
    with pytest.raises((RemoteProtocolError, PartitionError), match=sentence):
        train_in(tmp_path / "run", nothing, see=see, **DROP)


def test_shares_that_were_not_sealed_name_opener_and_owner(tmp_path: Path) -> None:
    with pytest.raises(
        SecureAggregationRefused,
        match=r"client 0: train\.layer 1/0/1/0: shares of client 1 were not sealed for this sum",
    ):
        train_in(tmp_path / "run", nothing, see=told(TRAIN, flipped("shares")), **DROP)


def test_a_run_that_a_client_refused_resumes(tmp_path: Path) -> None:
    whole = train_in(tmp_path / "whole", nothing, **DROP)
    run = tmp_path / "run"

    def later(message: Message, reply: Message) -> Message:
        is_later = message.metadata.group_id == "1.1.1"
        return told(TRAIN, flipped("shares"))(message, reply) if is_later else reply

    with pytest.raises(RetexoError, match="were not sealed"):
        train_in(run, nothing, see=later, **DROP)
    train_in(run, nothing, resume=str(run), **DROP)
    assert model_bytes(run) == model_bytes(whole)
