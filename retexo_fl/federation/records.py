"""The only translation between Flower's records and ours.

A message has at most three records: ``retexo`` (a ConfigRecord of scalars), ``weights`` (an
ArrayRecord with one flat array) and, in replies, ``metrics`` (a MetricRecord of counts and sums).
One array and one metric record in a train reply are what Flower's own strategies expect.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from retexo_fl import errors
from retexo_fl.agent.api import (
    CollectAnswer,
    CollectRequest,
    EvaluateAnswer,
    EvaluateRequest,
    HelloAnswer,
    PeerTraffic,
    PredictAnswer,
    PredictRequest,
    PublishAnswer,
    PublishRequest,
    Ticket,
    Traffic,
    TrainAnswer,
    TrainRequest,
)
from retexo_fl.agent.peering import IntroduceAnswer, IntroduceRequest, RelayAnswer, RelayRequest
from retexo_fl.errors import ClientFailed, RemoteProtocolError, RetexoError
from retexo_fl.federation import flat_arrays
from retexo_fl.federation.peering_records import (
    introduce_of,
    relay_of,
)
from retexo_fl.federation.record_fields import (
    field_key,
    peer_traffic_metrics,
    settings_of,
    take,
    ticket_of,
    ticket_settings,
    traffic_metrics,
)

HELLO: Final = "query.hello"
INTRODUCE: Final = "query.introduce"
PUBLISH: Final = "query.publish"
RELAY: Final = "query.relay"
COLLECT: Final = "query.collect"
TRAIN: Final = "train.layer"
EVALUATE: Final = "evaluate.layer"
PREDICT: Final = "query.predict"

_SETTINGS: Final = "retexo"
_WEIGHTS: Final = "weights"
_METRICS: Final = "metrics"
#: Record of a reply that says by name why there is no answer.
FAILURE: Final = "failure"

Peering = IntroduceRequest | RelayRequest
Request = (
    Ticket
    | PublishRequest
    | CollectRequest
    | TrainRequest
    | EvaluateRequest
    | PredictRequest
    | Peering
)
#: Answers that are settings; the others are counts and sums.
Told = HelloAnswer | IntroduceAnswer | RelayAnswer
Answer = Told | PublishAnswer | CollectAnswer | TrainAnswer | EvaluateAnswer | PredictAnswer


# ---- weights ------------------------------------------------------------------------------------


def weights_record(weights: np.ndarray) -> ArrayRecord:
    """Wrap (P,) weights or sums."""
    return ArrayRecord({_WEIGHTS: flat_arrays.pack(weights)})


def weights_of(record: ArrayRecord) -> np.ndarray:
    """Unwrap :func:`weights_record`; the result is read-only.

    Raises:
        RemoteProtocolError: The record does not hold one flat array called ``weights``.
    """
    if list(record) != [_WEIGHTS]:
        raise RemoteProtocolError(f"got arrays {sorted(record)}; expected one called 'weights'")
    array = flat_arrays.unpack(record[_WEIGHTS])
    if array.ndim != 1:
        raise RemoteProtocolError(f"got weights of shape {array.shape}; expected one dimension")
    return array


# ---- requests -----------------------------------------------------------------------------------


def request_content(request: Request) -> RecordDict:
    """Return the content of the message that carries a request."""
    if isinstance(request, Ticket):
        return RecordDict({_SETTINGS: ConfigRecord(ticket_settings(request))})
    settings = ticket_settings(request.ticket)
    settings |= settings_of(request, without={"ticket", _WEIGHTS})
    content = RecordDict({_SETTINGS: ConfigRecord(settings)})
    weights: np.ndarray | None = getattr(request, _WEIGHTS, None)
    if weights is not None:
        content[_WEIGHTS] = weights_record(weights)
    return content


def read_introduce(message: Message) -> IntroduceRequest:
    """Read a ``query.introduce``."""
    return introduce_of(settings_record(message))


def read_relay(message: Message) -> RelayRequest:
    """Read a ``query.relay``."""
    return relay_of(settings_record(message))


def read_ticket(message: Message) -> Ticket:
    """Return what a request belongs to."""
    return ticket_of(settings_record(message))


def read_publish(message: Message) -> PublishRequest:
    """Read a ``query.publish``."""
    settings = settings_record(message)
    return PublishRequest(
        ticket=ticket_of(settings),
        previous_digest=take(settings, "previous-digest", bytes),
        weights=weights_in(message) if _WEIGHTS in message.content else None,
    )


def read_collect(message: Message) -> CollectRequest:
    """Read a ``query.collect``."""
    settings = settings_record(message)
    return CollectRequest(
        ticket=ticket_of(settings),
        wait_s=take(settings, "wait-s", float),
        close=take(settings, "close", bool),
    )


def read_train(message: Message) -> TrainRequest:
    """Read a ``train.layer``."""
    return TrainRequest(ticket=read_ticket(message), weights=weights_in(message))


def read_evaluate(message: Message) -> EvaluateRequest:
    """Read an ``evaluate.layer``."""
    settings = settings_record(message)
    return EvaluateRequest(
        ticket=ticket_of(settings),
        weights=weights_in(message),
        nodes=take(settings, "nodes", str),
        last=take(settings, "last", bool),
    )


def read_predict(message: Message) -> PredictRequest:
    """Read a ``query.predict``."""
    settings = settings_record(message)
    return PredictRequest(
        ticket=ticket_of(settings), weights=weights_in(message), form=take(settings, "form", str)
    )


# ---- answers ------------------------------------------------------------------------------------


def answer_content(answer: Answer) -> RecordDict:
    """Return the content of a reply."""
    if isinstance(answer, Told):
        return RecordDict({_SETTINGS: ConfigRecord(settings_of(answer))})
    metrics: dict[str, Any] = {}
    for item in fields(answer):
        value = getattr(answer, item.name)
        if isinstance(value, Traffic):
            metrics |= traffic_metrics(value)
        elif isinstance(value, PeerTraffic):
            metrics |= peer_traffic_metrics(field_key(item.name), value)
        elif isinstance(value, tuple):
            # Flower's records have no empty lists.
            metrics |= {field_key(item.name): list(value)} if value else {}
        elif not isinstance(value, np.ndarray):
            metrics[_METRIC_NAMES.get(item.name, field_key(item.name))] = value + 0
    content = RecordDict({_METRICS: MetricRecord(metrics)})
    if isinstance(answer, TrainAnswer):
        content[_WEIGHTS] = weights_record(answer.update_sum)
    return content


def failure_content(error: RetexoError) -> RecordDict:
    """Return the content of a reply that says by name why there is no answer."""
    failure = ConfigRecord({"name": type(error).__name__, "message": str(error)})
    return RecordDict({FAILURE: failure})


def raise_failure(reply: Message, who: str) -> None:
    """Raise what a reply says went wrong at ``who`` (such as ``client 3``), if anything did.

    Raises:
        RetexoError: The client's own named error, its sentence preceded by the client; or
            ``ClientFailed`` where Flower itself reports that the client's process ended or raised.
    """
    if reply.has_error():
        reason = " ".join(str(reply.error.reason).split())
        raise ClientFailed(f"{who}: {reason} (Flower error code {reply.error.code})")
    if FAILURE not in reply.content:
        return
    failure = reply.content.config_records[FAILURE]
    name, sentence = str(failure.get("name")), str(failure.get("message"))
    known = getattr(errors, name, None)
    if isinstance(known, type) and issubclass(known, RetexoError):
        raise known(sentence if sentence.startswith("client ") else f"{who}: {sentence}")
    raise ClientFailed(f"{who}: {name}: {sentence}")


# ---- pieces -------------------------------------------------------------------------------------

#: The count by which Flower's own strategies weigh an update.
_METRIC_NAMES: Final = {"examples": "num-examples"}


def settings_record(message: Message) -> ConfigRecord:
    """Return a message's settings.

    Raises:
        RemoteProtocolError: It has none.
    """
    record = message.content.get(_SETTINGS)
    if not isinstance(record, ConfigRecord):
        raise RemoteProtocolError(f"{message.metadata.message_type}: no record called 'retexo'")
    return record


def metrics_record(message: Message) -> MetricRecord:
    """Return a reply's counts and sums.

    Raises:
        RemoteProtocolError: It has none.
    """
    record = message.content.get(_METRICS)
    if not isinstance(record, MetricRecord):
        raise RemoteProtocolError(f"{message.metadata.message_type}: no record called 'metrics'")
    return record


def weights_in(message: Message) -> np.ndarray:
    """Return the (P,) weights or sums of a message.

    Raises:
        RemoteProtocolError: It has none.
    """
    record = message.content.get(_WEIGHTS)
    if not isinstance(record, ArrayRecord):
        raise RemoteProtocolError(f"{message.metadata.message_type}: no record called 'weights'")
    return weights_of(record)
