"""The list of all questions, what follows from one, and who answers them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Protocol

import numpy as np

from retexo_fl.client.api.base import AnswerT, Question, Request
from retexo_fl.client.api.exchange import COLLECT, PUBLISH, RELAY
from retexo_fl.client.api.job import COUNTS, END, HELLO, INTRODUCE, KEYS, LABELS
from retexo_fl.client.api.predictions import PREDICT, PREDICTED
from retexo_fl.client.api.recipe import COLUMN_SUMS, COLUMNS, RECIPE, SUMMARY
from retexo_fl.client.api.rounds import (
    BASIS,
    CHOICE,
    EVALUATE,
    GRAM,
    STRUCTURE,
    TRAIN,
    WHITEN,
    EvaluateRequest,
    MaskedAnswer,
)
from retexo_fl.errors import LocalProtocolError
from retexo_fl.updates.digest import array_digest

#: By name.
QUESTIONS: Final[Mapping[str, Question]] = MappingProxyType(
    {
        question.name: question
        for question in (
            *(HELLO, INTRODUCE, BASIS, CHOICE, PUBLISH, RELAY, COLLECT),
            *(STRUCTURE, WHITEN, GRAM, TRAIN, EVALUATE, PREDICT, PREDICTED),
            *(SUMMARY, COLUMNS, COLUMN_SUMS, RECIPE),
            *(KEYS, COUNTS, LABELS, END),
        )
    }
)
#: Answered by sums, which may be masked.
_SUMMED: Final = frozenset(
    question.request
    for question in (BASIS, CHOICE, STRUCTURE, GRAM, COUNTS, LABELS, TRAIN, EVALUATE, PREDICT)
)
_BY_REQUEST: Final = {question.request: question for question in QUESTIONS.values()}


def question_of(request: Request[Any]) -> Question:
    """Return the question that a request asks."""
    return _BY_REQUEST[type(request)]


def purpose_of(request: Request[Any]) -> str:
    """Return what distinguishes questions of one stage and round."""
    name = question_of(request).message_type
    if isinstance(request, EvaluateRequest):
        name = f"{name} {request.nodes}"
    return name


def asks_sums(request: Request[Any]) -> bool:
    """Return whether a request is answered by sums over nodes."""
    return type(request) in _SUMMED


def answer_class(request: Request[AnswerT], *, masked: bool) -> type[AnswerT]:
    """Return the class of the answer to a request, in a job whose sums are masked or not."""
    is_sum = asks_sums(request)
    kind: type[Any] = MaskedAnswer if masked and is_sum else question_of(request).answer
    return kind


def is_lacking(answer: object) -> bool:
    """Return whether an answer says that the client lacks the weights, or keys, to answer with."""
    return any(getattr(answer, name, None) for name in ("lacks_weights", "lacks_keys"))


def told_weights(request: Request[Any], weights: np.ndarray | None) -> bytes:
    """Return the digest of all that an answer is computed with, the same on all clients.

    Args:
        request: What was asked.
        weights: What the client computes with, decoded.
    """
    facts = np.asarray(getattr(request, "label_facts", ()), np.float64)
    told = hashlib.sha256(b"retexo masked weights 2" + request.ticket.weights_digest)
    told.update(facts.tobytes())
    if rows := getattr(request, "rows", ""):
        # No multiple of 8 bytes, as facts are.
        told.update(f"rows: {rows}".encode())
    if weights is not None:
        told.update(array_digest(weights))
    return told.digest()


def chain_digest(previous_digest: bytes, weights: np.ndarray | None) -> bytes:
    """Return the 32 bytes that name a stage's input rows.

    They depend on all weights that made the rows: the digest of the stage before and its weights.
    """
    before = b"retexo rows" + previous_digest
    return hashlib.sha256(before).digest() if weights is None else array_digest(weights, before)


class ClientApi(Protocol):
    """A client, wherever it lives."""

    def ask(self, request: Request[AnswerT]) -> AnswerT:
        """Answer a request.

        Raises:
            RetexoError: The named failure; ``StaleAttempt`` for an attempt that was superseded.
        """
        ...


class Answering:
    """A client that has a method for each question, of the question's name.

    A method takes the request, and returns the answer without waiting for another client.
    """

    __slots__ = ()

    def ask(self, request: Request[AnswerT]) -> AnswerT:
        """See :class:`ClientApi`.

        Raises:
            LocalProtocolError: It has no such method: in a simulation no client needs
                to be found.
        """
        question = question_of(request)
        method = getattr(self, question.name, None)
        if method is None:
            raise LocalProtocolError(
                f"{question.message_type}: only for a client that has an agent"
            )
        answer: AnswerT = method(request)
        return answer
