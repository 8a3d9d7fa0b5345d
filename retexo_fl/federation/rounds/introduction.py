"""What the server does so that agents find each other: it introduces them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from retexo_fl.client.api import IntroduceRequest, Ticket
from retexo_fl.errors import IdentityError
from retexo_fl.federation.asking import Ask, Round
from retexo_fl.units import counted

if TYPE_CHECKING:
    from retexo_fl.channels.roster import Member

logger = logging.getLogger(__name__)


def introduce(ticket: Ticket, entries: Mapping[int, str]) -> Round[None]:
    """Send every client the certificates and addresses of all, so that no neighbourhood shows.

    Args:
        ticket: Names job and attempt.
        entries: By client, a roster with its own entry, TOML.

    Raises:
        IdentityError: A client sent another's entry, or none, or two have the same key.
        RetexoError: A client's own named failure.
    """
    # Loaded here, with what reads certificates: clients of one machine are not introduced.
    from retexo_fl.channels.roster import Roster

    roster = Roster.of(_own_entry(client, entry) for client, entry in sorted(entries.items()))
    request = IntroduceRequest(ticket=ticket, roster=roster.text())
    answers = yield Ask.of(sorted(entries), request, stage=-1, purpose="introduce")
    for client, answer in answers:
        logger.info(
            "client %d trusts the certificates of %s", client, counted(answer.members, "client")
        )


def _own_entry(client: int, entry: str) -> Member:
    from retexo_fl.channels.roster import Roster

    try:
        members = Roster.parse(entry).members
    except IdentityError as error:
        raise IdentityError(f"client {client}: {error}") from error
    if list(members) != [client]:
        raise IdentityError(
            f"client {client} sent the roster entries of clients {sorted(members)}; "
            "expected its own only"
        )
    return members[client]
