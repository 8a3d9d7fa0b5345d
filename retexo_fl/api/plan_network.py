"""What `retexo plan --links` adds: the network time of a deployment, exchange by exchange."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from retexo_fl.api.plan_exchanges import Payloads, PlannedParts, is_exact, stage_payloads
from retexo_fl.config import RunConfig
from retexo_fl.ledger import SERVER
from retexo_fl.methods.forecasts import forecast_of
from retexo_fl.run_log.json_form import to_json
from retexo_fl.simulation.deployment_time import (
    OPENED,
    FlowerMessage,
    acknowledgement_s,
    block_s,
    link_s,
    receive_s,
    send_s,
)
from retexo_fl.simulation.links import Links, read_links
from retexo_fl.simulation.tcp_time import Path
from retexo_fl.training.effective_plan import effective_plan
from retexo_fl.training.messages import Asked, Record, training_messages
from retexo_fl.training.stage_model import ModelShape


def network_facts(config: RunConfig, planned: PlannedParts) -> dict[str, Any]:
    """Return the network time of a deployment over ``config.links``, as JSON has it.

    Args:
        config: Of the run.
        planned: All clients' parts.

    Raises:
        ConfigurationError: The links cannot be read.
    """
    parts = planned.parts
    links = read_links(config.links, clients=len(parts))
    shape = ModelShape.of_part(config, parts[0])
    exchanges = [*_exchanges(config, shape, planned, links)]
    # What a stage is tried as beside that, few graphs need.
    alone = replace(config, candidates="none")
    messages = [
        _message(asked, links)
        for asked in training_messages(
            alone, shape, planned.counts(config), forecast=forecast_of(config)
        )
    ]
    exchanges_s = sum(one["count"] * one["seconds"] for one in exchanges)
    messages_s = sum(one["count"] * message_s(one, OPENED[0]) for one in messages)
    return {
        "links": links.text,
        "lines": to_json(links.facts()),
        "exchanges": exchanges,
        "messages": messages,
        "seconds": {
            "exchanges": exchanges_s,
            "messages": messages_s,
            "all": exchanges_s + messages_s,
            "messages_most": sum(one["count"] * message_s(one, OPENED[-1]) for one in messages),
        },
    }


# ---- between clients ----------------------------------------------------------------------------


def _exchanges(
    config: RunConfig, shape: ModelShape, planned: PlannedParts, links: Links
) -> Iterator[dict[str, Any]]:
    """Yield one entry for each exchange that moves vectors; the first opens the links."""
    plans = planned.plans(effective_plan(config))
    if not any(plan.num_send for plan in plans):
        return
    for stage, count in enumerate(forecast_of(config).exchanges(config, shape)):
        payloads = stage_payloads(config, shape, planned, stage)
        if not payloads:
            continue
        known = {"stage": stage, "count": count, "is_exact": is_exact(config, shape, stage)}
        yield known | _slowest(payloads, links, opens=not stage)


def _slowest(payloads: Payloads, links: Links, *, opens: bool) -> dict[str, Any]:
    """Return the pair that an exchange waits for."""
    found = []
    for (sender, receiver), size_bytes in payloads.items():
        path = _path(links, sender, receiver)
        opening_s = link_s(path) if opens else 0.0
        found.append((opening_s + block_s(path, size_bytes), opening_s, sender, receiver))
    seconds, opening_s, sender, receiver = max(found)
    return {
        "sender": sender,
        "receiver": receiver,
        "payload_bytes": payloads[sender, receiver],
        "opening_s": opening_s,
        "seconds": seconds,
        "acknowledged_s": seconds + acknowledgement_s(_path(links, sender, receiver)),
    }


# ---- Flower's messages --------------------------------------------------------------------------


def _message(asked: Asked, links: Links) -> dict[str, Any]:
    """Return what the slowest of the asked clients takes, by connections opened anew."""
    found = []
    for client in asked.clients:
        path = _path(links, client, SERVER)
        message = FlowerMessage(
            down=asked.down, up=asked.reply_of(client), is_first=asked.purpose == "hello"
        )
        received = [receive_s(path, message, opened=opened) for opened in OPENED]
        sent = [send_s(path, message, opened=opened) for opened in OPENED]
        found.append((received[0] + sent[0], received, sent, client))
    _, received, sent, client = max(found)
    return {
        "stage": asked.stage,
        "purpose": asked.purpose,
        "first": asked.first,
        "count": asked.count,
        "client": client,
        "down_bytes": _bytes_of(asked.down),
        "up_bytes": _bytes_of(asked.up),
        "receive_s": received,
        "send_s": sent,
    }


def _bytes_of(records: Iterable[Record]) -> int | None:
    """Return the bytes of arrays in records; None if they have none."""
    return sum(record.more_bytes for record in records) or None


def message_s(message: dict[str, Any], opened: int) -> float:
    """Return what a message of :func:`network_facts` takes, by connections opened anew."""
    seconds: float = message["receive_s"][opened] + message["send_s"][opened]
    return seconds


def _path(links: Links, one: int, other: int) -> Path:
    return Path(there=links.between(one, other), back=links.between(other, one))
