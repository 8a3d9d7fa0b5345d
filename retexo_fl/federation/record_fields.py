"""Single fields of Flower's records, read with their types checked, and their bytes."""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import fields
from typing import Any, Final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from retexo_fl.agent.api import PeerTraffic, Ticket, Traffic
from retexo_fl.errors import RemoteProtocolError
from retexo_fl.ledger import Volume

#: More bytes or nodes than there are; sums of what all clients tell stay exact in float64.
_MAX_COUNT: Final = 2**48


def scalar_bytes(value: object) -> int:
    """Count as Flower's records do, whose own count refuses empty text."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, list | tuple):
        return 8 * len(value)
    return 1 if isinstance(value, bool) else 8


def field_key(field_name: str) -> str:
    """Return the name of a field on the wire."""
    return field_name.replace("_", "-")


def settings_of(record: object, *, without: Container[str] = ()) -> dict[str, Any]:
    """Return the fields of a dataclass as settings.

    Lists and texts that are empty are left out: Flower's records have no empty lists, and what is
    not used costs no byte.
    """
    settings: dict[str, Any] = {}
    for item in fields(record):  # type: ignore[arg-type]
        value = getattr(record, item.name)
        if item.name in without or (isinstance(value, tuple | str) and not value):
            continue
        if isinstance(value, tuple):
            value = list(value)
        if isinstance(value, np.ndarray):
            value = value.tobytes()
        settings[field_key(item.name)] = value
    return settings


def counts(settings: ConfigRecord, key: str) -> tuple[int, ...]:
    """Return a setting that is a list of counts, empty where it is missing.

    Raises:
        RemoteProtocolError: It is something else.
    """
    values = settings.get(key, [])
    if not isinstance(values, list) or not all(type(item) is int and item >= 0 for item in values):
        raise RemoteProtocolError(f"setting {key!r} is {values!r}; expected counts")
    return tuple(int(item) for item in values)


def ticket_settings(ticket: Ticket) -> dict[str, Any]:
    """Return a ticket as settings."""
    return {field_key(item.name): getattr(ticket, item.name) for item in fields(ticket)}


def ticket_of(settings: ConfigRecord) -> Ticket:
    """Read a ticket from settings."""
    return Ticket(
        job=take(settings, "job", str),
        attempt=take(settings, "attempt", int),
        stage=take(settings, "stage", int),
        round=take(settings, "round", int),
        weights_digest=take(settings, "weights-digest", bytes),
    )


def group_of(ticket: Ticket) -> str:
    """Return what Flower copies from a message to its reply: attempt, stage and round."""
    return f"{ticket.attempt}.{ticket.stage}.{ticket.round}"


def round_of(group: str) -> int:
    """Return the round in :func:`group_of`."""
    return int(group.rpartition(".")[2])


def take(settings: ConfigRecord, key: str, wanted: type) -> Any:
    """Return a setting of exactly one type.

    Raises:
        RemoteProtocolError: It is missing or of another type.
    """
    value = settings.get(key)
    if type(value) is not wanted:
        raise RemoteProtocolError(f"setting {key!r} is {value!r}; expected a {wanted.__name__}")
    return value


def number(metrics: MetricRecord, key: str) -> float:
    """Return a metric that is a number.

    Raises:
        RemoteProtocolError: It is missing or none.
    """
    value = metrics.get(key)
    if not isinstance(value, int | float):
        raise RemoteProtocolError(f"metric {key!r} is {value!r}; expected a number")
    return float(value)


def count(metrics: MetricRecord, key: str) -> int:
    """Return a metric that is a count.

    Raises:
        RemoteProtocolError: It is missing, no whole number, negative, or more than can be.
    """
    value = metrics.get(key)
    if not isinstance(value, int) or not 0 <= value <= _MAX_COUNT:
        raise RemoteProtocolError(
            f"metric {key!r} is {value!r}; expected a count up to {_MAX_COUNT}"
        )
    return value


def numbers(metrics: MetricRecord, key: str) -> tuple[float, ...]:
    """Return a metric that is a list of numbers, empty where it is missing.

    Raises:
        RemoteProtocolError: It is something else.
    """
    values = metrics.get(key, [])
    if not isinstance(values, list) or not all(isinstance(item, int | float) for item in values):
        raise RemoteProtocolError(f"metric {key!r} is {values!r}; expected numbers")
    return tuple(float(item) for item in values)


def traffic_metrics(traffic: Traffic, prefix: str = "") -> dict[str, int]:
    """Return the bytes of an exchange as metrics."""
    metrics = {}
    for kind in ("boundary", "control"):
        volume: Volume = getattr(traffic, kind)
        for item in fields(volume):
            value = getattr(volume, item.name)
            if value is not None:
                metrics[f"{prefix}{kind}-{item.name}"] = value
    return metrics


def traffic_of(metrics: MetricRecord, prefix: str = "") -> Traffic:
    """Read :func:`traffic_metrics`."""

    def volume(kind: str) -> Volume:
        wire = f"{prefix}{kind}-wire"
        return Volume(
            messages=count(metrics, f"{prefix}{kind}-messages"),
            raw=count(metrics, f"{prefix}{kind}-raw"),
            payload=count(metrics, f"{prefix}{kind}-payload"),
            wire=count(metrics, wire) if wire in metrics else None,
        )

    return Traffic(boundary=volume("boundary"), control=volume("control"))


def peer_traffic_metrics(name: str, traffic: PeerTraffic) -> dict[str, int]:
    """Return the bytes of exchanges inside a round as metrics; none where there were none."""
    if traffic == PeerTraffic():
        return {}
    sent = traffic_metrics(traffic.sent, f"{name}-sent-")
    return sent | traffic_metrics(traffic.received, f"{name}-received-")


def peer_traffic_of(metrics: MetricRecord, name: str) -> PeerTraffic:
    """Read :func:`peer_traffic_metrics`."""
    if not any(key.startswith(f"{name}-") for key in metrics):
        return PeerTraffic()
    return PeerTraffic(
        sent=traffic_of(metrics, f"{name}-sent-"),
        received=traffic_of(metrics, f"{name}-received-"),
    )


def content_volumes(content: RecordDict) -> tuple[Volume, Volume]:
    """Return the bytes of a message's weights and of everything else in it.

    Flower tells nobody what its transport adds, so neither is measured on the wire.
    """
    weights = 0
    other = 0
    for record in content.values():
        if isinstance(record, ArrayRecord):
            weights += sum(
                math.prod(array.shape) * np.dtype(array.dtype).itemsize for array in record.values()
            )
        else:
            other += sum(len(key) + scalar_bytes(value) for key, value in record.items())
    return (
        Volume(messages=1, raw=weights, payload=weights, wire=None),
        Volume(messages=1, payload=other, wire=None),
    )
