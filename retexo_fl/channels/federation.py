"""The federation file: a roster, and what its owners agree on and sign before sums are masked.

First each owner commits to a number of its own (:class:`.Promise`), then all of that is put into
one file, then each reveals its number and signs file and number at once. The cohorts follow from
all numbers: nobody knew all of them when the file was closed.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

import tomli_w

from retexo_fl.channels.identity import Identity, certificate_digest
from retexo_fl.channels.owner_secret import OwnerSecret, commitment_to
from retexo_fl.channels.owner_words import (
    Release,
    Signature,
    past_in,
    past_told,
    read_table,
    table_of,
    tables_of,
)
from retexo_fl.channels.roster import Member, Promise, Roster, parse_tables, read_text
from retexo_fl.errors import AgreementError, IdentityError
from retexo_fl.masking.agreement import LEAST, SEED_BYTES, Agreement, Cohort, check_least
from retexo_fl.masking.past_cohorts import Brought, PastCohort, PastCohorts
from retexo_fl.units import clients_named

_TERMS: Final = ("least", "tolerated", "cohort-size", "date")


@dataclass(frozen=True, kw_only=True)
class Federation:
    """A roster with what its owners agree on.

    Attributes:
        roster: All of whose members have made a promise.
        least: Honest clients that bring data to a sum, at least.
        tolerated: Clients of a cohort that may work with the server.
        cohort_size: About how many clients a new cohort has; 0 for a number by that of clients.
        date: Of the file.
        past: Versions of all cohorts that were agreed on before, the first one first.
        releases: Of clients that left one.
        signatures: By client.

    Raises:
        AgreementError: A promise is missing, or a number is none.
    """

    roster: Roster
    least: int = LEAST
    tolerated: int = 0
    cohort_size: int = 0
    date: datetime.date
    past: tuple[PastCohort, ...] = ()
    releases: tuple[Release, ...] = ()
    signatures: Mapping[int, Signature] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check all that it says, except the signatures."""
        if silent := sorted(self.roster.members.keys() - self._promises.keys()):
            raise AgreementError(
                f"{clients_named(silent)}: no promise in the member file; expected one of each, by "
                "`retexo keys member`"
            )
        check_least(self.least, self.tolerated)
        for release in self.releases:
            release.check(self.date, self.past)
        # With any seed: what past cohorts forbid is an error before anybody signs.
        self._cohorts(bytes(SEED_BYTES))

    @cached_property
    def proposal(self) -> bytes:
        """32 bytes that bind all but addresses and signatures: what owners sign."""
        told = {
            "members": [
                [client, its.key.hex(), its.part.hex(), sorted(its.uses), *self._drawn(client)]
                for client, its in self.brought.items()
            ],
            "terms": table_of(self, _TERMS),
            "past": [past_told(version) for version in self.past],
            "releases": [release.told() for release in self.releases],
        }
        content = json.dumps(told, sort_keys=True, separators=(",", ":"), default=str)
        return hashlib.sha256(b"retexo federation 1\0" + content.encode()).digest()

    @cached_property
    def brought(self) -> dict[int, Brought]:
        """What each client brings."""
        members = self.roster.members
        return {
            client: Brought(key=members[client].digest, part=its.part, uses=its.brings)
            for client, its in self._promises.items()
        }

    @cached_property
    def agreement(self) -> Agreement:
        """What follows from it when all have signed.

        Raises:
            AgreementError: A signature is missing or is not valid, or a number is another than its
                owner committed to.
        """
        seed = hashlib.sha256(b"retexo cohorts 1\0" + self.proposal)
        if missing := sorted(self.roster.members.keys() - self.signatures.keys()):
            raise AgreementError(
                f"{clients_named(missing)}: not signed; expected a signature of each owner, by "
                "`retexo keys sign`, joined by `retexo keys roster`"
            )
        for client in self.roster.members:
            self.check(self.signatures[client])
            seed.update(self.signatures[client].number)
        return Agreement(
            cohorts=self._cohorts(seed.digest()),
            least=self.least,
            tolerated=self.tolerated,
            seed=seed.digest(),
            signed=self.proposal,
        )

    @property
    def versions(self) -> tuple[PastCohort, ...]:
        """Its cohorts, as a later file names them.

        Raises:
            AgreementError: As :attr:`agreement`.
        """
        return tuple(
            PastCohort(
                members={client: self.brought[client] for client in cohort.members},
                uses=cohort.uses,
            )
            for cohort in self.agreement.cohorts
        )

    @property
    def history(self) -> tuple[PastCohort, ...]:
        """All versions of cohorts up to its own."""
        return (*self.past, *(v for v in self.versions if v not in self.past))

    def check(self, signed: Signature) -> None:
        """Check that an owner signed this file and revealed the number that it had committed to.

        Raises:
            AgreementError: It did not.
        """
        client = signed.client
        if client not in self._promises:
            raise AgreementError(f"client {client}: signed, and is no member")
        if signed.proposal != self.proposal:
            raise AgreementError(
                f"client {client}: signed {signed.proposal.hex()[:16]}; expected "
                f"{self.proposal.hex()[:16]}: what is agreed on was changed since"
            )
        if commitment_to(signed.number) != self._promises[client].commitment:
            raise AgreementError(
                f"client {client}: its number is another than the one that it committed to"
            )
        if not signed.is_by(self.roster.members[client].certificate_pem):
            raise AgreementError(
                f"client {client}: its signature is not by the key that the roster names"
            )

    def sign(self, identity: Identity, secret: OwnerSecret) -> Signature:
        """Return an owner's signature of this file; whoever reads it knows the owner's number.

        Raises:
            AgreementError: Its entry is not the one that this owner made.
            IdentityError: The key cannot be used.
        """
        promise = self._promises.get(identity.client)
        if promise is None:
            raise AgreementError(f"client {identity.client} is no member; expected it in the file")
        own = secret.number(promise.draw)
        if (
            self.brought[identity.client].key != certificate_digest(identity.certificate_pem)
            or commitment_to(own) != promise.commitment
        ):
            raise AgreementError(
                f"client {identity.client}: its entry is not of this key and secret; expected the "
                "member.toml that `retexo keys member` made here"
            )
        return Signature.sign(identity, self.proposal, own)

    def with_signatures(self, signatures: Iterable[Signature]) -> Self:
        """Return the file with more signatures.

        Raises:
            AgreementError: One is not valid.
        """
        found = dict(self.signatures)
        for signed in signatures:
            self.check(signed)
            found[signed.client] = signed
        return replace(self, signatures=dict(sorted(found.items())))

    @classmethod
    def proposed(
        cls,
        roster: Roster,
        *,
        former: Self | None,
        releases: Iterable[Release],
        silent_since: Mapping[int, datetime.date],
        date: datetime.date,
        **terms: Any,
    ) -> Self:
        """Return a file for owners to sign.

        Args:
            roster: Who take part.
            former: What all of them agreed on before; its terms hold where none are given.
            releases: Of those who left.
            silent_since: By client, since when nobody has heard of it.
            date: Of today.
            terms: ``least``, ``tolerated`` and ``cohort_size``.

        Raises:
            AgreementError: Owners cannot agree on this.
        """
        if former is not None:
            before = {n: getattr(former, n) for n in ("least", "tolerated", "cohort_size")}
            terms = {**before, **terms}
        known = [] if former is None else list(former.releases)
        known += [
            replace(release, silent_since=silent_since.get(release.client)) for release in releases
        ]
        return cls(
            roster=roster,
            date=date,
            past=() if former is None else former.history,
            releases=tuple(known),
            **terms,
        )

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read a federation file; None where it is a roster alone.

        Raises:
            IdentityError: It cannot be read, or its roster cannot be used.
            AgreementError: What is agreed on cannot be used.
        """
        try:
            return cls.of_tables(parse_tables(read_text(path)))
        except (IdentityError, AgreementError) as error:
            raise type(error)(f"{path}: {error}") from error

    @classmethod
    def of_tables(cls, data: Mapping[str, Any]) -> Self | None:
        """Return the federation file in what TOML says; None where it is a roster alone.

        Raises:
            IdentityError: Its roster cannot be used.
            AgreementError: What is agreed on cannot be used.
        """
        roster = Roster.of_tables(data)
        if "agreement" not in data:
            return None
        return cls(
            **read_table(data["agreement"], "agreement", _TERMS),
            roster=roster,
            past=tuple(map(past_in, tables_of(data, "past"))),
            releases=tuple(map(Release.of_table, tables_of(data, "release"))),
            signatures={
                signed.client: signed
                for signed in map(Signature.of_table, tables_of(data, "signature"))
            },
        )

    def text(self) -> str:
        """Return all of it as TOML."""
        tables = {
            **self.roster.tables(),
            "agreement": table_of(self, _TERMS),
            "past": [past_told(version) for version in self.past],
            "release": [release.told() for release in self.releases],
            "signature": [signed.told() for signed in self.signatures.values()],
        }
        told = {name: table for name, table in tables.items() if table}
        return tomli_w.dumps(told, multiline_strings=True)

    def _drawn(self, client: int) -> tuple[str, str]:
        promise = self._promises[client]
        return promise.draw.hex(), promise.commitment.hex()

    @cached_property
    def _promises(self) -> dict[int, Promise]:
        members = self.roster.members.items()
        return {client: member.promise for client, member in members if member.promise is not None}

    def _cohorts(self, seed: bytes) -> tuple[Cohort, ...]:
        past = PastCohorts(
            self.past,
            least=self.least,
            tolerated=self.tolerated,
            released=frozenset((release.client, release.part) for release in self.releases),
        )
        return past.cohorts(self.brought, size=self.cohort_size, seed=seed)


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """What some files hold that are to be joined.

    Attributes:
        roster: All members.
        proposal: The one federation file among them.
        signatures: Of owners.
        releases: Of clients that leave.
    """

    roster: Roster
    proposal: Federation | None
    signatures: tuple[Signature, ...]
    releases: tuple[Release, ...]

    @classmethod
    def read(cls, paths: Iterable[Path]) -> Self:
        """Read files, whatever each holds.

        Raises:
            IdentityError: One cannot be read or used.
            AgreementError: What is agreed on cannot be used, or there are two proposals, or one
                beside other members.
        """
        members: list[Member] = []
        proposals: list[Federation] = []
        signatures: list[Signature] = []
        releases: list[Release] = []
        for path in paths:
            try:
                data = parse_tables(read_text(path))
                found = Federation.of_tables(data)
                if found is not None:
                    proposals.append(found)
                    continue
                members += Roster.of_tables(data).members.values()
                signatures += map(Signature.of_table, tables_of(data, "signature"))
                releases += map(Release.of_table, tables_of(data, "release"))
            except (IdentityError, AgreementError) as error:
                raise type(error)(f"{path}: {error}") from error
        if len(proposals) > 1 or (proposals and (members or releases)):
            raise AgreementError(
                "expected one proposal and signatures, or member files and releases"
            )
        return cls(
            roster=Roster.of(members),
            proposal=proposals[0] if proposals else None,
            signatures=tuple(signatures),
            releases=tuple(releases),
        )
