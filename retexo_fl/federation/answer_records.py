"""What clients answered, read out of Flower's replies; :mod:`.records` writes them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from flwr.app import Message

from retexo_fl.agent.api import (
    CollectAnswer,
    EvaluateAnswer,
    HelloAnswer,
    PredictAnswer,
    PublishAnswer,
    TrainAnswer,
)
from retexo_fl.agent.peering import IntroduceAnswer, RelayAnswer
from retexo_fl.federation import records
from retexo_fl.federation.peering_records import introduced_of, relayed_of
from retexo_fl.federation.record_fields import (
    count,
    field_key,
    number,
    numbers,
    peer_traffic_of,
    take,
    traffic_of,
)


def read_hello(reply: Message) -> HelloAnswer:
    """Read the reply to a ``query.hello``."""
    settings = records.settings_record(reply)
    values: dict[str, Any] = {
        item.name: take(settings, field_key(item.name), str if item.type == "str" else int)
        for item in fields(HelloAnswer)
        if item.name != "member" or "member" in settings
    }
    return HelloAnswer(**values)


def read_introduced(reply: Message) -> IntroduceAnswer:
    """Read the reply to a ``query.introduce``."""
    return introduced_of(records.settings_record(reply))


def read_relayed(reply: Message) -> RelayAnswer:
    """Read the reply to a ``query.relay``."""
    return relayed_of(records.settings_record(reply))


def read_published(reply: Message) -> PublishAnswer:
    """Read the reply to a ``query.publish``."""
    metrics = records.metrics_record(reply)
    return PublishAnswer(
        vectors=count(metrics, "vectors"),
        traffic=traffic_of(metrics),
        error_bound=numbers(metrics, "error-bound"),
    )


def read_collected(reply: Message) -> CollectAnswer:
    """Read the reply to a ``query.collect``."""
    metrics = records.metrics_record(reply)
    return CollectAnswer(
        complete=bool(count(metrics, "complete")),
        missing=count(metrics, "missing"),
        missing_peers=count(metrics, "missing-peers"),
        traffic=traffic_of(metrics),
    )


def read_update(reply: Message) -> TrainAnswer:
    """Read the reply to a ``train.layer``."""
    metrics = records.metrics_record(reply)
    return TrainAnswer(
        update_sum=records.weights_in(reply),
        examples=count(metrics, "num-examples"),
        loss_sum=number(metrics, "loss-sum"),
        validation_examples=count(metrics, "validation-examples"),
        validation_loss_sum=number(metrics, "validation-loss-sum"),
        validation_correct=count(metrics, "validation-correct"),
        validation_metric=numbers(metrics, "validation-metric"),
        training_traffic=peer_traffic_of(metrics, "training-traffic"),
        validation_traffic=peer_traffic_of(metrics, "validation-traffic"),
    )


def read_evaluated(reply: Message) -> EvaluateAnswer:
    """Read the reply to an ``evaluate.layer``."""
    metrics = records.metrics_record(reply)
    return EvaluateAnswer(
        examples=count(metrics, "num-examples"),
        loss_sum=number(metrics, "loss-sum"),
        correct=count(metrics, "correct"),
        metric=numbers(metrics, "metric"),
        traffic=peer_traffic_of(metrics, "traffic"),
    )


def read_predicted(reply: Message) -> PredictAnswer:
    """Read the reply to a ``query.predict``."""
    metrics = records.metrics_record(reply)
    names = [item.name for item in fields(PredictAnswer)]
    return PredictAnswer(**{name: count(metrics, field_key(name)) for name in names})
