"""Passes parcels between agents that cannot reach each other, inside the round of an exchange."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence

from retexo_fl.client.api import Ticket
from retexo_fl.client.peering import Addressed, parcels_of, relay_request
from retexo_fl.errors import RemoteProtocolError
from retexo_fl.federation.asking import Ask, Round, named
from retexo_fl.federation.rounds.clients import Clients


class Relay:
    """Passes parcels between the clients of one attempt.

    Args:
        clients: All clients.
        ticket: Names job, attempt and stage.
    """

    def __init__(self, clients: Clients, ticket: Ticket) -> None:
        self._clients = clients
        self._ticket = ticket
        self._trips = 0
        self._waiting: dict[int, list[Addressed]] = defaultdict(list)

    def run(self, among: Sequence[int], *, left_s: Callable[[], float]) -> Round[bool]:
        """Ask clients for parcels and deliver them, until none has any or the time is over.

        A client that does not answer in the time left has none. Returns whether any had parcels.
        """
        trips = 1
        # Peers of a client that is away have parcels for it again and again.
        while (yield from self._trip(among, left_s())) and left_s() > 0:
            trips += 1
        return trips > 1

    def _trip(self, among: Sequence[int], within_s: float) -> Round[int]:
        """Ask each client once; return how many parcels are on their way after it."""
        # Numbered over the whole attempt: a client answers the same question the same way.
        trip = (self._ticket.stage << 32) + self._trips
        self._trips += 1
        answers = yield Ask(
            requests={
                client: relay_request(self._ticket, trip, self._waiting.pop(client, []))
                for client in among
            },
            stage=self._ticket.stage,
            purpose="relay",
            counted=frozenset(),
            within_s=within_s,
        )
        for client, answer in answers:
            with named(client):
                parcels = parcels_of(answer)
            for peer, parcel in parcels:
                _check_addressee(client, peer, self._clients.hellos)
                self._waiting[peer].append((client, parcel))
        return sum(len(self._waiting[client]) for client in among)


def _check_addressee(client: int, peer: int, clients: Collection[int]) -> None:
    if peer == client or peer not in clients:
        raise RemoteProtocolError(
            f"client {client} has a parcel for client {peer}; expected another client of the run"
        )
