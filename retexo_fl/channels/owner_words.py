"""What owners sign, and past cohorts, as tables of a federation file (TOML)."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import tomli_w

from retexo_fl.channels.identity import (
    Identity,
    certificate_digest,
    parse_certificate,
    write_new,
)
from retexo_fl.channels.key_signing import is_signed, signature_of
from retexo_fl.channels.owner_secret import commitment_to
from retexo_fl.channels.roster import DIGEST_BYTES, hex_bytes, parse_tables, read_text
from retexo_fl.errors import AgreementError, IdentityError
from retexo_fl.masking.agreement import USES
from retexo_fl.masking.keys import SIGNATURE_BYTES, number
from retexo_fl.masking.past_cohorts import Brought, PastCohort

_MOST: Final = 2**31 - 1
_NAME_DIGITS: Final = 12
_SIGNED: Final = b"retexo federation file 1\0"
_RELEASED: Final = b"retexo release of a client 1\0"

#: What each key of any table has: so many bytes, as hexadecimal digits; a whole number from 0
#: (``int``); uses (``frozenset``); or a value of that type of TOML.
_KINDS: Final[Mapping[str, int | type]] = {
    **dict.fromkeys(("client", "after-days", "least", "tolerated", "cohort-size"), int),
    **dict.fromkeys(("proposal", "number", "key", "part"), DIGEST_BYTES),
    **dict.fromkeys(("date", "silent-since"), datetime.date),
    "signature": SIGNATURE_BYTES,
    "certificate": str,
    "uses": frozenset,
    "members": list,
}
_EXPECTED: Final = {
    int: "a whole number from 0",
    str: "a string",
    list: "a list",
    datetime.date: "a date, as 2026-01-31",
}
_SIGNATURE: Final = ("client", "proposal", "number", "signature")
_RELEASE: Final = ("client", "certificate", "part", "after-days", "signature")
_SILENCE: Final = ("silent-since",)
_PAST_MEMBER: Final = ("client", "key", "part", "uses")


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """An owner's signature of a federation file.

    Attributes:
        client: Client index.
        proposal: Digest of what was signed (:attr:`.Federation.proposal`), 32 bytes.
        number: The number that the owner had committed to, 32 bytes.
        signature: Of proposal and number, 64 bytes.
    """

    client: int
    proposal: bytes
    number: bytes
    signature: bytes

    @classmethod
    def sign(cls, identity: Identity, proposal: bytes, number: bytes) -> Self:
        """Sign a federation file.

        Raises:
            IdentityError: The key cannot be used.
        """
        return cls(
            client=identity.client,
            proposal=proposal,
            number=number,
            signature=signature_of(identity, _SIGNED + proposal + number),
        )

    @classmethod
    def of_table(cls, entry: Any) -> Self:
        """Read what :meth:`told` returns.

        Raises:
            AgreementError: It is no signature.
        """
        return cls(**read_table(entry, "signature", _SIGNATURE))

    def told(self) -> dict[str, Any]:
        """Return it as TOML has it."""
        return table_of(self, _SIGNATURE)

    def write_beside(self, key_path: Path) -> Path:
        """Write it beside the owner's key, once for each number; return the file.

        Raises:
            AgreementError: The owner has revealed this number for another file.
            IdentityError: It cannot be written.
        """
        name = commitment_to(self.number).hex()[:_NAME_DIGITS]
        path = key_path.with_name(f"signature-{self.client}-{name}.toml")
        content = tomli_w.dumps({"signature": [self.told()]})
        try:
            write_new(path, content.encode(), mode=0o644)
        except FileExistsError as error:
            known = [Signature.of_table(e) for e in parse_tables(read_text(path))["signature"]]
            if [signed.proposal for signed in known] != [self.proposal]:
                raise AgreementError(
                    f"{path}: this owner's number was told for another file; expected one of a "
                    "new promise (retexo keys member)"
                ) from error
        except OSError as error:
            raise IdentityError(f"{path}: {error.strerror}") from error
        return path

    def is_by(self, certificate_pem: str) -> bool:
        """Return whether the key of a certificate made it."""
        return is_signed(certificate_pem, _SIGNED + self.proposal + self.number, self.signature)


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """An owner's consent to later cohorts without its client, whose sums may differ by it alone.

    Attributes:
        client: Client index.
        certificate: Of the client, PEM.
        part: Digest of its part, as in its promise.
        after_days: Days of silence of the client after which the release holds; 0: at once.
        signature: 64 bytes.
        silent_since: Since when it is silent, as whoever makes the file says.
    """

    client: int
    certificate: str
    part: bytes
    after_days: int
    signature: bytes
    silent_since: datetime.date | None = None

    @classmethod
    def sign(cls, identity: Identity, part: bytes, after_days: int) -> Self:
        """Release a client.

        Raises:
            IdentityError: The key cannot be used.
        """
        text = _release_text(identity.client, part, after_days)
        return cls(
            client=identity.client,
            certificate=identity.certificate_pem,
            part=part,
            after_days=after_days,
            signature=signature_of(identity, text),
        )

    @classmethod
    def of_table(cls, entry: Any) -> Self:
        """Read what :meth:`told` returns.

        Raises:
            AgreementError: It is no release.
            IdentityError: Its certificate cannot be read.
        """
        found = cls(**read_table(entry, "release", _RELEASE, _SILENCE))
        parse_certificate(found.certificate, "release")
        return found

    def told(self) -> dict[str, Any]:
        """Return it as TOML has it."""
        return table_of(self, (*_RELEASE, *(_SILENCE if self.silent_since else ())))

    def text(self) -> str:
        """Return a file of it, TOML."""
        return tomli_w.dumps({"release": [self.told()]}, multiline_strings=True)

    def check(self, date: datetime.date, past: Iterable[PastCohort]) -> None:
        """Check that the owner of a past member signed it, and that the client was silent for long.

        Raises:
            AgreementError: The release does not hold.
        """
        key = certificate_digest(self.certificate)
        known = [version.members[self.client] for version in past if self.client in version.members]
        if not any(its.key == key and its.part == self.part for its in known):
            raise AgreementError(
                f"the release of client {self.client}: by a key, or of a part, that no past cohort "
                "has"
            )
        text = _release_text(self.client, self.part, self.after_days)
        if not is_signed(self.certificate, text, self.signature):
            raise AgreementError(f"the release of client {self.client}: its signature is not valid")
        if not self.after_days:
            return
        since = self.silent_since
        if since is None or (date - since).days < self.after_days:
            told = "nobody says since when" if since is None else f"{since} to {date}"
            raise AgreementError(
                f"the release of client {self.client}: holds after {self.after_days} days of "
                f"silence; {told} (retexo keys roster --silent {self.client}=YYYY-MM-DD)"
            )


def past_in(entry: Any) -> PastCohort:
    """Read what :func:`past_told` returns.

    Raises:
        AgreementError: It is no past cohort.
    """
    found = read_table(entry, "past", ("uses", "members"))
    members: dict[int, Brought] = {}
    for one in found["members"]:
        if not isinstance(one, list) or len(one) != len(_PAST_MEMBER):
            raise AgreementError(f"past: members: expected lists of {', '.join(_PAST_MEMBER)}")
        its = read_table(dict(zip(_PAST_MEMBER, one, strict=True)), "past", _PAST_MEMBER)
        client = its.pop("client")
        members[client] = Brought(**its)
    return PastCohort(members=members, uses=found["uses"])


def past_told(version: PastCohort) -> dict[str, Any]:
    """Return a past cohort as TOML has it."""
    return {
        "uses": sorted(version.uses),
        "members": [
            [client, its.key.hex(), its.part.hex(), sorted(its.uses)]
            for client, its in sorted(version.members.items())
        ],
    }


def tables_of(data: Mapping[str, Any], name: str) -> list[Any]:
    """Return the tables ``[[name]]`` of a file.

    Raises:
        AgreementError: It has something else of that name.
    """
    found = data.get(name, [])
    if not isinstance(found, list):
        raise AgreementError(f"{name}: expected [[{name}]] tables")
    return found


def read_table(
    entry: Any, where: str, names: Collection[str], maybe: Collection[str] = ()
) -> dict[str, Any]:
    """Return what a table says, by names as Python has them.

    Args:
        entry: The table.
        where: Its name in errors.
        names: Keys that it must have.
        maybe: Keys that it may have besides.

    Raises:
        AgreementError: It is no table, or has other keys or values.
    """
    if not isinstance(entry, dict) or not {*names} <= entry.keys() <= {*names, *maybe}:
        raise AgreementError(f"{where}: expected the keys {', '.join(sorted(names))}")
    return {
        name.replace("-", "_"): _read(value, _KINDS[name], f"{where}: {name}")
        for name, value in entry.items()
    }


def table_of(record: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return the table that :func:`read_table` reads as the attributes of a record."""
    values = {name: getattr(record, name.replace("-", "_")) for name in names}
    return {name: v.hex() if isinstance(v, bytes) else v for name, v in values.items()}


def _read(value: Any, kind: int | type, where: str) -> Any:
    if isinstance(kind, int):
        found = hex_bytes(value, kind)
        if found is None:
            raise AgreementError(f"{where}: expected {2 * kind} hexadecimal digits")
        return found
    if kind is frozenset:
        if not isinstance(value, list) or any(use not in USES for use in value):
            raise AgreementError(f"{where}: expected some of {', '.join(USES)}")
        return frozenset(value)
    is_kind = type(value) is kind
    if not is_kind or value == [] or (kind is int and not 0 <= value <= _MOST):
        raise AgreementError(f"{where}: expected {_EXPECTED[kind]}")
    return value


def _release_text(client: int, part: bytes, after_days: int) -> bytes:
    return _RELEASED + number(client) + number(after_days) + part
