"""Owners who agree on masked sums, in one process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

from retexo_fl.agent.counters import CounterFile
from retexo_fl.channels.federation import Federation
from retexo_fl.channels.identity import Identity
from retexo_fl.channels.key_signing import RosterSigner
from retexo_fl.channels.owner_secret import OwnerSecret
from retexo_fl.channels.owner_words import Release
from retexo_fl.channels.roster import Roster
from retexo_fl.masking.agreement import USES

TODAY = date(2026, 5, 1)


def signer_of(
    identity: Identity,
    roster: Roster,
    federation: Federation,
    state: Path | None = None,
    *,
    questions: int = 0,
) -> RosterSigner:
    """Return what signs the masking keys of a client, in a process that has just started.

    What one owner sees of a file that all have signed is not compared with a part here.
    """
    state = identity.key_path.parent / "state" if state is None else state
    counters = CounterFile.begun(state, lambda: questions)
    return RosterSigner(
        identity=identity,
        roster=lambda: roster,
        agreement=lambda: federation.agreement,
        brings=lambda: federation.brought[identity.client].uses,
        counters=counters.own,
        others=counters.remember,
    )


def agreed(
    roster: Roster,
    identities: Sequence[Identity],
    *,
    digests: Mapping[int, bytes] | None = None,
    uses: Mapping[int, frozenset[str]] | None = None,
    releases: Iterable[Release] = (),
    former: Federation | None = None,
    **terms: int,
) -> Federation:
    """Have all owners promise parts with these digests and uses, or any with all, and sign that."""
    secrets = {one.client: OwnerSecret.beside_or_new(one.key_path) for one in identities}
    members = [
        replace(
            member,
            promise=secrets[client].promise(
                frozenset(USES) if uses is None else uses[client],
                b"a part" if digests is None else digests[client],
            ),
        )
        for client, member in roster.members.items()
    ]
    proposed = Federation.proposed(
        Roster.of(members),
        former=former,
        releases=releases,
        silent_since={},
        date=TODAY,
        **terms,
    )
    return proposed.with_signatures(proposed.sign(one, secrets[one.client]) for one in identities)
