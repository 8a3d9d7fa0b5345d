"""What owners agree on before a server may ask: which clients are added up together, and of what.

A masked sum is over one cohort, always the same clients, so that no two sums differ by a few of
them.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, Final

from retexo_fl.errors import AgreementError
from retexo_fl.masking.keys import derived, number
from retexo_fl.units import counted

#: Honest clients that bring data to a sum, at least.
LEAST: Final = 3
#: What a sum may be of: nodes of a use, or all.
USES: Final = ("train", "validation", "test", "nodes")
SEED_BYTES: Final = 32
#: Clients of a cohort at most: each has a mask with every other one.
MOST: Final = 65
#: Of a cohort, where nobody chose.
_USUAL_SIZE: Final = 5
_SIMULATED: Final = b"retexo simulated agreement 1"
_PLACE: Final = b"retexo place in a cohort 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort:
    """Clients that are added up together, all of them or none.

    Attributes:
        members: Client indices, ascending.
        uses: What its sums may be of; to sums of other uses members add zeros.
    """

    members: tuple[int, ...]
    uses: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Which sums a client answers.

    Attributes:
        cohorts: Disjoint, together all clients, ordered by their first members.
        least: Honest clients that bring data to a sum, at least.
        tolerated: Clients of a cohort that may work with the server.
        seed: 32 bytes, from which the cohorts were drawn.
        signed: Digest of what else the owners have signed: keys, parts, former cohorts. Empty in a
            simulation.

    Raises:
        AgreementError: Cohorts share clients, are too small, or are none.
    """

    cohorts: tuple[Cohort, ...]
    least: int = LEAST
    tolerated: int = 0
    seed: bytes
    signed: bytes = b""

    def __post_init__(self) -> None:
        """Check all that a sum's safety depends on."""
        check_least(self.least, self.tolerated)
        if len(self.seed) != SEED_BYTES:
            raise AgreementError(f"seed: {len(self.seed)} bytes; expected {SEED_BYTES}")
        firsts = [min(cohort.members, default=-1) for cohort in self.cohorts]
        if not firsts or firsts != sorted(firsts):
            raise AgreementError("cohorts: expected one at least, ordered by their first clients")
        seen: set[int] = set()
        for cohort in self.cohorts:
            self._check(cohort)
            if twice := seen & {*cohort.members}:
                raise AgreementError(f"client {min(twice)} is in two cohorts; expected one")
            seen |= {*cohort.members}

    @classmethod
    def parse(cls, content: bytes) -> Agreement:
        """Read :attr:`content`.

        Raises:
            AgreementError: It is none, or is not as this version writes it.
        """
        try:
            known = json.loads(content)
            agreement = cls(
                cohorts=tuple(_cohort(members, uses) for members, uses in known["cohorts"]),
                least=_whole(known["least"]),
                tolerated=_whole(known["tolerated"]),
                seed=bytes.fromhex(known["seed"]),
                signed=bytes.fromhex(known["signed"]),
            )
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise AgreementError("not an agreement on masked sums") from error
        if agreement.content != content:
            raise AgreementError("an agreement on masked sums that is not written as expected")
        return agreement

    @cached_property
    def content(self) -> bytes:
        """All of it as JSON, the same for equal ones."""
        known = {
            "cohorts": [[list(c.members), sorted(c.uses)] for c in self.cohorts],
            "least": self.least,
            "seed": self.seed.hex(),
            "signed": self.signed.hex(),
            "tolerated": self.tolerated,
        }
        return json.dumps(known, sort_keys=True, separators=(",", ":")).encode()

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that bind all of it."""
        return hashlib.sha256(b"retexo agreement 1\0" + self.content).digest()

    def cohort_of(self, client: int) -> Cohort:
        """Return the one cohort of a client.

        Raises:
            AgreementError: It has none.
        """
        if client not in self._by_client:
            raise AgreementError(f"client {client} is in no cohort of the owners' agreement")
        return self._by_client[client]

    def members(self, *uses: str) -> tuple[int, ...]:
        """Return the clients of cohorts that have one of some uses, ascending; of all if none."""
        return members_of(self.cohorts, *uses)

    @cached_property
    def _by_client(self) -> Mapping[int, Cohort]:
        return {client: cohort for cohort in self.cohorts for client in cohort.members}

    def _check(self, cohort: Cohort) -> None:
        members, fewest = cohort.members, self.least + self.tolerated
        named = f"the cohort of client {members[0]}" if members else "a cohort"
        if list(members) != sorted({*members}) or any(client < 0 for client in members):
            raise AgreementError(f"{named}: expected clients from 0, each once, ascending")
        if len(members) < fewest:
            raise AgreementError(
                f"{named} has {counted(len(members), 'client')}; expected "
                f"{_fewest(self.least, self.tolerated)}"
            )
        if len(members) > MOST:
            raise AgreementError(
                f"{named} has {counted(len(members), 'client')}; expected {MOST} at most"
            )
        if unknown := cohort.uses.difference(USES):
            raise AgreementError(
                f"{named} has the use {min(unknown)[:20]!r}; expected {', '.join(USES)}"
            )


def members_of(cohorts: Iterable[Cohort], *uses: str) -> tuple[int, ...]:
    """Return the clients of those cohorts that have one of some uses, ascending; of all if none."""
    kept = (cohort.members for cohort in cohorts if not uses or cohort.uses.intersection(uses))
    return tuple(sorted(chain.from_iterable(kept)))


def check_least(least: int, tolerated: int) -> None:
    """Check how many honest clients a sum has at least, and how many others are tolerated.

    Raises:
        AgreementError: They hide nobody.
    """
    if least < LEAST:
        raise AgreementError(f"least: {least}; expected {LEAST} clients at least in a sum")
    if tolerated < 0:
        raise AgreementError(f"tolerated: {tolerated}; expected a number from 0")


def default_cohort_size(clients: int) -> int:
    """Return how many clients a cohort has if nobody says: five, or all where there are fewer.

    A sum has the clients of those cohorts that are there whole, so small ones lose less to machines
    that are away; five leave room for two colluders.
    """
    return min(clients, _USUAL_SIZE)


def uses_of(
    members: Iterable[int], roles: Mapping[int, frozenset[str]], fewest: int
) -> frozenset[str]:
    """Return the uses of a cohort: those that enough of its members bring data of.

    Args:
        members: Of the cohort.
        roles: By client, the uses that its part brings enough data of.
        fewest: Members that must bring it: honest ones, and those who may not be.
    """
    brought = Counter(use for client in members for use in roles[client])
    return frozenset(use for use, clients in brought.items() if clients >= fewest)


def drawn_cohorts(
    roles: Mapping[int, frozenset[str]],
    *,
    size: int,
    seed: bytes,
    least: int = LEAST,
    tolerated: int = 0,
) -> tuple[Cohort, ...]:
    """Draw cohorts of clients that bring the same, as far as there are enough of them.

    Args:
        roles: By client, the uses that its part brings enough data of.
        size: About how many clients each has; 0 for :func:`default_cohort_size`.
        seed: What the draw follows from.
        least: See :class:`Agreement`.
        tolerated: See :class:`Agreement`.

    Returns:
        All clients in cohorts of ``least + tolerated`` at least, in :class:`Agreement`'s order.

    Raises:
        AgreementError: There are too few clients, or ``size`` is too small.
    """
    check_least(least, tolerated)
    fewest = least + tolerated
    if len(roles) < fewest:
        raise AgreementError(
            f"{counted(len(roles), 'client')}; expected {_fewest(least, tolerated)}"
        )
    if size and size < fewest:
        raise AgreementError(f"cohort size {size}; expected {_fewest(least, tolerated)}")
    size = size or max(default_cohort_size(len(roles)), fewest)
    pieces = [
        piece
        for group in _groups(roles, fewest)
        for piece in _cut(_shuffled(group, roles, seed), roles, size=size, fewest=fewest)
    ]
    return tuple(
        Cohort(members=tuple(sorted(piece)), uses=uses_of(piece, roles, fewest))
        for piece in sorted(pieces, key=min)
    )


def simulated(
    roles: Mapping[int, frozenset[str]], *, size: int = 0, seed: int, tolerated: int = 0
) -> Agreement:
    """Return the agreement of a simulation, whose clients have no owners to sign one.

    Args:
        roles: As in :func:`drawn_cohorts`.
        size: As there.
        seed: Of the run.
        tolerated: As there.

    Raises:
        AgreementError: As there.
    """
    drawn = derived(str(seed).encode(), _SIMULATED)
    cohorts = drawn_cohorts(roles, size=size, seed=drawn, tolerated=tolerated)
    return Agreement(cohorts=cohorts, tolerated=tolerated, seed=drawn)


def _groups(roles: Mapping[int, frozenset[str]], fewest: int) -> list[list[int]]:
    """Group clients by what they bring; too small groups join where the least use is lost."""
    by_role: dict[frozenset[str], list[int]] = {}
    for client in sorted(roles):
        by_role.setdefault(roles[client], []).append(client)
    groups = sorted(by_role.values())
    while len(groups) > 1:
        small = min(groups, key=lambda group: (len(group), group))
        if len(small) >= fewest:
            break
        groups.remove(small)

        def lost_more(other: list[int], small: list[int] = small) -> tuple[int, int, list[int]]:
            joined = other + small
            more = _lost(joined, roles, fewest) - _lost(other, roles, fewest)
            return more, len(joined), joined

        best = min(groups, key=lost_more)
        groups.remove(best)
        groups.append(best + small)
    return groups


def _lost(group: Sequence[int], roles: Mapping[int, frozenset[str]], fewest: int) -> int:
    """Return how many uses of clients are in no sum if a group is a cohort."""
    kept = uses_of(group, roles, fewest)
    return sum(len(roles[client] - kept) for client in group)


def _shuffled(
    group: Sequence[int], roles: Mapping[int, frozenset[str]], seed: bytes
) -> Sequence[int]:
    """Order a group by the seed, clients that bring the same beside each other, most first."""
    alike = Counter(roles[client] for client in group)

    def place(client: int) -> tuple[int, list[str], bytes]:
        role = roles[client]
        return -alike[role], sorted(role), derived(seed, _PLACE, number(client))

    return sorted(group, key=place)


def _cut(
    group: Sequence[int], roles: Mapping[int, frozenset[str]], *, size: int, fewest: int
) -> list[Sequence[int]]:
    """Cut a group into pieces of about a size, of which none loses a use that the group has."""
    lost = _lost(group, roles, fewest)
    count = max(1, min(round(len(group) / size), len(group) // fewest))
    while True:
        # The smaller ones first: what is unlike the rest is at the end.
        cuts = [len(group) * at // count for at in range(count + 1)]
        pieces = [group[begin:end] for begin, end in pairwise(cuts)]
        if count == 1 or sum(_lost(piece, roles, fewest) for piece in pieces) == lost:
            return pieces
        count -= 1


def _fewest(least: int, tolerated: int) -> str:
    if not tolerated:
        return f"{least} at least"
    return f"{least + tolerated} at least ({least}, and {tolerated} that may work with the server)"


def _cohort(members: Any, uses: Any) -> Cohort:
    return Cohort(members=tuple(map(_whole, members)), uses=frozenset(map(str, uses)))


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(value)
    return value
