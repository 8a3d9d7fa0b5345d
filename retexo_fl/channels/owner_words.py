"""What owners sign, and what stands in a federation file of the past, as TOML has it."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """An owner's word for a federation file.

    Attributes:
        client: Client index.
        proposal: What it is for (:attr:`.Federation.proposal`), 32 bytes.
        number: To which the owner had committed, 32 bytes.
        signature: Of both, 64 bytes.
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
            AgreementError: It is none.
        """
        _expect(entry, "signature", {"client", "proposal", "number", "signature"})
        return cls(
            client=whole(entry, "client", "signature"),
            proposal=_bytes(entry, "proposal", "signature", DIGEST_BYTES),
            number=_bytes(entry, "number", "signature", DIGEST_BYTES),
            signature=_bytes(entry, "signature", "signature", SIGNATURE_BYTES),
        )

    def told(self) -> dict[str, Any]:
        """Return it as TOML has it."""
        return {
            "client": self.client,
            "proposal": self.proposal.hex(),
            "number": self.number.hex(),
            "signature": self.signature.hex(),
        }

    def write_beside(self, key_path: Path) -> Path:
        """Write it beside the owner's key, once for each number; return the file.

        Raises:
            AgreementError: This number was told for another file.
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
    """An owner's word that its client may be set apart from its cohort by leaving it.

    Attributes:
        client: Client index.
        certificate_pem: Of the client.
        part: Digest of its part, as it promised it.
        after_days: Only when nobody has heard of it for so many days; 0 for at once.
        signature: 64 bytes.
        silent_since: Since when nobody has, as who makes the file says.
    """

    client: int
    certificate_pem: str
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
            certificate_pem=identity.certificate_pem,
            part=part,
            after_days=after_days,
            signature=signature_of(identity, text),
        )

    @classmethod
    def of_table(cls, entry: Any) -> Self:
        """Read what :meth:`told` returns.

        Raises:
            AgreementError: It is none.
            IdentityError: Its certificate is none.
        """
        _expect(entry, "release", {"client", "certificate", "part", "after-days", "signature"})
        since, pem = entry.get("silent-since"), entry["certificate"]
        if since is not None and type(since) is not datetime.date:
            raise AgreementError("release: silent-since: expected a date, as 2026-01-31")
        if not isinstance(pem, str):
            raise AgreementError("release: certificate: expected a string")
        parse_certificate(pem, "release")
        return cls(
            client=whole(entry, "client", "release"),
            certificate_pem=pem,
            part=_bytes(entry, "part", "release", DIGEST_BYTES),
            after_days=whole(entry, "after-days", "release"),
            signature=_bytes(entry, "signature", "release", SIGNATURE_BYTES),
            silent_since=since,
        )

    def told(self) -> dict[str, Any]:
        """Return it as TOML has it."""
        since = {} if self.silent_since is None else {"silent-since": self.silent_since}
        return {
            "client": self.client,
            "certificate": self.certificate_pem,
            "part": self.part.hex(),
            "after-days": self.after_days,
            "signature": self.signature.hex(),
            **since,
        }

    def text(self) -> str:
        """Return a file of it, TOML."""
        return tomli_w.dumps({"release": [self.told()]}, multiline_strings=True)

    def check(self, date: datetime.date, past: Iterable[PastCohort]) -> None:
        """Check that the owner of a past member signed it, and that its time has come.

        Raises:
            AgreementError: It does not hold.
        """
        key = certificate_digest(self.certificate_pem)
        known = [version.members[self.client] for version in past if self.client in version.members]
        if not any(its.key == key and its.part == self.part for its in known):
            raise AgreementError(
                f"the release of client {self.client}: by a key, or of a part, that no past cohort "
                "has"
            )
        text = _release_text(self.client, self.part, self.after_days)
        if not is_signed(self.certificate_pem, text, self.signature):
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
        AgreementError: It is none.
    """
    _expect(entry, "past", {"uses", "members"})
    members: dict[int, Brought] = {}
    for one in _list(entry, "members", "past"):
        match one:
            case [int() as client, key, part, uses] if type(client) is int and 0 <= client <= _MOST:
                told = {"key": key, "part": part, "uses": uses}
                members[client] = Brought(
                    key=_bytes(told, "key", "past", DIGEST_BYTES),
                    part=_bytes(told, "part", "past", DIGEST_BYTES),
                    uses=_uses(told),
                )
            case _:
                raise AgreementError("past: members: expected lists of client, key, part and uses")
    return PastCohort(members=members, uses=_uses(entry))


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


def whole(entry: Mapping[str, Any], name: str, where: str) -> int:
    """Return a whole number of a table.

    Raises:
        AgreementError: It is none, or below 0.
    """
    value = entry[name]
    if type(value) is not int or not 0 <= value <= _MOST:
        raise AgreementError(f"{where}: {name}: expected a whole number from 0")
    return value


def _expect(entry: Any, where: str, names: set[str]) -> None:
    known = names | {"silent-since"} if where == "release" else names
    if not isinstance(entry, dict) or not names <= entry.keys() <= known:
        raise AgreementError(f"{where}: expected the keys {', '.join(sorted(names))}")


def _bytes(entry: Mapping[str, Any], name: str, where: str, size: int) -> bytes:
    found = hex_bytes(entry[name], size)
    if found is None:
        raise AgreementError(f"{where}: {name}: expected {2 * size} hexadecimal digits")
    return found


def _list(entry: Mapping[str, Any], name: str, where: str) -> list[Any]:
    found = entry[name]
    if not isinstance(found, list) or not found:
        raise AgreementError(f"{where}: {name}: expected a list")
    return found


def _uses(entry: Mapping[str, Any]) -> frozenset[str]:
    found = entry["uses"]
    if not isinstance(found, list) or any(use not in USES for use in found):
        raise AgreementError(f"past: uses: expected some of {', '.join(USES)}")
    return frozenset(found)


def _release_text(client: int, part: bytes, after_days: int) -> bytes:
    return _RELEASED + number(client) + number(after_days) + part
