"""The only translation between Flower's records and ours.

A request has at most two records: ``retexo`` (a ConfigRecord of what it says) and ``weights`` (an
ArrayRecord with one flat array); an answer ``metrics`` (a MetricRecord of counts and sums), or
``retexo`` where it has words, and ``weights``. One array and one metric record in a train reply are
what Flower's own strategies expect.

Flower takes seconds to carry a message of any size, so others may precede a request, ``first`` in
the same message: ``first-0`` (a ConfigRecord), ``first-0-weights`` and so on, and their answers
likewise. Where the answer to one leaves something open (:func:`leaves_open`), neither those after
it nor the request itself are answered.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.lib import format as npy

from retexo_fl import errors
from retexo_fl.client import schema
from retexo_fl.client.api import (
    QUESTIONS,
    AnswerT,
    CollectAnswer,
    Question,
    Request,
    question_of,
)
from retexo_fl.config import Scalar
from retexo_fl.errors import ClientFailed, EngineFailed, RemoteProtocolError, RetexoError
from retexo_fl.ledger import Volume
from retexo_fl.units import client_named, counted
from retexo_fl.updates.zeros import bytes_with_zeros

_SETTINGS: Final = "retexo"
_WEIGHTS: Final = "weights"
#: Keys of the run that follow from the graph.
SETTLED: Final = "settled"
_METRICS: Final = "metrics"
#: Names of a message's own record, and of the array beside it.
_OWN: Final = (_SETTINGS, _WEIGHTS)
_OWN_METRICS: Final = (_METRICS, _WEIGHTS)
#: Record of a reply that holds a named error in place of an answer.
FAILURE: Final = "failure"
#: Type of a message without content, which any client answers likewise.
NUDGE: Final = "query.nudge"
#: Most requests that may precede one.
MOST_FIRST: Final = 2
#: Names of their records and arrays: one more than there may be, which is refused.
_FIRST: Final = tuple(
    (f"first-{place}", f"first-{place}-{_WEIGHTS}") for place in range(MOST_FIRST + 1)
)
#: Key of the message type of a request that precedes another.
_QUESTION: Final = "question"
#: Keys of weights and updates that are coded, as bytes among the values.
_UPDATE: Final = "update-sum"
_CODED: Final = frozenset({"weights", _UPDATE, "sums", "numbers"})
#: Keys of what only masks need: public keys and their signatures.
_MASKING: Final = frozenset({"keys", "signatures"})
_MASK_PREFIX: Final = "mask-"
#: What Flower calls arrays in the ``.npy`` form, which are written and read without a second copy.
_FORM: Final = "numpy.ndarray"
#: Magic bytes, version 1.0, and two bytes that hold the length of the header behind them.
_VERSION_1: Final = b"\x93NUMPY\x01\x00"
_PREFIX_BYTES: Final = 10
#: Names of Ray's errors that are none of what it ran.
_LOST: Final = re.compile(
    r"ray\.exceptions\.((?:LocalRaylet|Node|OutOfMemory|Owner|(?:Ray)?Actor|Worker)\w*)"
)
_HEADER: Final = re.compile(
    rb"\{'descr': '(?P<dtype><f4|<f8)', 'fortran_order': False, "
    rb"'shape': \((?P<shape>\d{1,18},(?: ?\d{1,18})?)\), \} *\n"
)
#: Of a message that has none of a kind.
_NO_BYTES: Final = Volume(messages=1, wire=None)
_QUESTIONS: Final = {question.message_type: question for question in QUESTIONS.values()}


# ---- requests and answers -----------------------------------------------------------------------


def request_content(
    request: Request[Any],
    first: Sequence[Request[Any]] = (),
    *,
    settled: Mapping[str, Scalar] | None = None,
) -> RecordDict:
    """Return the content of the message that carries a request.

    Args:
        request: What is asked.
        first: What is asked before it.
        settled: Keys of the run that clients' run configuration has otherwise.
    """
    content = RecordDict()
    if settled:
        content[SETTLED] = ConfigRecord({**settled})
    for names, item in zip(_FIRST[: len(first)], first, strict=True):
        values, weights = _flatten(item)
        values = {_QUESTION: question_of(item).message_type, **values}
        _add(content, names, ConfigRecord(), values, weights)
    values, weights = _flatten(request)
    return _add(content, _OWN, ConfigRecord(), values, weights)


def read_request(message: Message) -> Request[Any]:
    """Read a request; the message's type is its kind.

    Raises:
        RemoteProtocolError: Something in it is not as expected.
    """
    kind = _question(message.metadata.message_type).request
    request: Request[Any] = _read(kind, message, _OWN)
    return request


def is_ours(message: Message) -> bool:
    """Return whether a message is a question of this package, not one of another app's server."""
    kind = message.metadata.message_type
    if kind == NUDGE:
        return True
    return kind in _QUESTIONS and message.has_content() and _SETTINGS in message.content


def settled_keys(message: Message) -> Mapping[str, Scalar]:
    """Return the keys that a message says a run has, other than its run configuration.

    They are no more to be believed than that; whoever begins a job checks both.

    Raises:
        RemoteProtocolError: They are none.
    """
    record = message.content.get(SETTLED, ConfigRecord())
    found: dict[str, Scalar] = {}
    for key, value in record.items() if isinstance(record, ConfigRecord) else [("", None)]:
        if not (isinstance(key, str) and isinstance(value, bool | int | float | str)):
            raise RemoteProtocolError(f"{SETTLED}: expected keys of a run")
        found[key] = value
    return found


def read_first(message: Message) -> list[Request[Any]]:
    """Read the requests that precede the one of the message.

    Raises:
        RemoteProtocolError: Something in them is not as expected.
    """
    found: list[Request[Any]] = []
    for names in _FIRST:
        name, _ = names
        if name not in message.content:
            break
        record = message.content[name]
        if len(found) == MOST_FIRST or not isinstance(record, ConfigRecord):
            raise RemoteProtocolError(f"{name}: expected {MOST_FIRST} requests first at most")
        request = _question(record.get(_QUESTION)).request
        found.append(_read(request, message, names, beside=_QUESTION))
    return found


def _question(message_type: object) -> Question:
    question = _QUESTIONS.get(message_type) if isinstance(message_type, str) else None
    if question is None:
        raise RemoteProtocolError(f"message type {schema.shown(message_type)} is unknown")
    return question


def answer_content(answer: object | None, first: Sequence[object] = ()) -> RecordDict:
    """Return the content of a reply: an answer, None if there is none, and those ``first``."""
    content = RecordDict()
    for names, item in zip(_FIRST[: len(first)], first, strict=True):
        values, weights = _flatten(item)
        _add(content, names, ConfigRecord(), values, weights)
    if answer is None:
        return content
    values, weights = _flatten(answer)
    if any(isinstance(value, str | bytes) for value in values.values()):
        return _add(content, _OWN, ConfigRecord(), values, weights)
    # Flower's metrics have no truth values.
    numbers = {k: int(v) if isinstance(v, bool) else v for k, v in values.items()}
    return _add(content, _OWN_METRICS, MetricRecord(), numbers, weights)


def read_answer(kind: type[AnswerT], reply: Message) -> AnswerT:
    """Read an answer of a class.

    Raises:
        RemoteProtocolError: Something in it is not as expected.
    """
    return _read(kind, reply, _OWN_METRICS if _METRICS in reply.content else _OWN)


def read_answers_first(first: Sequence[Request[Any]], reply: Message) -> list[Any]:
    """Read the answers to requests that preceded another: of all, or up to one that leaves it open.

    Raises:
        RemoteProtocolError: Something in them is not as expected.
    """
    found: list[Any] = []
    for names, request in zip(_FIRST[: len(first)], first, strict=True):
        found.append(_read(question_of(request).answer, reply, names))
        if leaves_open(found[-1]):
            break
    return found


def leaves_open(answer: object) -> bool:
    """Return whether what follows in a message cannot be answered yet."""
    if isinstance(answer, CollectAnswer):
        return not answer.complete
    return bool(getattr(answer, "lacks_weights", None))


def said(reply: Message, key: str) -> object:
    """Return a value of an answer in words, unchecked: for an error that names who sent it."""
    record = reply.content.get(_SETTINGS)
    return schema.shown(record.get(key)) if isinstance(record, ConfigRecord) else None


def _flatten(record: object) -> tuple[dict[str, Any], np.ndarray | None]:
    """Return values and weights; an array of bytes is a value."""
    values, array = schema.flatten(record)
    if array is None or array.dtype != np.uint8:
        return values, array
    return values | {schema.array_key(type(record)): array.tobytes()}, None


def _add(
    content: RecordDict,
    names: tuple[str, str],
    record: ConfigRecord | MetricRecord,
    values: Mapping[str, Any],
    weights: np.ndarray | None,
) -> RecordDict:
    """Add an empty record with these values, and the array beside it.

    Flower (1.41) looks at the type of each value that is put into a record, which takes longer
    than all else of a short message. Our dataclasses have no others than it takes.
    """
    name, weights_name = names
    known = vars(record).get("_data")
    if isinstance(known, dict):
        known.update(values)
    else:
        record.update(values)
    content[name] = record
    if weights is not None:
        content[weights_name] = weights_record(weights)
    return content


def _read(
    kind: type[AnswerT], message: Message, names: tuple[str, str], *, beside: str = ""
) -> AnswerT:
    """Read a record, without the field ``beside`` its values."""
    name, weights_name = names
    record = message.content.get(name)
    if not isinstance(record, ConfigRecord | MetricRecord):
        raise RemoteProtocolError(f"{message.metadata.message_type}: no record called {name!r}")
    weights = message.content.get(weights_name)
    if weights is not None and not isinstance(weights, ArrayRecord):
        raise RemoteProtocolError(f"{message.metadata.message_type}: weights are not arrays")
    values = {key: value for key, value in record.items() if key != beside}
    return schema.rebuild(kind, values, None if weights is None else weights_of(weights))


# ---- weights ------------------------------------------------------------------------------------


def weights_record(weights: np.ndarray) -> ArrayRecord:
    """Wrap (P,) weights or sums; equal in its bytes to Flower's own ``Array(weights)``."""
    dtype, shape = str(weights.dtype), weights.shape
    data = b"".join((_head(dtype, shape), np.ascontiguousarray(weights).data))
    return ArrayRecord({_WEIGHTS: Array(dtype=dtype, shape=shape, stype=_FORM, data=data)})


def weights_of(record: ArrayRecord) -> np.ndarray:
    """Unwrap :func:`weights_record`; the result is read-only.

    Raises:
        RemoteProtocolError: The record does not hold one flat array called ``weights``.
    """
    if list(record) != [_WEIGHTS]:
        raise RemoteProtocolError(f"got arrays {sorted(record)}; expected one called 'weights'")
    array = unpack(record[_WEIGHTS])
    if array.ndim != 1:
        raise RemoteProtocolError(f"got weights of shape {array.shape}; expected one dimension")
    return array


def unpack(array: Array) -> np.ndarray:
    """Return a read-only view of the values of an array in the ``.npy`` form.

    Raises:
        RemoteProtocolError: The bytes are not one whole array of float32 or float64 in little
            endian, of one dimension or two, that is what the record announces.
    """
    data = array.data
    head = data[: _PREFIX_BYTES + int.from_bytes(data[8:_PREFIX_BYTES], "little")]
    try:
        dtype, shape = _parsed(array.stype, head)
    except ValueError as error:
        raise RemoteProtocolError(f"got weights that are not a .npy array ({error})") from error
    if (array.dtype, tuple(array.shape)) != (dtype, shape):
        raise RemoteProtocolError(
            f"got weights announced as {array.dtype} of shape {tuple(array.shape)} that are "
            f"{dtype} of shape {shape}"
        )
    expected_bytes = len(head) + math.prod(shape) * np.dtype(dtype).itemsize
    if len(data) != expected_bytes:
        raise RemoteProtocolError(
            f"got {counted(len(data), 'byte')} of weights of shape {shape}; expected "
            f"{expected_bytes}"
        )
    return np.frombuffer(data, dtype=dtype, offset=len(head)).reshape(shape)


# All messages of a round have the same head, and building or parsing one costs more than the rest.
@lru_cache(maxsize=32)
def _head(dtype: str, shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    described = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(stream, described)
    return stream.getvalue()


@lru_cache(maxsize=32)
def _parsed(form: str, head: bytes) -> tuple[str, tuple[int, ...]]:
    begin = head[: len(_VERSION_1)]
    if form != _FORM or begin != _VERSION_1:
        raise ValueError(f"{form!r} beginning with {begin!r}")
    # NumPy's own parser evaluates a literal and has many ways to fail; this form is all it writes.
    found = _HEADER.fullmatch(head[_PREFIX_BYTES:])
    if found is None:
        raise ValueError("its header is not that of a float array")
    sizes = found["shape"].decode().split(",")
    return str(np.dtype(found["dtype"].decode())), tuple(int(size) for size in sizes if size)


# ---- failures ---------------------------------------------------------------------------------


def failure_content(error: RetexoError) -> RecordDict:
    """Return the content of a reply that holds a named error in place of an answer."""
    failure = ConfigRecord({"name": type(error).__name__, "message": str(error)})
    return RecordDict({FAILURE: failure})


def raise_failure(reply: Message, client: int) -> None:
    """Raise the error in a reply of a client, -1 where it is not known which, if there is one.

    Raises:
        RetexoError: The client's own named error, its sentence preceded by the client; or
            ``ClientFailed`` where Flower itself reports that the client's process ended or raised,
            ``EngineFailed`` where that is Ray's word for a worker or a node that it has lost.
    """
    has_error = reply.has_error()
    if not has_error and FAILURE not in reply.content:
        return
    who = client_named(client)
    if has_error:
        reason = " ".join(str(reply.error.reason).split())
        if lost := _LOST.search(reason):
            raise EngineFailed(
                f"{who}: Ray lost the worker that computed for it, or that worker's node "
                f"({lost[1]}); expected the cluster to last"
            )
        raise ClientFailed(f"{who}: {reason} (Flower error code {reply.error.code})")
    failure = reply.content.config_records[FAILURE]
    name, sentence = str(failure.get("name")), str(failure.get("message"))
    known = getattr(errors, name, None)
    if isinstance(known, type) and issubclass(known, RetexoError):
        raise known(sentence if sentence.startswith("client ") else f"{who}: {sentence}")
    raise ClientFailed(f"{who}: {name}: {sentence}")


# ---- bytes --------------------------------------------------------------------------------------


def content_volumes(content: Mapping[str, Any]) -> tuple[Volume, Volume, Volume]:
    """Return the bytes of a message's weights, of what only masks need, and of everything else.

    Of weights and updates in few bits both figures are the coded bytes; of an update without its
    zeros ``raw`` is with them.

    Flower does not report what its transport adds, so neither is measured on the wire.
    """
    raw = weights = masks = other = 0
    for record in content.values():
        if isinstance(record, ArrayRecord):
            size = sum(
                math.prod(array.shape) * np.dtype(array.dtype).itemsize for array in record.values()
            )
            raw, weights = raw + size, weights + size
        else:
            for key, value in record.items():
                if key in _CODED and isinstance(value, bytes):
                    weights += len(value)
                    raw += bytes_with_zeros(value) if key == _UPDATE else len(value)
                elif key in _MASKING or key.startswith(_MASK_PREFIX):
                    masks += len(key) + scalar_bytes(value)
                else:
                    other += len(key) + scalar_bytes(value)
    return (
        Volume(messages=1, raw=raw, payload=weights, wire=None) if weights else _NO_BYTES,
        Volume(messages=1, payload=masks, wire=None) if masks else _NO_BYTES,
        Volume(messages=1, payload=other, wire=None) if other else _NO_BYTES,
    )


def split_content(content: RecordDict, first: int) -> list[dict[str, Any]]:
    """Return a message's own records, then those of each of so many requests or answers before it.

    Records that nobody asked for are its own, so that no byte is left out.
    """
    own = dict(content)
    parts = [{key: own.pop(key) for key in pair if key in own} for pair in _FIRST[:first]]
    return [own, *parts]


def scalar_bytes(value: object) -> int:
    """Count as Flower's records do, whose own count refuses empty text."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, list | tuple):
        return 8 * len(value)
    return 1 if isinstance(value, bool) else 8
