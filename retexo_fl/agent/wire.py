"""What passes over the agent's socket: requests, answers, failures, signs of life.

A message is a prefix, a JSON head and at most one array, little-endian::

    magic "RTXA" | wire version u8 | kind u8 | 0 u16 | head_bytes u32 | body_bytes u64
    head: JSON object   body: float32 or float64 values

Every head says the version of the messages and of the package, and a request of another version is
refused before anything else is read of it. Named errors cross as their name and their sentence.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, Self, TypeVar

from retexo_fl import __version__, errors
from retexo_fl.agent import wire_fields
from retexo_fl.agent.api import (
    MESSAGE_VERSION,
    CollectAnswer,
    CollectRequest,
    EvaluateAnswer,
    EvaluateRequest,
    HelloAnswer,
    PredictAnswer,
    PredictRequest,
    PublishAnswer,
    PublishRequest,
    Ticket,
    TrainAnswer,
    TrainRequest,
)
from retexo_fl.agent.peering import IntroduceAnswer, IntroduceRequest, RelayAnswer, RelayRequest
from retexo_fl.config_keys import Scalar
from retexo_fl.errors import ClientFailed, RemoteProtocolError, RetexoError

ClientRequest = (
    Ticket
    | IntroduceRequest
    | PublishRequest
    | RelayRequest
    | CollectRequest
    | TrainRequest
    | EvaluateRequest
    | PredictRequest
)
ClientAnswer = (
    HelloAnswer
    | IntroduceAnswer
    | PublishAnswer
    | RelayAnswer
    | CollectAnswer
    | TrainAnswer
    | EvaluateAnswer
    | PredictAnswer
)
Answer = TypeVar("Answer")
Parts = list[bytes | memoryview]

#: The methods of :class:`~retexo_fl.agent.peering.AgentApi`: what each takes and what it returns.
MESSAGES: Final[Mapping[str, tuple[type[Any], type[Any]]]] = MappingProxyType(
    {
        "hello": (Ticket, HelloAnswer),
        "introduce": (IntroduceRequest, IntroduceAnswer),
        "publish": (PublishRequest, PublishAnswer),
        "relay": (RelayRequest, RelayAnswer),
        "collect": (CollectRequest, CollectAnswer),
        "train_layer": (TrainRequest, TrainAnswer),
        "evaluate_layer": (EvaluateRequest, EvaluateAnswer),
        "predict": (PredictRequest, PredictAnswer),
    }
)
#: A run configuration has some fifty keys; a status is long where there are thousands of peers.
MAX_HEAD_BYTES: Final = 2**24
#: Weights of 268 million float32 parameters.
MAX_BODY_BYTES: Final = 2**30
#: An error's sentence; a longer one is cut.
_MAX_SENTENCE: Final = 4000

_MAGIC: Final = b"RTXA"
_WIRE_VERSION: Final = 1
_PREFIX: Final = struct.Struct("<4sBBHIQ")
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
                be.
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
        return cls(kind=Kind(kind), head_bytes=head_bytes, body_bytes=body_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One question to a client.

    Attributes:
        message: Name of the method, one of :data:`MESSAGES`.
        asked: Its argument.
        config: The run configuration that it came with.
        identity: Equal for questions that have the same answer.
    """

    message: str
    asked: ClientRequest
    config: Mapping[str, Scalar]
    identity: bytes

    @property
    def ticket(self) -> Ticket:
        """What the question belongs to."""
        return self.asked if isinstance(self.asked, Ticket) else self.asked.ticket


ALIVE: Final = _PREFIX.pack(_MAGIC, _WIRE_VERSION, Kind.ALIVE, 0, 0, 0)


# ---- requests and answers -----------------------------------------------------------------------


def encode_request(message: str, asked: ClientRequest, config: Mapping[str, Scalar]) -> Parts:
    """Return the pieces of a request."""
    return _encode(Kind.REQUEST, asked, {"message": message, "config": dict(config)})


def decode_request(head: bytes, body: bytes) -> Request:
    """Read a request.

    Raises:
        RemoteProtocolError: It is of another version, or something in it is not as expected.
    """
    facts = _facts(head)
    message = str(facts.get("message"))
    if message not in MESSAGES:
        raise RemoteProtocolError(f"message {message[:40]!r} is unknown")
    array = wire_fields.read_array(facts.get("array"), body)
    asked: ClientRequest = wire_fields.from_fields(MESSAGES[message][0], facts.get("fields"), array)
    config = wire_fields.read_mapping(facts.get("config"), "config")
    if not all(isinstance(value, bool | int | float | str) for value in config.values()):
        raise RemoteProtocolError("config: expected true, false, numbers and texts only")
    named = json.dumps([message, facts.get("fields"), facts.get("array")], sort_keys=True)
    identity = hashlib.sha256(named.encode() + b"\n")
    identity.update(body)
    return Request(message=message, asked=asked, config=config, identity=identity.digest())


def encode_answer(answer: ClientAnswer) -> Parts:
    """Return the pieces of an answer."""
    return _encode(Kind.ANSWER, answer, {})


def decode_answer(kind: type[Answer], head: bytes, body: bytes | memoryview) -> Answer:
    """Read an answer of a class.

    Raises:
        RemoteProtocolError: It is of another version, or something in it is not as expected.
    """
    facts = _facts(head)
    array = wire_fields.read_array(facts.get("array"), body)
    return wire_fields.from_fields(kind, facts.get("fields"), array)


# ---- failures and control -----------------------------------------------------------------------


def encode_failure(error: RetexoError) -> Parts:
    """Return the pieces that say by name why there is no answer."""
    said = {"name": type(error).__name__, "sentence": str(error)[:_MAX_SENTENCE]}
    return _message(Kind.FAILURE, said)


def failure_of(head: bytes) -> RetexoError:
    """Return the named error that a failure tells of; its version does not matter.

    Raises:
        RemoteProtocolError: It tells of none.
    """
    facts = _json(head)
    name, sentence = facts.get("name"), facts.get("sentence")
    if not isinstance(name, str) or not isinstance(sentence, str):
        raise RemoteProtocolError("a failure has no name or no sentence")
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


def _encode(kind: Kind, record: ClientRequest | ClientAnswer, extra: Mapping[str, Any]) -> Parts:
    array = wire_fields.array_of(record)
    described = None if array is None else wire_fields.describe_array(*array)
    head = {**extra, "fields": wire_fields.to_fields(record), "array": described}
    return _message(kind, head, None if array is None else wire_fields.array_bytes(array[1]))


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
            "ClientApp, and start the agent again"
        )
    return facts


def _one_line(value: object) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in str(value)[:40])


def _json(head: bytes) -> Mapping[str, Any]:
    try:
        return wire_fields.read_mapping(json.loads(head), "head")
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError("the head of a message is no JSON") from error
