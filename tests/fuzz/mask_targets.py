"""What both ends of masked sums make of each other's messages, beyond their form."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict

from retexo_fl.client.answers import SumFacts
from retexo_fl.client.api import (
    KeysRequest,
    MaskedAnswer,
    Request,
    Ticket,
    TrainAnswer,
    TrainRequest,
    question_of,
)
from retexo_fl.client.masks import ClientMasks
from retexo_fl.client.store import MemoryStore
from retexo_fl.federation import records
from retexo_fl.federation.rounds.masked_sums import MaskedSums
from retexo_fl.masking.agreement import Cohort
from retexo_fl.updates.masked import MaskedUpdates
from tests.fuzz.message_targets import as_json, odd_json, record_of
from tests.fuzz.target import Target

_TICKET = Ticket(job="job-0123456789ab", attempt=1, stage=0, round=1)
_LENGTHS = SumFacts(update=9, classes=2)
_CLIENTS = range(4)
_TRAIN = TrainRequest(
    ticket=_TICKET,
    weights=np.zeros(9, np.float32),
    steps=MaskedUpdates().first_steps(9, most_train=3, terms=len(_CLIENTS)),
)
_UPDATE = TrainAnswer(
    update_sum=np.arange(11),
    examples=3,
    loss_sum=0.5,
    validation_examples=1,
    validation_loss_sum=0.25,
    validation_correct=1,
)
_USES = frozenset({"train", "validation"})


def mask_targets() -> list[Target]:
    """Return what a client, and the server, read beyond the form of messages about masked sums."""
    stores = [MemoryStore() for _ in _CLIENTS]
    public = [_masks(c, stores[c]).introduce(1)[0] for c in _CLIENTS]
    keys = KeysRequest(
        ticket=_TICKET,
        agreement=b"a" * 32,
        cohort=tuple(_CLIENTS),
        uses=" ".join(sorted(_USES)),
        keys=np.frombuffer(b"".join(public), np.uint8),
    )
    learnt = copy.deepcopy(stores)
    for client in _CLIENTS:
        _masks(client, learnt[client]).learn(keys)

    trained = {c: _hidden(_client(c, learnt), _TRAIN, _UPDATE) for c in _CLIENTS}
    cohort = Cohort(members=tuple(_CLIENTS), uses=_USES)
    masking = MaskedSums(cohorts=(cohort,))

    def add_up(answer: MaskedAnswer) -> object:
        return masking.summed(_TRAIN, {**trained, 0: answer}, _LENGTHS)

    def hide(request: Any) -> object:
        return _hidden(_client(0, learnt), request, _UPDATE)

    return [
        _request("masks-keys", keys, lambda asked: _client(0, stores).learn(asked)),
        _request("masks-train", _TRAIN, hide),
        _target(
            "masks-answer",
            records.answer_content(trained[0]),
            lambda content: add_up(records.read_answer(MaskedAnswer, _reply(content))),
        ),
    ]


def _client(client: int, stores: list[MemoryStore]) -> ClientMasks:
    """Return a client that has not answered anything since its store was filled."""
    return _masks(client, copy.deepcopy(stores[client]))


def _masks(client: int, store: MemoryStore) -> ClientMasks:
    return ClientMasks(_TICKET.job, client, store, clients=len(_CLIENTS))


def _hidden(masks: ClientMasks, request: TrainRequest, answer: TrainAnswer) -> MaskedAnswer:
    return masks.hide(request, answer, request.weights, _LENGTHS)


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
