"""Masked rounds whose clients answer late, too few, or what cannot be: errors name the client."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from retexo_fl.client import api
from retexo_fl.errors import (
    ConfigurationError,
    PartitionError,
    RemoteProtocolError,
    RoundIncomplete,
)
from tests.support.fickle_training import See, node_of, nothing
from tests.support.masked_training import HALVES, QUORUM, away_in, cohort_of, train_in
from tests.support.runs import events_of, model_bytes

HELLO, KEYS = api.HELLO.message_type, api.KEYS.message_type
COUNTS, TRAIN = api.COUNTS.message_type, api.TRAIN.message_type


def rounds(run: Path) -> list[dict[str, Any]]:
    return [event for event in events_of(run) if event["event"] == "round"]


# ---- answers that come late, or not -------------------------------------------------------------


def test_a_late_answer_is_in_no_sum(tmp_path: Path) -> None:
    heard: list[tuple[str, int, str]] = []

    def see(message: Message, reply: Message) -> Message:
        kind, node = message.metadata.message_type, message.metadata.dst_node_id
        heard.append((kind, node, message.metadata.group_id))
        return reply

    run = train_in(tmp_path / "run", away_in({(0, 2): 1}), see=see, **{**QUORUM, **HALVES})
    trained = [(node, group) for kind, node, group in heard if kind == TRAIN]
    # The answer to round 2 came, and after it the one to round 3, which counts.
    assert (node_of(1), "1.0.3") in trained[trained.index((node_of(1), "1.0.2")) :]
    of_stage = [event for event in rounds(run) if event["stage"] == 0]
    assert [event["summed"] for event in of_stage] == [6, 3, 6, 6]
    assert [event.get("absent", []) for event in of_stage] == [[], [*cohort_of(1)], [], []]


def test_a_round_without_a_whole_cohort_ends_the_run_which_resumes(tmp_path: Path) -> None:
    whole = train_in(tmp_path / "whole", nothing, **QUORUM)
    run = tmp_path / "run"
    with pytest.raises(RoundIncomplete, match="no answer from client 1 within 1 s"):
        train_in(run, away_in({(0, 2): 1}), **{**QUORUM, "message_timeout_s": 1.0})
    train_in(run, nothing, **QUORUM, resume=str(run))
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


def more(place: int, number: int) -> Callable[[Values], object]:
    """Add to one of the masked counts of a part: to nodes, train nodes and so on."""

    def change(values: Values) -> None:
        words = np.frombuffer(values["beside"], "<u8").copy()
        # Masks are modulo 2**64.
        words[place : place + 1] += np.uint64(number)
        values["beside"] = words.tobytes()

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
            told(HELLO, lambda values: values.update({"mask-signature": bytes(88)})),
            "client 0: its masking key is not signed; expected a signature",
        ),
        (
            told(HELLO, lambda values: values.update(version=12)),
            f"client 1: message version 12; expected {api.MESSAGE_VERSION}",
        ),
        (
            told(HELLO, lambda values: values.update(nodes=5)),
            "client 1: it sent counts; expected none under masks",
        ),
        (
            told(HELLO, lambda values: values.update({"vectors-in": 1})),
            "client 1: it sent counts; expected none under masks",
        ),
        (
            told(HELLO, lambda values: values.update(brings="train all")),
            "client 1: brings is 'train all'; expected uses of nodes: train, validation, test, ",
        ),
        (
            told(COUNTS, more(0, 2**31)),
            r"masked, but nodes of all clients are 2147\d+; expected 2147483647 at most",
        ),
        (told(COUNTS, more(1, 7)), r"the sum over clients: num-examples is \d+; expected \d+"),
        (told(COUNTS, more(3, 2**63)), r"^a masked sum has -\d+ test; expec"),
        (told(COUNTS, cut("beside")), r"client 1: masked numbers have \d+ bytes; expected"),
        (told(KEYS, flipped("digest", 0)), "client 1: it believes other masking keys"),
        (told(TRAIN, cut("numbers")), r"client 1: masked numbers have \d+ bytes; expected"),
        (told(TRAIN, cut("beside")), r"client 1: masked numbers have \d+ bytes; expected"),
        (
            told(TRAIN, lambda values: values.update({"numbers": b"", "beside": b""})),
            "client 1: masked numbers have 0 bytes; expected",
        ),
    ],
)
def test_what_a_client_sends_that_cannot_be_names_it(
    tmp_path: Path, see: See, sentence: str
) -> None:
    errors = (ConfigurationError, PartitionError, RemoteProtocolError)
    with pytest.raises(errors, match=sentence):
        train_in(tmp_path / "run", nothing, see=see, **QUORUM)


def test_a_run_that_an_answer_ended_resumes(tmp_path: Path) -> None:
    whole = train_in(tmp_path / "whole", nothing, **QUORUM)
    run = tmp_path / "run"

    def later(message: Message, reply: Message) -> Message:
        is_later = message.metadata.group_id == "1.1.1"
        return told(TRAIN, cut("numbers"))(message, reply) if is_later else reply

    with pytest.raises(RemoteProtocolError, match="client 1: masked numbers have"):
        train_in(run, nothing, see=later, **QUORUM)
    train_in(run, nothing, resume=str(run), **QUORUM)
    assert model_bytes(run) == model_bytes(whole)
