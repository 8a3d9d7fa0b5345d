"""Runs one round of an algorithm that exchanges inside it, all clients interleaved in one process.

Every client runs its steps as a resident agent does (:mod:`retexo_fl.client.inner_exchanges`),
up to its next exchange; all send, then all continue. No step ever waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from retexo_fl.channels import BlockKey, MemoryChannel
from retexo_fl.client.api import Ticket
from retexo_fl.client.inner_exchanges import RoundMessage, RoundRunner
from retexo_fl.client.peer_exchange import RoundName
from retexo_fl.errors import LocalProtocolError
from retexo_fl.ledger import PeerTraffic, Traffic
from retexo_fl.training.rounds import InnerExchange, Steps

Result = TypeVar("Result")

#: Called for every exchange with its bytes by sender and receiver, and its purpose.
Watcher = Callable[[Mapping[tuple[int, int], int], str], None]


def no_watch(blocks: Mapping[tuple[int, int], int], purpose: str) -> None:
    """Take no notice of an exchange."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOutcome(Generic[Result]):
    """The outcome of a round.

    Attributes:
        results: What each client's steps returned.
        moved: Bytes that left and reached each client, by purpose (``train``, ``evaluate``).
    """

    results: Mapping[int, Result]
    moved: Mapping[int, Mapping[str, PeerTraffic]]


def run_round(
    steps: Mapping[int, Steps[Result]], name: RoundName, watch: Watcher = no_watch
) -> RoundOutcome[Result]:
    """Run all clients' steps of one round to their end.

    Args:
        steps: One fresh generator for each client.
        name: Of the round.
        watch: Called for every exchange.

    Raises:
        LocalProtocolError: Clients disagree on which exchange comes next, or on its vectors.
    """
    ticket = Ticket(job=name.job, attempt=1, stage=name.layer)
    # Nobody else's blocks are on this channel, so neither message nor weights need to name them.
    message = RoundMessage(name=name, ticket=ticket, message="", weights_hash=b"")
    channel, blocks = _EmptiedChannel(), dict[tuple[int, int], int]()

    def sent(client: int) -> Callable[[str, int, Traffic, str], None]:
        def note(purpose: str, peer: int, traffic: Traffic, way: str) -> None:
            if way == "out":
                blocks[client, peer] = (traffic.boundary + traffic.control).wire or 0

        return note

    runners = {
        client: RoundRunner(steps[client], message, client, channel, watch=sent(client))
        for client in sorted(steps)
    }
    while running := {c: r.exchange for c, r in runners.items() if r.begin_next() and r.exchange}:
        purpose = _check_agreed(running, set(runners))
        for client in running:
            runners[client].send()
        watch(dict(blocks), purpose)
        blocks.clear()
    return RoundOutcome(
        results={client: runner.answer for client, runner in runners.items()},
        moved={client: runner.moved for client, runner in runners.items()},
    )


class _EmptiedChannel(MemoryChannel):
    """Gives every block out once: a round of all clients holds the blocks of one exchange."""

    def receive_block(self, key: BlockKey) -> bytes | None:
        """See :class:`~retexo_fl.channels.base.Channel`."""
        return self._inboxes[key.job, key.receiver].pop(key, None)


def _check_agreed(exchanges: Mapping[int, InnerExchange], clients: set[int]) -> str:
    """Compare what clients are about to send and receive; return what it is for."""
    ended = sorted(clients - exchanges.keys())
    if ended:
        raise LocalProtocolError(f"clients {ended} ended their round while others exchange")
    labels = {(item.label, item.purpose): client for client, item in exchanges.items()}
    if len(labels) != 1:
        raise LocalProtocolError(
            f"clients disagree on the next exchange: {sorted(labels)} from {sorted(exchanges)}"
        )
    ((label, purpose),) = labels
    for sender, exchange in exchanges.items():
        for receiver, vectors in exchange.outgoing.items():
            other = exchanges[receiver]
            wanted = other.expected.get(sender)
            if wanted != len(vectors) or vectors.shape[1] != other.width:
                raise LocalProtocolError(
                    f"{label}: client {sender} sends {vectors.shape} to client {receiver}, which "
                    f"expects {wanted} of width {other.width}"
                )
    for client, exchange in exchanges.items():
        silent = [peer for peer in exchange.expected if client not in exchanges[peer].outgoing]
        if silent:
            raise LocalProtocolError(
                f"{label}: client {client} expects vectors of clients {sorted(silent)}, which "
                "send none"
            )
    return purpose
