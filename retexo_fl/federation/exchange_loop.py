"""One exchange, as the server drives it: publish, then ask until nothing is missing."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from retexo_fl.agent.api import CollectRequest, PublishRequest, Ticket, Traffic
from retexo_fl.config import RunConfig
from retexo_fl.errors import ExchangeIncomplete
from retexo_fl.federation import records
from retexo_fl.federation.messenger import Messenger
from retexo_fl.ledger import ALL_PEERS, Account, TrafficLedger

logger = logging.getLogger(__name__)

#: Pause between two rounds of questions; no client is asked to wait: fewer may run than exist.
_PAUSE_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """How an exchange ended.

    Attributes:
        vectors: Vectors that clients sent.
        missing: Vectors that it was closed without.
    """

    vectors: int
    missing: int


def run_exchange(
    messenger: Messenger,
    ticket: Ticket,
    *,
    previous: Ticket | None,
    weights: np.ndarray | None,
    config: RunConfig,
    ledger: TrafficLedger,
) -> Exchanged:
    """Have every client send its vectors of a stage, and see that they arrive.

    Args:
        messenger: The way to the clients.
        ticket: Names the stage.
        previous: Names the stage before; None for stage 0.
        weights: (P,) selected weights of the stage before; None for stage 0.
        config: ``missing-peers`` and ``exchange-deadline-s`` decide what happens to late vectors.
        ledger: Told what moved.

    Raises:
        ExchangeIncomplete: Vectors were missing at the deadline and ``missing-peers`` is ``wait``.
    """
    request = PublishRequest(
        ticket=ticket,
        previous_digest=previous.weights_digest if previous else b"",
        weights=weights,
    )
    messages = messenger.messages(messenger.clients, request, records.PUBLISH)
    vectors = 0
    for client, reply in messenger.ask(messages, stage=ticket.stage, purpose="publish"):
        published = records.read_published(reply)
        vectors += published.vectors
        count_exchanged(ledger, ticket, client, published.traffic, direction="out")
    missing = _collect(messenger, ticket, config, ledger)
    return Exchanged(vectors=vectors, missing=missing)


def _collect(messenger: Messenger, ticket: Ticket, config: RunConfig, ledger: TrafficLedger) -> int:
    """Ask until all vectors are there; return how many the exchange was closed without."""
    deadline = time.monotonic() + config.exchange_deadline_s
    missing = _missing(messenger, ticket, messenger.clients, ledger)
    while missing and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
        missing = _missing(messenger, ticket, list(missing), ledger)
    if missing:
        # Everyone once more: vectors may be waited for in vain because their client does not know
        # of the edge, and that client sees so by a block that came after it was asked.
        missing = _missing(messenger, ticket, messenger.clients, ledger)
    if not missing:
        return 0
    owed = ", ".join(f"client {c} lacks {count}" for c, count in list(missing.items())[:10])
    if config.missing_peers == "wait":
        raise ExchangeIncomplete(
            f"stage {ticket.stage}: vectors are missing after {config.exchange_deadline_s:g} s "
            f"(exchange-deadline-s): {owed}; go on when the peers are back, or with "
            "missing-peers set to drop"
        )
    logger.warning("stage %d goes on without vectors: %s", ticket.stage, owed)
    return sum(_missing(messenger, ticket, list(missing), ledger, close=True).values())


def _missing(
    messenger: Messenger,
    ticket: Ticket,
    clients: Sequence[int],
    ledger: TrafficLedger,
    *,
    close: bool = False,
) -> dict[int, int]:
    """Return, by client, how many vectors have not arrived."""
    request = CollectRequest(ticket=ticket, wait_s=0.0, close=close)
    messages = messenger.messages(clients, request, records.COLLECT)
    missing = {}
    for client, reply in messenger.ask(messages, stage=ticket.stage, purpose="collect"):
        collected = records.read_collected(reply)
        count_exchanged(ledger, ticket, client, collected.traffic, direction="in")
        if not collected.complete:
            missing[client] = collected.missing
    return missing


def count_exchanged(
    ledger: TrafficLedger,
    ticket: Ticket,
    client: int,
    traffic: Traffic,
    *,
    direction: str,
    purpose: str = "exchange",
) -> None:
    """Enter what a client moved to (``out``) or from (``in``) all its peers together."""
    for kind, volume in (("boundary", traffic.boundary), ("control", traffic.control)):
        account = Account(
            attempt=ticket.attempt,
            kind=kind,
            layer=ticket.stage,
            purpose=purpose,
            client=client,
            peer=ALL_PEERS,
            direction=direction,
        )
        ledger.add(account, volume)
