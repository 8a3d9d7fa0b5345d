"""What both ends of masked sums make of each other's messages, beyond their form."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict

from retexo_fl.client.api import (
    KeysRequest,
    LabelsAnswer,
    LabelsRequest,
    MaskedAnswer,
    MaskTerms,
    OpenRequest,
    Request,
    Ticket,
    TrainAnswer,
    TrainRequest,
    bits_of,
    question_of,
)
from retexo_fl.client.masked_answers import (
    SumLengths,
    counter_of,
    form_of,
    told_form,
    told_weights,
)
from retexo_fl.client.masks import ClientMasks
from retexo_fl.client.store import MemoryStore
from retexo_fl.federation import records
from retexo_fl.federation.rounds.masked_sums import MaskedSums
from retexo_fl.masking.keys import PublicKeys
from retexo_fl.updates.masked import MaskedUpdates
from tests.fuzz.message_targets import as_json, odd_json, record_of
from tests.fuzz.target import Target

_TICKET = Ticket(job="job-0123456789ab", attempt=1, stage=0, round=1)
_LENGTHS = SumLengths(update=9, classes=2)
_CLIENTS = range(4)
_TRAIN = TrainRequest(
    ticket=_TICKET,
    weights=np.zeros(9, np.float32),
    steps=MaskedUpdates().first_steps(9, most_train=3, terms=len(_CLIENTS)),
    terms=MaskTerms(asked=bits_of(_CLIENTS), opens=True),
)
_LABELS = LabelsRequest(ticket=_TICKET, terms=_TRAIN.terms)
_UPDATE = TrainAnswer(
    update_sum=np.arange(9, dtype=np.int32),
    examples=3,
    loss_sum=0.5,
    validation_examples=1,
    validation_loss_sum=0.25,
    validation_correct=1,
)
_BESIDE = np.arange(2)
_MOST_COUNT = 100
_COUNTS = LabelsAnswer(uses=(1, 2, 3, 4, 5, 6))


def mask_targets() -> list[Target]:
    """Return what a client, and the server, read beyond the form of messages about masked sums."""
    stores = [MemoryStore() for _ in _CLIENTS]
    public = [ClientMasks(_TICKET.job, c, stores[c]).introduce(1)[0] for c in _CLIENTS]
    keys = KeysRequest(
        ticket=_TICKET,
        clients=bits_of(_CLIENTS),
        keys=np.frombuffer(b"".join(public), np.uint8),
        most_count=_MOST_COUNT,
    )
    learnt = copy.deepcopy(stores)
    for client in _CLIENTS:
        ClientMasks(_TICKET.job, client, learnt[client]).learn(keys)

    def answers(request: Request[Any], answer: Any) -> dict[int, MaskedAnswer]:
        return {client: _hidden(_client(client, learnt), request, answer) for client in _CLIENTS}

    sealed = [answer.shares or b"" for answer in answers(_LABELS, _COUNTS).values()]
    size = len(sealed[0]) // len(_CLIENTS)
    opening = OpenRequest(
        ticket=_TICKET,
        purpose="query.labels",
        asked_with=_LABELS.terms,
        form=told_form(_LABELS, form_of(_LABELS, _LENGTHS, counter_of(_MOST_COUNT))),
        weights=told_weights(_LABELS, None),
        included=bits_of(_CLIENTS),
        shares=np.frombuffer(b"".join(piece[:size] for piece in sealed), np.uint8),
    )
    trained = answers(_TRAIN, _UPDATE)
    masking = MaskedSums(
        job=_TICKET.job,
        keys=PublicKeys(by_client=dict(enumerate(public))).digest,
        opens=True,
        most_count=_MOST_COUNT,
    )

    def add_up(answer: MaskedAnswer) -> object:
        adding = masking.summed(
            dict.fromkeys(_CLIENTS, _TRAIN),
            {**trained, 0: answer},
            weights=_TRAIN.weights,
            lengths=_LENGTHS,
            purpose="train",
        )
        return next(adding)

    def hide(request: Any) -> object:
        return _hidden(_client(0, learnt), request, _UPDATE)

    return [
        _request("masks-keys", keys, lambda asked: _client(0, stores).learn(asked)),
        _request("masks-open", opening, lambda asked: _client(0, learnt).open(asked)),
        _request("masks-train", _TRAIN, hide),
        _target(
            "masks-answer",
            records.answer_content(trained[0]),
            lambda content: add_up(records.read_answer(MaskedAnswer, _reply(content))),
        ),
    ]


def _client(client: int, stores: list[MemoryStore]) -> ClientMasks:
    """Return a client that has not answered anything since its store was filled."""
    return ClientMasks(_TICKET.job, client, copy.deepcopy(stores[client]))


def _hidden(masks: ClientMasks, request: Request[Any], answer: Any) -> MaskedAnswer:
    beside = _BESIDE if answer is _UPDATE else np.zeros(0, np.int64)
    return masks.hide(request, answer, _weights(request), _LENGTHS, beside)


def _weights(request: Request[Any]) -> np.ndarray | None:
    return getattr(request, "weights", None)


def _reply(content: RecordDict) -> Message:
    asked = Message(RecordDict(), dst_node_id=1, message_type="query")
    return Message(content, reply_to=asked)


def _request(name: str, request: Request[Any], read: Callable[[Any], object]) -> Target:
    kind = question_of(request).message_type

    def read_request(content: RecordDict) -> object:
        return read(records.read_request(Message(content, dst_node_id=1, message_type=kind)))

    return _target(name, records.request_content(request), read_request)


def _target(name: str, content: RecordDict, read: Callable[[RecordDict], object]) -> Target:
    """Return a target whose cases are a record's values as JSON."""
    others: Mapping[str, Any] = {key: item for key, item in content.items() if key != "retexo"}
    seeds = [json.dumps(as_json(content.config_records["retexo"])).encode()]

    def read_values(data: bytes) -> object:
        values = record_of(ConfigRecord, data)
        return None if values is None else read(RecordDict({**others, "retexo": values}))

    return Target(
        name=name,
        group="messages",
        seeds=seeds,
        made=odd_json(seeds),
        read=read_values,
        cases=3_000,
    )
