from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from retexo_fl import __version__
from retexo_fl.agent import wire
from retexo_fl.client.api import (
    MESSAGE_VERSION,
    CollectAnswer,
    CollectRequest,
    EndAnswer,
    EndRequest,
    EvaluateAnswer,
    EvaluateRequest,
    HelloAnswer,
    HelloRequest,
    KeysAnswer,
    KeysRequest,
    LabelsAnswer,
    LabelsRequest,
    MaskedAnswer,
    PredictAnswer,
    PredictRequest,
    PublishAnswer,
    PublishRequest,
    Request,
    SparseSums,
    Ticket,
    TrainAnswer,
    TrainRequest,
)
from retexo_fl.config import Scalar
from retexo_fl.errors import (
    ClientFailed,
    ExchangeIncomplete,
    RemoteProtocolError,
    RetexoError,
    StaleAttempt,
)
from retexo_fl.ledger import PeerTraffic, Traffic, Volume

TICKET = Ticket(job="job-1", attempt=2, stage=1, round=7, weights_digest=bytes(range(32)))
WEIGHTS = np.array([1.5, -0.0, 3e-38, 7.0], np.float32)
TRAFFIC = Traffic(boundary=Volume(messages=2, raw=10, payload=8, wire=9), control=Volume(wire=None))
ROUND = PeerTraffic(sent=TRAFFIC, received=Traffic())
CODED = np.arange(200, dtype=np.uint8)
CONFIG: dict[str, Scalar] = {"clients": 2, "dropout": 0.3, "model": "gcn", "resume": ""}

REQUESTS: dict[str, Request[Any]] = {
    "hello": HelloRequest(ticket=TICKET),
    "publish": PublishRequest(ticket=TICKET, previous_digest=b"p" * 32, weights=WEIGHTS),
    "collect": CollectRequest(ticket=TICKET, wait_s=2.5, close=True),
    "train_layer": TrainRequest(ticket=TICKET, weights=WEIGHTS.astype(np.float64)),
    "evaluate_layer": EvaluateRequest(ticket=TICKET, weights=WEIGHTS, nodes="test", last=True),
    "predict": PredictRequest(ticket=TICKET, weights=WEIGHTS, form="csv"),
    "keys": KeysRequest(
        ticket=TICKET,
        agreement=b"a" * 32,
        cohort=(0, 1),
        uses="test train",
        keys=CODED[:64],
        signatures=CODED[:128].tobytes(),
    ),
    "labels": LabelsRequest(ticket=TICKET),
    "end": EndRequest(ticket=TICKET),
}
ANSWERS: list[object] = [
    HelloAnswer(
        version=3,
        client=1,
        num_clients=2,
        partitioning="p",
        nodes=4,
        train=3,
        validation=2,
        test=1,
        features=5,
        classes=6,
        vectors_out=7,
        vectors_in=8,
    ),
    PublishAnswer(vectors=3, traffic=TRAFFIC),
    PublishAnswer(vectors=3, traffic=TRAFFIC, error_bound=(2.0**-24,)),
    CollectAnswer(complete=False, missing=3, missing_peers=1, traffic=TRAFFIC),
    TrainAnswer(
        update_sum=WEIGHTS,
        examples=4,
        loss_sum=0.1 + 0.2,
        validation_examples=1,
        validation_loss_sum=1e-300,
        validation_correct=0,
        validation_metric=SparseSums(length=2, values=(0.1, 2.0)),
        training_traffic=ROUND,
    ),
    EvaluateAnswer(
        examples=1,
        loss_sum=math.inf,
        correct=1,
        metric=SparseSums(length=5, places=(4,), values=(0.3,)),
        cached=(3.0, 2.0, 1.0, 2.0**50, 0.0),
        traffic=ROUND,
    ),
    PredictAnswer(
        nodes=1,
        train=2,
        train_correct=3,
        validation=4,
        validation_correct=5,
        test=6,
        test_correct=7,
        test_metric=SparseSums(length=5, places=(4,), values=(0.3,)),
    ),
    KeysAnswer(digest=b"d" * 32),
    LabelsAnswer(uses=(1, 2, 3), sums=(0.5,)),
    EndAnswer(client=3),
    KeysAnswer(digest=b""),
    MaskedAnswer(numbers=CODED, beside=b"w" * 16, moved=b"m" * 8),
]


def split(parts: wire.Parts) -> tuple[wire.Prefix, bytes, bytes]:
    data = b"".join(parts)
    prefix = wire.Prefix.parse(data[: wire.PREFIX_BYTES])
    head_end = wire.PREFIX_BYTES + prefix.head_bytes
    assert len(data) == head_end + prefix.body_bytes
    return prefix, data[wire.PREFIX_BYTES : head_end], data[head_end:]


def assert_same(one: object, other: object) -> None:
    assert type(one) is type(other)
    for name in one.__dataclass_fields__:  # type: ignore[attr-defined]
        first, second = getattr(one, name), getattr(other, name)
        if isinstance(first, np.ndarray):
            assert first.dtype == second.dtype
            assert first.tobytes() == second.tobytes()
        else:
            assert first == second, name


def with_head(parts: wire.Parts, **changes: Any) -> tuple[bytes, bytes]:
    _, head, body = split(parts)
    return json.dumps({**json.loads(head), **changes}).encode(), body


@pytest.mark.parametrize("message", REQUESTS)
def test_requests_come_back_as_they_were(message: str) -> None:
    prefix, head, body = split(wire.encode_request(REQUESTS[message], CONFIG))
    assert prefix.kind is wire.Kind.REQUEST
    request = wire.decode_request(head, body)
    assert (request.message, request.config, request.ticket) == (message, CONFIG, TICKET)
    assert_same(request.asked, REQUESTS[message])


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
def test_answers_come_back_as_they_were(answer: object) -> None:
    prefix, head, body = split(wire.encode_answer(answer))
    assert prefix.kind is wire.Kind.ANSWER
    assert_same(wire.decode_answer(type(answer), head, body), answer)


def test_a_publish_without_weights_has_none() -> None:
    _, head, body = split(wire.encode_request(PublishRequest(ticket=TICKET), {}))
    asked = wire.decode_request(head, body).asked
    assert isinstance(asked, PublishRequest)
    assert asked.weights is None


def test_a_question_has_one_identity_in_all_configurations() -> None:
    def identity(request: Request[Any], config: dict[str, Any]) -> bytes:
        _, head, body = split(wire.encode_request(request, config))
        return wire.decode_request(head, body).identity

    asked = TrainRequest(ticket=TICKET, weights=WEIGHTS)
    assert identity(asked, {}) == identity(asked, CONFIG)
    parts = wire.encode_request(asked, {})
    values = json.loads(split(parts)[1])["values"]
    turned = wire.decode_request(*with_head(parts, values=dict(reversed(values.items()))))
    assert turned.identity == identity(asked, {})
    others: list[Request[Any]] = [
        replace(asked, weights=WEIGHTS + 1),
        replace(asked, weights=WEIGHTS[:3]),
        replace(asked, ticket=replace(TICKET, round=8)),
        replace(asked, ticket=replace(TICKET, attempt=3)),
        # Other numbers of the same bytes, and other questions of the same values.
        replace(asked, weights=WEIGHTS.view(np.float64)),
        HelloRequest(ticket=TICKET),
        LabelsRequest(ticket=TICKET),
    ]
    assert len({identity(other, {}) for other in [asked, *others]}) == 8


@pytest.mark.parametrize("error", [StaleAttempt("old"), ExchangeIncomplete("client 3: gone")])
def test_named_errors_cross_as_themselves(error: RetexoError) -> None:
    prefix, head, _ = split(wire.encode_failure(error))
    assert prefix.kind is wire.Kind.FAILURE
    told = wire.failure_of(head)
    assert (type(told), str(told)) == (type(error), str(error))


def test_what_another_machine_says_stays_short_and_on_one_line() -> None:
    _, head, _ = split(wire.encode_failure(StaleAttempt("x" * 9999)))
    assert str(wire.failure_of(head)) == "x" * 4000
    parts = wire.encode_request(HelloRequest(ticket=TICKET), {})
    head, body = with_head(parts, package="1\n\x1b[2J" + "9" * 99)
    with pytest.raises(RemoteProtocolError) as caught:
        wire.decode_request(head, body)
    assert f"retexo-fl 1??[2J{'9' * 34};" in str(caught.value)


@pytest.mark.parametrize("name", ["KeyError", "ClassVar", "annotations", "__name__"])
def test_other_names_become_client_failed(name: str) -> None:
    head, _ = with_head(wire.encode_failure(StaleAttempt("x")), name=name)
    told = wire.failure_of(head)
    assert type(told) is ClientFailed
    assert name in str(told)


@pytest.mark.parametrize("changes", [{"version": 2}, {"package": "0.0.9"}])
def test_another_version_is_refused_and_both_are_told(changes: dict[str, Any]) -> None:
    head, body = with_head(wire.encode_request(HelloRequest(ticket=TICKET), {}), **changes)
    told = {"version": MESSAGE_VERSION, "package": __version__, **changes}
    with pytest.raises(RemoteProtocolError) as caught:
        wire.decode_request(head, body)
    got, expected = str(caught.value).split("; expected ", 1)
    assert f"version {told['version']} " in got
    assert got.endswith(f"retexo-fl {told['package']}")
    assert expected.startswith(f"version {MESSAGE_VERSION} of retexo-fl {__version__};")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"message": "explode"}, "'explode' .*unknown"),
        ({"config": [1]}, "config is .*; expected an object"),
        ({"config": {"a": [1]}}, "numbers and texts only"),
        ({"array": {"dtype": "object", "length": 1}}, "expected dtype and length"),
        ({"array": {"dtype": "float32", "length": 5}}, "in 16 bytes"),
        ({"array": {"dtype": "float32", "length": -4}}, "in 16 bytes"),
        ({"message": "hello"}, r"HelloRequest: unknown \['an array'\]"),
        ({"array": None}, "followed by 16 bytes; expected none"),
        ({"values": {}}, "TrainRequest: 'job' is missing"),
        ({"values": 3}, "TrainRequest is 3; expected an object"),
    ],
)
def test_what_is_not_a_request_is_refused(changes: dict[str, Any], expected: str) -> None:
    asked = TrainRequest(ticket=TICKET, weights=WEIGHTS)
    head, body = with_head(wire.encode_request(asked, CONFIG), **changes)
    with pytest.raises(RemoteProtocolError, match=expected):
        wire.decode_request(head, body)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("job", 3, "HelloRequest: 'job' is 3; expected a str"),
        ("attempt", "1", "'attempt' is '1'; expected a count"),
        ("attempt", True, "'attempt' is True; expected a count"),
        ("stage", -1, "'stage' is -1; expected a count"),
        ("round", 2**70, "'round' is .*; expected a count"),
        ("weights-digest", "xx", "'weights-digest' is 'xx'; expected a bytes"),
        ("weights-digest", {"hex": "xx"}, "'weights-digest' is .*; expected hexadecimal"),
        ("more", 1, r"unknown \['more'\]"),
    ],
)
def test_fields_are_checked_one_by_one(field: str, value: object, expected: str) -> None:
    parts = wire.encode_request(HelloRequest(ticket=TICKET), {})
    known = json.loads(split(parts)[1])["values"]
    head, body = with_head(parts, values={**known, field: value})
    with pytest.raises(RemoteProtocolError, match=expected):
        wire.decode_request(head, body)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"GET / HTTP/1.1\r\n\r\n  ", "begins with b'GET '"),
        (wire.ALIVE[:4] + b"\x02" + wire.ALIVE[5:], "version 2; expected b'RTXA' and 1"),
        (wire.ALIVE[:5] + b"\x09" + wire.ALIVE[6:], "kind 9 is unknown"),
        (wire.ALIVE[:8] + b"\xff" * 4 + wire.ALIVE[12:], "a head of 4294967295"),
        (wire.ALIVE[:12] + b"\xff" * 8, "expected at most"),
    ],
)
def test_what_is_no_message_is_refused_by_its_first_bytes(data: bytes, expected: str) -> None:
    with pytest.raises(RemoteProtocolError, match=expected):
        wire.Prefix.parse(data)


@pytest.mark.parametrize("head", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_head_that_is_no_object_is_refused(head: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        wire.decode_request(head, b"")


def test_a_whole_number_beyond_float64_is_refused() -> None:
    parts = wire.encode_request(CollectRequest(ticket=TICKET, wait_s=1.5), {})
    known = json.loads(split(parts)[1])["values"]
    head, body = with_head(parts, values={**known, "wait-s": 10**400})
    with pytest.raises(RemoteProtocolError, match=r"'wait-s' is 1000.*; expected a number that"):
        wire.decode_request(head, body)
