"""What `retexo plan --links` adds: the network time of a deployment, exchange by exchange."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from retexo_fl.cli.tables import figures
from retexo_fl.config import RunConfig
from retexo_fl.exchange import DEFAULT_MAX_FRAME_BYTES
from retexo_fl.graph import BoundaryPlan, GraphPartition
from retexo_fl.ledger import SERVER
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
from retexo_fl.training.coded_size import lossless_bytes, rounded_features, sent_features
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.training.volume import stage_parameters
from retexo_fl.units import format_bytes

if TYPE_CHECKING:
    from rich.table import Table

#: Payload bytes by (sender, receiver).
Payloads = dict[tuple[int, int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """Messages of one kind to some clients: weights down, updates up, in bytes."""

    stage: int
    purpose: str
    count: int
    clients: Sequence[int]
    down_bytes: int | None = None
    up_bytes: int | None = None
    #: Who answers with an update.
    training: frozenset[int] = frozenset()


def network_facts(
    config: RunConfig, parts: Sequence[GraphPartition], plans: Sequence[BoundaryPlan]
) -> dict[str, Any]:
    """Return the network time of a deployment over ``config.links``, as JSON has it.

    Args:
        config: Of the run.
        parts: All clients' parts.
        plans: Their plans, of the kind that the run follows.

    Raises:
        ConfigurationError: The links cannot be read.
    """
    links = read_links(config.links, clients=len(parts))
    shape = ModelShape.of_part(config, parts[0])
    exchanges = [*_exchanges(config, shape, parts, plans, links)]
    messages = [_message(asked, links) for asked in _messages(config, shape, parts)]
    exchanges_s = sum(one["count"] * one["seconds"] for one in exchanges)
    messages_s = sum(one["count"] * _total(one, OPENED[0]) for one in messages)
    return {
        "links": links.text,
        "lines": links.facts(),
        "exchanges": exchanges,
        "messages": messages,
        "seconds": {
            "exchanges": exchanges_s,
            "messages": messages_s,
            "all": exchanges_s + messages_s,
            "messages_most": sum(one["count"] * _total(one, OPENED[-1]) for one in messages),
        },
    }


def network_table(network: dict[str, Any]) -> Table:
    """Return the same for a terminal."""
    table = figures("network time", "times", "bytes", "seconds each", "seconds")
    for one in network["exchanges"]:
        size = format_bytes(one["payload_bytes"])
        known = size if one["is_exact"] else f"<= {size}"
        _add(table, f"exchange {one['stage']}", one["count"], known, (one["seconds"],))
    for one in network["messages"]:
        moved = (one["down_bytes"] or 0) + (one["up_bytes"] or 0)
        name = one["purpose"] + ("" if one["stage"] < 0 else f" {one['stage']}")
        each = (_total(one, OPENED[0]), _total(one, OPENED[-1]))
        _add(table, name, one["count"], format_bytes(moved), each)
    total = network["seconds"]
    sums = (total["all"], total["exchanges"] + total["messages_most"])
    table.add_row("all", "", "", "", _range(sums), style="bold")
    return table


NETWORK_NOTE = (
    "Network time of a deployment on these links: for exchanges that of the slowest\n"
    "pair, for Flower's messages that of the slowest client. Expect the lower times\n"
    "if a ClientApp answers within 4 s. Flower closes connections after 5 s idle;\n"
    "the higher times are for messages that each open a new one. Computing, Flower's\n"
    "sleeps and packet loss are not included (docs/links.md)."
)


def _add(table: Table, name: str, count: int, size: str, each_s: tuple[float, ...]) -> None:
    table.add_row(name, str(count), size, _range(each_s), _range([count * s for s in each_s]))


def _range(seconds: Sequence[float]) -> str:
    shown = [f"{one:.2f}" for one in (seconds[0], seconds[-1])]
    return shown[0] if shown[0] == shown[1] else " to ".join(shown)


# ---- between clients ----------------------------------------------------------------------------


def _exchanges(
    config: RunConfig,
    shape: ModelShape,
    parts: Sequence[GraphPartition],
    plans: Sequence[BoundaryPlan],
    links: Links,
) -> Iterator[dict[str, Any]]:
    """Yield one entry for each exchange that moves vectors; the first opens the links."""
    if config.algorithm in {"drop", "central"} or not any(plan.num_send for plan in plans):
        return
    in_rounds = config.algorithm != "lazy"
    yield {"stage": 0, "count": 1, "is_exact": True} | _slowest(
        _first_payloads(config, parts, plans), links, opens=True
    )
    # Forward and backward in each round; forward once more for each validation and the test.
    count = 3 * config.rounds + 2 if in_rounds else 1
    for stage in range(1, config.layers):
        row_bytes = shape.exchange_width(stage) * np.dtype(config.dtype).itemsize
        payloads = {
            (plan.client, peer.peer): peer.send.count * row_bytes
            for plan in plans
            for peer in plan.peers
        }
        is_exact = config.codec == "dense" and config.algorithm != "bns"
        yield {"stage": stage, "count": count, "is_exact": is_exact} | _slowest(
            payloads, links, opens=False
        )


def _first_payloads(
    config: RunConfig, parts: Sequence[GraphPartition], plans: Sequence[BoundaryPlan]
) -> Payloads:
    found: Payloads = {}
    for part, plan in zip(parts, plans, strict=True):
        sent = sent_features(
            part,
            plan,
            model=config.model,
            normalisation=config.feature_normalisation,
            dtype=config.dtype,
        )
        if config.codec == "fixed":
            sent = iter(rounded_features(list(sent)))
        for peer, vectors in zip(plan.peers, sent, strict=True):
            rows, width = vectors.shape
            dense = rows * width * vectors.dtype.itemsize
            found[plan.client, peer.peer] = (
                dense
                if config.codec == "dense"
                else lossless_bytes(vectors, frame_bytes=DEFAULT_MAX_FRAME_BYTES)
            )
    return found


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


def _messages(
    config: RunConfig, shape: ModelShape, parts: Sequence[GraphPartition]
) -> Iterator[_Asked]:
    """Yield the messages of a training in their order; one question for what has arrived each."""
    item = np.dtype(config.dtype).itemsize
    whole, heads = stage_parameters(shape)
    lazy = config.algorithm == "lazy"
    sizes = whole if lazy else [sum(whole) - sum(heads)]
    everyone = range(len(parts))
    in_rounds = config.algorithm in {"standard", "bns"}
    training = [p.client for p in parts if in_rounds or p.train_mask.any()]
    validating = [p.client for p in parts if in_rounds or p.val_mask.any()]
    asked = sorted({*training, *validating})
    yield _Asked(stage=-1, purpose="hello", count=1, clients=everyone)
    for stage, size in enumerate(sizes):
        weights = item * size
        before = item * sizes[stage - 1] if stage else None
        yield _Asked(stage=stage, purpose="publish", count=1, clients=everyone, down_bytes=before)
        yield _Asked(stage=stage, purpose="collect", count=1, clients=everyone)
        yield _Asked(
            stage=stage,
            purpose="train",
            count=config.rounds,
            clients=asked,
            down_bytes=weights,
            up_bytes=weights,
            training=frozenset(training),
        )
        yield _Asked(
            stage=stage, purpose="validate", count=1, clients=validating, down_bytes=weights
        )
    last = item * sizes[-1]
    yield _Asked(stage=len(sizes) - 1, purpose="test", count=1, clients=everyone, down_bytes=last)


def _message(asked: _Asked, links: Links) -> dict[str, Any]:
    """Return what the slowest of the asked clients takes, by connections opened anew."""
    found = []
    for client in asked.clients:
        path = _path(links, client, SERVER)
        message = FlowerMessage(
            down_bytes=asked.down_bytes,
            up_bytes=asked.up_bytes if client in asked.training else None,
            is_first=asked.purpose == "hello",
        )
        received = [receive_s(path, message, opened=opened) for opened in OPENED]
        sent = [send_s(path, message, opened=opened) for opened in OPENED]
        found.append((received[0] + sent[0], received, sent, client))
    _, received, sent, client = max(found)
    return {
        "stage": asked.stage,
        "purpose": asked.purpose,
        "count": asked.count,
        "client": client,
        "down_bytes": asked.down_bytes,
        "up_bytes": asked.up_bytes,
        "receive_s": received,
        "send_s": sent,
    }


def _total(message: dict[str, Any], opened: int) -> float:
    seconds: float = message["receive_s"][opened] + message["send_s"][opened]
    return seconds


def _path(links: Links, one: int, other: int) -> Path:
    return Path(there=links.between(one, other), back=links.between(other, one))
