"""What the server does so that agents find each other: introduces them, passes their parcels on."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from retexo_fl.agent.api import IntroduceAnswer, IntroduceRequest, RelayAnswer, Ticket
from retexo_fl.agent.peering import Addressed, parcels_of, relay_request
from retexo_fl.errors import IdentityError, RemoteProtocolError
from retexo_fl.federation import records
from retexo_fl.federation.asking import Messenger
from retexo_fl.federation.checked_answers import named
from retexo_fl.units import counted

if TYPE_CHECKING:
    from retexo_fl.channels.roster import Member

logger = logging.getLogger(__name__)


def introduce(messenger: Messenger, ticket: Ticket, entries: Mapping[int, str]) -> None:
    """Hand everybody the certificates and addresses of all: so no neighbourhood is learnt.

    Args:
        messenger: The way to the clients.
        ticket: Names job and attempt.
        entries: By client, what it told of itself; a roster with its own entry, TOML.

    Raises:
        IdentityError: A client told of another one, or of nobody, or two have the same key.
        RetexoError: A client's own named failure.
    """
    # Loaded here, with what reads certificates: clients of one machine are not introduced.
    from retexo_fl.channels.roster import Roster

    roster = Roster.of(_own_entry(client, entry) for client, entry in sorted(entries.items()))
    request = IntroduceRequest(ticket=ticket, roster=roster.text())
    messages = messenger.messages(messenger.clients, request)
    for client, reply in messenger.ask(messages, stage=-1, purpose="introduce"):
        with named(client):
            members = records.read_answer(IntroduceAnswer, reply).members
        logger.info("client %d believes in %s", client, counted(members, "client"))


def _own_entry(client: int, entry: str) -> Member:
    from retexo_fl.channels.roster import Roster

    try:
        members = Roster.parse(entry).members
    except IdentityError as error:
        raise IdentityError(f"client {client}: {error}") from error
    if list(members) != [client]:
        raise IdentityError(
            f"client {client} told of clients {sorted(members)}; expected its own entry alone"
        )
    return members[client]


class Relay:
    """Passes parcels between the clients of one attempt.

    Args:
        messenger: The way to the clients.
        ticket: Names job, attempt and stage.
    """

    def __init__(self, messenger: Messenger, ticket: Ticket) -> None:
        self._messenger = messenger
        self._ticket = ticket
        self._trips = 0
        self._waiting: dict[int, list[Addressed]] = defaultdict(list)

    def run(self, clients: Sequence[int], *, left_s: Callable[[], float]) -> bool:
        """Ask clients for parcels and hand them out, until nobody has any or the time is over.

        Whoever does not answer in the time that is left has none. Returns whether anybody had.
        """
        trips = 1
        # Peers of a client that is away have parcels for it again and again.
        while self._trip(clients, left_s()) and left_s() > 0:
            trips += 1
        return trips > 1

    def _trip(self, clients: Sequence[int], within_s: float) -> int:
        """Ask each client once; return how many parcels are on their way after it."""
        messages = []
        for client in clients:
            carried = self._waiting.pop(client, [])
            # Numbered over the whole attempt: a client answers the same question the same way.
            trip = (self._ticket.stage << 32) + self._trips
            request = relay_request(self._ticket, trip, carried)
            messages += self._messenger.messages([client], request)
        self._trips += 1
        asked = self._messenger.ask(
            messages,
            stage=self._ticket.stage,
            purpose="relay",
            counted=frozenset(),
            within_s=within_s,
        )
        for client, reply in asked:
            with named(client):
                parcels = parcels_of(records.read_answer(RelayAnswer, reply))
            for peer, parcel in parcels:
                _check_addressee(client, peer, self._messenger.clients)
                self._waiting[peer].append((client, parcel))
        return sum(len(self._waiting[client]) for client in clients)


def _check_addressee(client: int, peer: int, clients: Collection[int]) -> None:
    if peer == client or peer not in clients:
        raise RemoteProtocolError(
            f"client {client} has a parcel for client {peer}; expected another client of the run"
        )
