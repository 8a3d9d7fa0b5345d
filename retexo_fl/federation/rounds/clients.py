"""What rounds need of the clients that they ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from retexo_fl.client.api import HelloAnswer, PeerTraffic, Ticket, Traffic
from retexo_fl.federation.asking import WaitPolicy
from retexo_fl.ledger import ALL_PEERS, Account, TrafficLedger, Volume


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """The clients of an attempt, and the account of what they move between each other.

    Attributes:
        hellos: By client, ascending, its hello; its answers are compared with that.
        policy: How long answers are waited for, and of how many.
        ledger: Counts what clients report as moved.
    """

    hellos: Mapping[int, HelloAnswer]
    policy: WaitPolicy
    ledger: TrafficLedger

    def count_stage(self, ticket: Ticket, client: int, traffic: Traffic, *, direction: str) -> None:
        """Enter what a client moved to (``out``) or from (``in``) all peers before a stage.

        An agent sends the sum of the attempt each time: an answer may be lost, or sent again.
        """
        enter = self.ledger.raise_to if self.policy.clients_return else self.ledger.add
        for account, volume in _entries(ticket, client, traffic, direction, "exchange"):
            enter(account, volume)

    def count_round(
        self, ticket: Ticket, client: int, traffic: PeerTraffic, *, purpose: str
    ) -> None:
        """Enter what a client and its peers exchanged inside a round."""
        if traffic == PeerTraffic():
            return
        for direction, moved in (("out", traffic.sent), ("in", traffic.received)):
            for account, volume in _entries(ticket, client, moved, direction, purpose):
                self.ledger.add(account, volume)


def _entries(
    ticket: Ticket, client: int, traffic: Traffic, direction: str, purpose: str
) -> Iterator[tuple[Account, Volume]]:
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
        yield account, volume
