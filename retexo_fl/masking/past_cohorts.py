"""Cohorts over time: what owners agree on later must not set a few clients of a sum apart.

A cohort goes on as a chain of versions: each is the one before but for clients that left or whose
parts changed, and these are nobody or enough to be a sum of their own. So no combination of sums,
whenever they were sent, has fewer contributors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from retexo_fl.errors import AgreementError
from retexo_fl.masking.agreement import Cohort, drawn_cohorts, uses_of
from retexo_fl.units import clients_named, counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """What a client brings to sums.

    Attributes:
        key: SHA-256 of its certificate.
        part: Digest of its part, salted: equal ones are of equal parts.
        uses: Of which its part has enough.
    """

    key: bytes
    part: bytes
    uses: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PastCohort:
    """A cohort as owners agreed on it once, with what each brought.

    Attributes:
        members: By client.
        uses: What its sums may have been of.
    """

    members: Mapping[int, Brought]
    uses: frozenset[str]


@dataclass(slots=True)
class _Chain:
    """Versions of a cohort.

    Attributes:
        parts: By client, those of the last version.
        told: By use, the parts of the last version with that use.
    """

    parts: dict[int, bytes] = field(default_factory=dict)
    told: dict[str, dict[int, bytes]] = field(default_factory=dict)


class PastCohorts:
    """All cohorts that there were, checked in their order.

    Args:
        past: Every version, the first one first.
        least: Honest clients that bring data to a sum, at least.
        tolerated: Clients of a cohort that may work with the server.
        released: Clients that may be set apart with the part that they had, as they agreed.

    Raises:
        AgreementError: Some of these versions set too few clients apart.
    """

    def __init__(
        self,
        past: Iterable[PastCohort],
        *,
        least: int,
        tolerated: int,
        released: frozenset[tuple[int, bytes]] = frozenset(),
    ) -> None:
        self._least, self._tolerated = least, tolerated
        self._released = released
        self._chains: list[_Chain] = []
        #: Parts that were in a sum, ever.
        self._ever: set[tuple[int, bytes]] = set()
        for version in past:
            self._add(version)

    def cohorts(
        self, clients: Mapping[int, Brought], *, size: int, seed: bytes
    ) -> tuple[Cohort, ...]:
        """Return the cohorts of clients from now on.

        Those of a former cohort stay together if the part of one of them is still the same; all
        others are drawn into new cohorts.

        Args:
            clients: All of them.
            size: See :func:`drawn_cohorts`.
            seed: See there.

        Raises:
            AgreementError: Too few would be set apart, or are new.
        """
        roles = {client: brought.uses for client, brought in clients.items()}
        found = [
            Cohort(members=members, uses=uses_of(members, roles, self._fewest))
            for members in self._going_on(clients)
        ]
        for cohort in found:
            if len(cohort.members) < self._fewest:
                raise AgreementError(
                    f"the cohort of client {cohort.members[0]}: "
                    f"{counted(len(cohort.members), 'client')} left; expected {self._fewest} at "
                    "least, or new parts of all of them"
                )
            self._check({c: clients[c] for c in cohort.members}, cohort.uses)
        fresh = {*clients} - {client for cohort in found for client in cohort.members}
        self._check({client: clients[client] for client in fresh}, frozenset())
        if self._chains and 0 < len(fresh) < self._fewest:
            raise AgreementError(
                f"{clients_named(sorted(fresh))}: new, or with a new part and without a former "
                f"cohort; expected {self._fewest} such clients at least, for a cohort of their own"
            )
        if fresh or not found:
            found += drawn_cohorts(
                {client: roles[client] for client in fresh},
                size=size,
                seed=seed,
                least=self._least,
                tolerated=self._tolerated,
            )
        return tuple(sorted(found, key=lambda cohort: cohort.members))

    @property
    def _fewest(self) -> int:
        return self._least + self._tolerated

    def _going_on(self, clients: Mapping[int, Brought]) -> Iterator[tuple[int, ...]]:
        """Yield the members of cohorts that are versions of former ones."""
        for chain in self._chains:
            members = [client for client in chain.parts if client in clients]
            if any(chain.parts[client] == clients[client].part for client in members):
                yield tuple(sorted(members))

    def _add(self, version: PastCohort) -> None:
        chain = self._check(version.members, version.uses)
        if chain is None:
            chain = _Chain()
            self._chains.append(chain)
        for other in self._chains:
            if other is not chain:
                # With new parts they are in a cohort that has nothing to do with the former one.
                for client in version.members:
                    other.parts.pop(client, None)
        chain.parts = {client: brought.part for client, brought in version.members.items()}
        chain.told |= {use: _parts(version.members, use) for use in version.uses}
        self._ever |= chain.parts.items()

    def _check(self, members: Mapping[int, Brought], uses: frozenset[str]) -> _Chain | None:
        """Return the chain whose next version members are, None for a new one."""
        chains = [
            chain
            for chain in self._chains
            if any(chain.parts.get(client) == its.part for client, its in members.items())
        ]
        chain = chains[0] if chains else None
        if len(chains) > 1 or (chain is not None and not members.keys() <= chain.parts.keys()):
            raise AgreementError(
                f"{_named(members)}: joins former cohorts, or others to one; expected one as it "
                "was, or new clients"
            )
        for client, brought in members.items():
            is_same = chain is not None and chain.parts.get(client) == brought.part
            if not is_same and (client, brought.part) in self._ever:
                raise AgreementError(
                    f"client {client}: its part is one that it gave up before, and would be set "
                    "apart; expected its last one, or a new one"
                )
        for use in sorted(uses):
            self._check_use(members, use, {} if chain is None else chain.told.get(use, {}))
        return chain

    def _check_use(
        self, members: Mapping[int, Brought], use: str, before: Mapping[int, bytes]
    ) -> None:
        now = _parts(members, use)
        if len(now) < self._fewest:
            raise AgreementError(
                f"{_named(members)} has {use} data of {counted(len(now), 'client')}; expected "
                f"{self._fewest} at least"
            )
        differing = {
            client
            for client in now.keys() | before.keys()
            if now.get(client) != before.get(client)
            and (client in now or (client, before[client]) not in self._released)
        }
        if 0 < len(differing) < self._fewest:
            raise AgreementError(
                f"{_named(members)}: {clients_named(sorted(differing))} left it, or changed what "
                f"is in its {use} sums; expected {self._fewest} at least who do so together, or "
                "nobody, or a release of each who left (retexo keys release); or new parts of all"
            )


def _parts(members: Mapping[int, Brought], use: str) -> dict[int, bytes]:
    return {client: its.part for client, its in members.items() if use in its.uses}


def _named(members: Mapping[int, Brought]) -> str:
    return f"the cohort of client {min(members)}"
