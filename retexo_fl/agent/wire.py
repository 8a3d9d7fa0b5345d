"""What passes over the agent's socket: requests, answers, failures, signs of life.

A message is a prefix, a JSON head and at most one array, little-endian::

    magic "RTXA" | wire version u8 | kind u8 | 0 u16 | head_bytes u32 | body_bytes u64
    head: JSON object   body: float32 or float64 values

Every head has the version of the messages and of the package, and a request of another version is
refused before anything else is read of it. Named errors cross as their name and their sentence.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Self

import numpy as np

from retexo_fl import errors
from retexo_fl.client import schema
from retexo_fl.client.api import MESSAGE_VERSION, QUESTIONS, AnswerT, Ticket, question_of
from retexo_fl.client.api import Request as Asked
from retexo_fl.config import Scalar
from retexo_fl.errors import ClientFailed, RemoteProtocolError, RetexoError
from retexo_fl.units import counted
from retexo_fl.version import __version__

Parts = list[bytes | memoryview]

#: A run configuration has some fifty keys; a status is long where there are thousands of peers.
MAX_HEAD_BYTES: Final = 2**24
#: Weights of 268 million float32 parameters.
MAX_BODY_BYTES: Final = 2**30
#: An error's sentence; a longer one is cut.
_MAX_SENTENCE: Final = 4000

_MAGIC: Final = b"RTXA"
_WIRE_VERSION: Final = 1
_PREFIX: Final = struct.Struct("<4sBBHIQ")
#: The dtypes of weights, updates and parcels, by their names here: little-endian everywhere.
_DTYPES: Final = {"float32": "<f4", "float64": "<f8", "uint8": "|u1"}
PREFIX_BYTES: Final = _PREFIX.size


class Kind(IntEnum):
    """What a message is."""

    REQUEST = 1
    ANSWER = 2
    FAILURE = 3
    #: Nothing is new, but the agent is there and computes.
    ALIVE = 4
    #: A question about the agent itself, and its answer.
    CONTROL = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """The first 20 bytes of a message."""

    kind: Kind
    head_bytes: int
    body_bytes: int

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read it.

        Raises:
            RemoteProtocolError: No message of this protocol and version, or a longer one than may
                be, or one with a body that has none.
        """
        magic, version, kind, _, head_bytes, body_bytes = _PREFIX.unpack(data)
        if magic != _MAGIC or version != _WIRE_VERSION:
            raise RemoteProtocolError(
                f"a message begins with {magic!r} and version {version}; expected {_MAGIC!r} and "
                f"{_WIRE_VERSION}; install the same retexo-fl for agent and ClientApp"
            )
        if kind not in Kind.__members__.values():
            raise RemoteProtocolError(f"message kind {kind} is unknown")
        if head_bytes > MAX_HEAD_BYTES or body_bytes > MAX_BODY_BYTES:
            raise RemoteProtocolError(
                f"a message has a head of {head_bytes} and a body of {body_bytes} bytes; expected "
                f"at most {MAX_HEAD_BYTES} and {MAX_BODY_BYTES}"
            )
        if body_bytes and kind not in {Kind.REQUEST, Kind.ANSWER}:
            raise RemoteProtocolError(f"followed by {counted(body_bytes, 'byte')}; expected none")
        return cls(kind=Kind(kind), head_bytes=head_bytes, body_bytes=body_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One question to a client.

    Attributes:
        message: Name of the question.
        asked: What is asked.
        config: The run configuration that it came with.
        identity: Equal for questions that have the same answer.
    """

    message: str
    asked: Asked[Any]
    config: Mapping[str, Scalar]
    identity: bytes

    @property
    def ticket(self) -> Ticket:
        """What the question belongs to."""
        return self.asked.ticket


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """A request whose body has not come: its head, all of which is checked.

    Attributes:
        message: As in :class:`Request`, likewise ``config``.
        asked: What is asked; of its array the dtype alone is there.
        facts: The head.
    """

    message: str
    asked: Asked[Any]
    config: Mapping[str, Scalar]
    facts: Mapping[str, Any]

    @property
    def ticket(self) -> Ticket:
        """What the question belongs to."""
        return self.asked.ticket

    def with_body(self, body: bytes | memoryview) -> Request:
        """Return the request, now that its body is there."""
        facts = self.facts
        told = json.dumps([self.message, facts.get("values"), facts.get("array")], sort_keys=True)
        identity = hashlib.sha256(told.encode() + b"\n")
        identity.update(body)
        asked = _decode(type(self.asked), facts, body)
        return Request(
            message=self.message, asked=asked, config=self.config, identity=identity.digest()
        )


ALIVE: Final = _PREFIX.pack(_MAGIC, _WIRE_VERSION, Kind.ALIVE, 0, 0, 0)


# ---- requests and answers -----------------------------------------------------------------------


def encode_request(asked: Asked[Any], config: Mapping[str, Scalar]) -> Parts:
    """Return the pieces of a request."""
    extra = {"message": question_of(asked).name, "config": dict(config)}
    return _encode(Kind.REQUEST, asked, extra)


def decode_request(head: bytes, body: bytes | memoryview) -> Request:
    """Read a request.

    Raises:
        RemoteProtocolError: As :func:`announced`.
    """
    return announced(head, len(body)).with_body(body)


def announced(head: bytes, body_bytes: int) -> Announcement:
    """Read a request's head.

    Raises:
        RemoteProtocolError: It is of another version, or something in it, or the length of its
            body, is not as expected.
    """
    facts = _facts(head)
    message = str(facts.get("message"))
    if message not in QUESTIONS:
        raise RemoteProtocolError(f"message {message[:40]!r} is unknown")
    asked: Asked[Any] = _rebuilt(QUESTIONS[message].request, facts, body_bytes, b"")
    config = _object(facts.get("config"), "config")
    if not all(isinstance(value, bool | int | float | str) for value in config.values()):
        raise RemoteProtocolError("config: expected true, false, numbers and texts only")
    return Announcement(message=message, asked=asked, config=config, facts=facts)


def encode_answer(answer: object) -> Parts:
    """Return the pieces of an answer."""
    return _encode(Kind.ANSWER, answer, {})


def decode_answer(kind: type[AnswerT], head: bytes, body: bytes | memoryview) -> AnswerT:
    """Read an answer of a class.

    Raises:
        RemoteProtocolError: It is of another version, or something in it is not as expected.
    """
    return _decode(kind, _facts(head), body)


# ---- failures and control -----------------------------------------------------------------------


def encode_failure(error: RetexoError) -> Parts:
    """Return the pieces of a named error in place of an answer."""
    said = {"name": type(error).__name__, "sentence": str(error)[:_MAX_SENTENCE]}
    return _message(Kind.FAILURE, said)


def failure_of(head: bytes) -> RetexoError:
    """Return the named error in a failure; its version does not matter.

    Raises:
        RemoteProtocolError: It names none.
    """
    facts = _json(head)
    name, sentence = facts.get("name"), facts.get("sentence")
    if not isinstance(name, str) or not isinstance(sentence, str):
        raise RemoteProtocolError("a failure has no name or no message")
    known = getattr(errors, name, None)
    if isinstance(known, type) and issubclass(known, RetexoError):
        return known(sentence)
    return ClientFailed(f"{name[:80]}: {sentence}")


def encode_control(facts: Mapping[str, Any]) -> Parts:
    """Return the pieces of a question about the agent, or of its answer."""
    return _message(Kind.CONTROL, dict(facts))


def decode_control(head: bytes) -> Mapping[str, Any]:
    """Read a question about the agent, or its answer.

    Raises:
        RemoteProtocolError: It is of another version, or no JSON object.
    """
    return _facts(head)


# ---- pieces -------------------------------------------------------------------------------------


def _encode(kind: Kind, record: object, extra: Mapping[str, Any]) -> Parts:
    values, array = schema.flatten(record)
    head = {**extra, "values": {key: _to_json(value) for key, value in values.items()}}
    if array is None:
        return _message(kind, head)
    assert array.ndim == 1
    head["array"] = {"dtype": array.dtype.name, "length": len(array)}
    body = np.ascontiguousarray(array, _DTYPES[array.dtype.name]).data.cast("B")
    return _message(kind, head, body)


def _decode(kind: type[AnswerT], facts: Mapping[str, Any], body: bytes | memoryview) -> AnswerT:
    return _rebuilt(kind, facts, len(body), body)


def _rebuilt(
    kind: type[AnswerT], facts: Mapping[str, Any], body_bytes: int, body: bytes | memoryview
) -> AnswerT:
    """Return a record whose body has so many bytes, with those of it that are there."""
    values = _object(facts.get("values"), kind.__name__)
    dtype = _dtype(facts.get("array"), body_bytes)
    array = None if dtype is None else np.frombuffer(body, dtype)
    return schema.rebuild(
        kind, {key: _from_json(key, value) for key, value in values.items()}, array
    )


def _to_json(value: Any) -> Any:
    return {"hex": value.hex()} if isinstance(value, bytes) else value


def _from_json(key: str, value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    try:
        return bytes.fromhex(value["hex"])
    except (KeyError, TypeError, ValueError) as error:
        raise RemoteProtocolError(
            f"{key!r} is {schema.shown(value)}; expected hexadecimal digits"
        ) from error


def _dtype(described: object, body_bytes: int) -> str | None:
    """Return the dtype of a body's values, None where none are described."""
    if described is None:
        if body_bytes:
            raise RemoteProtocolError(f"followed by {counted(body_bytes, 'byte')}; expected none")
        return None
    facts = _object(described, "array")
    dtype, length = _DTYPES.get(str(facts.get("dtype"))), facts.get("length")
    if dtype is None or type(length) is not int:
        raise RemoteProtocolError(f"array is {schema.shown(described)}; expected dtype and length")
    if length < 0 or length * np.dtype(dtype).itemsize != body_bytes:
        raise RemoteProtocolError(f"array of {length} {dtype} in {counted(body_bytes, 'byte')}")
    return dtype


def _message(kind: Kind, facts: Mapping[str, Any], body: memoryview | None = None) -> Parts:
    versions = {"version": MESSAGE_VERSION, "package": __version__}
    head = json.dumps({**facts, **versions}).encode()
    size = 0 if body is None else body.nbytes
    prefix = _PREFIX.pack(_MAGIC, _WIRE_VERSION, kind, 0, len(head), size)
    return [prefix + head, *([] if body is None else [body])]


def _facts(head: bytes) -> Mapping[str, Any]:
    facts = _json(head)
    version, package = facts.get("version"), _one_line(facts.get("package"))
    if version != MESSAGE_VERSION or package != __version__:
        raise RemoteProtocolError(
            f"a message of version {_one_line(version)} came from retexo-fl {package}; expected "
            f"version {MESSAGE_VERSION} of retexo-fl {__version__}; install the same for agent and "
            "ClientApp, and restart the agent"
        )
    return facts


def _one_line(value: object) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in str(value)[:40])


def _json(head: bytes) -> Mapping[str, Any]:
    try:
        facts = json.loads(head)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError("the head of a message is not JSON") from error
    return _object(facts, "head")


def _object(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"{name} is {schema.shown(value)}; expected an object")
    return value
