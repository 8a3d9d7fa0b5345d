"""Owners who agree on masked sums, in one process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date

from retexo_fl.agent.counters import CounterFile
from retexo_fl.channels.federation import Federation
from retexo_fl.channels.identity import Identity
from retexo_fl.channels.key_signing import RosterSigner
from retexo_fl.channels.owner_secret import OwnerSecret
from retexo_fl.channels.owner_words import Release
from retexo_fl.channels.roster import Roster
from retexo_fl.masking.agreement import USES, Agreement

TODAY = date(2026, 5, 1)


@dataclass(frozen=True, slots=True)
class OwnerOf:
    """What one owner sees of a file that all have signed, without a part to compare it with."""

    federation: Federation
    client: int

    def agreement(self) -> Agreement:
        return self.federation.agreement

    def brings(self) -> frozenset[str]:
        return self.federation.brought[self.client].uses


def signers(
    identities: Sequence[Identity], roster: Roster, federation: Federation
) -> list[RosterSigner]:
    """Return what signs the masking keys of each client, in a process that has just started."""
    return [
        RosterSigner(
            identity=one,
            roster=lambda: roster,
            owners=OwnerOf(federation, one.client),
            remembered=CounterFile.begun(one.key_path.parent / "state", lambda: 0),
        )
        for one in identities
    ]


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
