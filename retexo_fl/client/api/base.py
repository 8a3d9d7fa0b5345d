"""What every question is: a request, which carries a ticket, and its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

#: Version of the messages between server and clients; both ends must have the same.
MESSAGE_VERSION: Final = 21

Answer_co = TypeVar("Answer_co", covariant=True)
AnswerT = TypeVar("AnswerT")


class Request(Generic[Answer_co]):
    """What the server asks; the parameter is the class of the answer."""

    __slots__ = ()
    ticket: Ticket


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """What a message belongs to; clients refuse a lower attempt than they have seen.

    Attributes:
        job: Name of the training.
        attempt: From 1.
        stage: Stage index.
        round: Round of the stage, from 1; 0 outside rounds.
        weights_digest: 32 bytes naming the weights that made the stage's input rows.
    """

    job: str
    attempt: int
    stage: int = 0
    round: int = 0
    weights_digest: bytes = b""


@dataclass(frozen=True, slots=True)
class Question:
    """A question as both ends know it.

    Attributes:
        name: Method of the client that answers it.
        message_type: Of Flower's messages.
        request: Class of the request.
        answer: Class of the answer.
    """

    name: str
    message_type: str
    request: type[Any]
    answer: type[Any]
