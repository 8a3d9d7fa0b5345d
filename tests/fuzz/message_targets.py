"""What a server sends, and what an agent and its ClientApp say to each other on their socket."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from flwr.app import Array, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from retexo_fl.agent import wire
from retexo_fl.client.api import QUESTIONS, IntroduceRequest, RelayRequest, question_of
from retexo_fl.errors import StaleAttempt
from retexo_fl.federation import records
from retexo_fl.training.basis import Basis, BasisForm
from retexo_fl.updates import FewBits, UpdateKey, WeightChanges, with_zeros, without_zeros
from tests.fuzz.mutation import with_odd_value
from tests.fuzz.target import Target
from tests.unit.agent.test_wire import ANSWERS, CONFIG, REQUESTS, WEIGHTS

_PREFIX: Final = struct.Struct("<4sBBHIQ")


def _few_bits_targets() -> list[Target]:
    """Return the arrays of bytes in messages: updates, weights, and what a basis takes."""
    values = np.random.default_rng(0).normal(size=300).astype(np.float32)
    codec, weights = FewBits(update_bits=4), WeightChanges(8)
    key = UpdateKey(seed=0, job="job-0123456789ab", stage=0, round=1, client=0)
    steps = codec.steps(codec.measure(values, values), b"")
    gaps = np.repeat(np.arange(300, dtype=np.float32) % 10 == 0, 100)
    form = BasisForm(features=30, dtype="float32", bits=8)
    basis = Basis(mean=values[:30], directions=values.reshape(30, 10))

    def target(name: str, seed: np.ndarray, read: Callable[[np.ndarray], object]) -> Target:
        return Target(
            name=name,
            group="messages",
            seeds=[seed.tobytes()],
            read=lambda data: read(np.frombuffer(data, np.uint8)),
            cases=20_000,
        )

    return [
        target(
            "update",
            codec.encode_update(values, key, b""),
            lambda coded: codec.decode_update(coded, key, b""),
        ),
        target(
            "shared-update",
            codec.encode_update(values, key, steps),
            lambda coded: codec.decode_update(coded, key, steps),
        ),
        target(
            "change",
            weights.encode(values + 1, values),
            lambda coded: weights.decode(coded, values),
        ),
        target("update-without-zeros", without_zeros(np.repeat(values, 100) * gaps), with_zeros),
        target("basis", form.encode(basis), form.decode),
        target("basis-sums", form.encode_sums(values, "key"), form.decode_sums),
        target(
            "basis-products",
            form.encode_sums(values, "key", basis),
            lambda coded: form.decode_sums(coded, basis),
        ),
    ]


def message_targets() -> list[Target]:
    """Return the parsers of Flower's messages and of the agent's socket."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    return [*_socket_targets(), *_record_targets(), *_few_bits_targets()]


# ---- the agent's socket -------------------------------------------------------------------------


def _refitted(data: bytes) -> bytes:
    """Have the prefix tell the sizes that are there."""
    if len(data) < wire.PREFIX_BYTES:
        return data
    magic, version, kind, nothing, head_bytes, _ = _PREFIX.unpack_from(data)
    head_bytes = min(head_bytes, len(data) - wire.PREFIX_BYTES)
    body_bytes = len(data) - wire.PREFIX_BYTES - head_bytes
    prefix = _PREFIX.pack(magic, version, kind, nothing, head_bytes, body_bytes)
    return prefix + data[wire.PREFIX_BYTES :]


def _odd_heads(seeds: Sequence[bytes]) -> Callable[[random.Random], bytes]:
    """Return what makes messages whose heads are JSON with something odd in it."""
    pieces = [(_split(seed), seed[: wire.PREFIX_BYTES]) for seed in seeds]
    heads = [(json.loads(head), body, prefix) for (head, body), prefix in pieces]

    def made(rng: random.Random) -> bytes:
        facts, body, prefix = heads[int(rng.random() * len(heads))]
        magic, version, kind, nothing, _, _ = _PREFIX.unpack(prefix)
        head = json.dumps(with_odd_value(rng, facts)).encode()
        return _PREFIX.pack(magic, version, kind, nothing, len(head), len(body)) + head + body

    return made


def odd_json(seeds: Sequence[bytes]) -> Callable[[random.Random], bytes]:
    """Return what makes JSON with something odd in it."""
    values = [json.loads(seed) for seed in seeds]
    return lambda rng: json.dumps(
        with_odd_value(rng, values[int(rng.random() * len(values))])
    ).encode()


def _split(data: bytes) -> tuple[bytes, bytes]:
    """Return head and body as a reader of the socket gets them, which waits for whole ones."""
    prefix = wire.Prefix.parse(data[: wire.PREFIX_BYTES].ljust(wire.PREFIX_BYTES, b"\0"))
    end = wire.PREFIX_BYTES + prefix.head_bytes
    return data[wire.PREFIX_BYTES : end], data[end : end + prefix.body_bytes]


def _read_answer(kind: type[Any]) -> Callable[[bytes], object]:
    return lambda data: wire.decode_answer(kind, *_split(data))


def _socket_targets() -> list[Target]:
    asked = [wire.encode_request(request, CONFIG) for request in REQUESTS.values()]
    requests = [b"".join(parts) for parts in asked]
    request = Target(
        name="request",
        group="socket",
        seeds=requests,
        made=_odd_heads(requests),
        read=lambda data: wire.decode_request(*_split(data)),
        repaired=_refitted,
        words=[f'"{name}"'.encode() for name in QUESTIONS],
        cases=133_300,
    )
    by_kind: dict[type[Any], list[bytes]] = {}
    for answer in ANSWERS:
        by_kind.setdefault(type(answer), []).append(b"".join(wire.encode_answer(answer)))
    answers = [
        replace(
            request,
            name=f"{kind.__name__}",
            seeds=seeds,
            made=_odd_heads(seeds),
            read=_read_answer(kind),
            cases=20_000,
        )
        for kind, seeds in by_kind.items()
    ]
    control = b"".join(wire.encode_control({"what": "status", "peers": [1, {"a": None}]}))
    failure = b"".join(wire.encode_failure(StaleAttempt("client 1: attempt 1 was superseded")))
    return [
        request,
        *answers,
        replace(
            request,
            name="control",
            seeds=[control],
            made=_odd_heads([control]),
            read=lambda data: wire.decode_control(_split(data)[0]),
            cases=33_300,
        ),
        replace(
            request,
            name="failure",
            seeds=[failure],
            made=_odd_heads([failure]),
            read=lambda data: str(wire.failure_of(_split(data)[0])),
            words=[b"Interrupted", b"ClassVar", b"annotations", b"__name__", b"Exception"],
            cases=33_300,
        ),
    ]


# ---- Flower's messages --------------------------------------------------------------------------


def as_json(record: Mapping[str, Any]) -> Any:
    return {key: _plain(value) for key, value in record.items()}


def _plain(value: Any) -> Any:
    return {"hex": value.hex()} if isinstance(value, bytes) else value


def record_of(kind: type[Any], data: bytes) -> Any:
    """Return a record of values that JSON says; None where Flower would not have carried it."""
    try:
        values = json.loads(data)
        return kind({key: _carried(value) for key, value in values.items()})
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return None


def _carried(value: Any) -> Any:
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"])
    if isinstance(value, list):
        return [_carried(item) for item in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("Flower carries 64 bits")
    return value


def _message(content: RecordDict, message_type: str = "query") -> Message:
    return Message(content, dst_node_id=1, message_type=message_type)


def _read_settings(message_type: str, whole: RecordDict) -> Callable[[bytes], object]:
    def read(data: bytes) -> object:
        settings = record_of(ConfigRecord, data)
        if settings is None:
            return None
        content = RecordDict({**whole, "retexo": settings})
        return records.read_request(_message(content, message_type))

    return read


def _read_first(whole: RecordDict) -> Callable[[bytes], object]:
    def read(data: bytes) -> object:
        settings = record_of(ConfigRecord, data)
        if settings is None:
            return None
        return records.read_first(_message(RecordDict({**whole, "first-1": settings})))

    return read


_KINDS: Final = MappingProxyType({"retexo": ConfigRecord, "metrics": MetricRecord})


def _content_as_json(content: RecordDict) -> bytes:
    said = {name: as_json(content[name]) for name in _KINDS if name in content}
    return json.dumps(said).encode()


def _read_reply(answer: type[Any], whole: RecordDict) -> Callable[[bytes], object]:
    asked = _message(RecordDict())
    arrays = {name: record for name, record in whole.items() if name not in _KINDS}

    def read(data: bytes) -> object:
        try:
            said = json.loads(data)
        except (RecursionError, ValueError):
            return None
        content = RecordDict(arrays)
        for name, kind in _KINDS.items():
            values = said.get(name) if isinstance(said, dict) else None
            record = record_of(kind, json.dumps(values).encode())
            if record is not None:
                content[name] = record
        return records.read_answer(answer, Message(content, reply_to=asked))

    return read


def _record_targets() -> list[Target]:
    ticket = REQUESTS["hello"].ticket
    asked = [
        *REQUESTS.values(),
        IntroduceRequest(ticket=ticket, roster="[[member]]"),
        RelayRequest(
            ticket=ticket, trip=1, peers=(1, 2), sizes=(3, 0), parcels=np.zeros(3, np.uint8)
        ),
    ]
    made = []
    for request in asked:
        question = question_of(request)
        content = records.request_content(request)
        settings = content["retexo"]
        assert isinstance(settings, ConfigRecord)
        seeds = [json.dumps(as_json(settings)).encode()]
        made.append(
            Target(
                name=f"message-{question.name}",
                group="messages",
                seeds=seeds,
                made=odd_json(seeds),
                read=_read_settings(question.message_type, content),
                cases=13_300,
            )
        )
    first = [REQUESTS["publish"], REQUESTS["collect"]]
    content = records.request_content(REQUESTS["train_layer"], first)
    seeds = [json.dumps(as_json(content.config_records["first-1"])).encode()]
    made.append(
        Target(
            name="message-first",
            group="messages",
            seeds=seeds,
            made=odd_json(seeds),
            read=_read_first(content),
            cases=13_300,
        )
    )
    for kind in dict.fromkeys(type(one) for one in ANSWERS):
        contents = [records.answer_content(one) for one in ANSWERS if isinstance(one, kind)]
        seeds = [_content_as_json(content) for content in contents]
        made.append(
            Target(
                name=f"reply-{kind.__name__}",
                group="messages",
                seeds=seeds,
                made=odd_json(seeds),
                read=_read_reply(kind, contents[0]),
                cases=13_300,
            )
        )
    return [
        *made,
        Target(
            name="flower-array",
            group="messages",
            seeds=[records.weights_record(WEIGHTS)["weights"].data],
            read=_read_array_of(WEIGHTS),
            cases=133_300,
        ),
    ]


def _read_array_of(weights: np.ndarray) -> Callable[[bytes], object]:
    return lambda data: records.unpack(
        Array(dtype=str(weights.dtype), shape=weights.shape, stype="numpy.ndarray", data=data)
    )
