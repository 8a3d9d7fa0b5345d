"""The roster: who the clients are and where their agents can be reached."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self

import tomli_w
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from retexo_fl.channels.addresses import check_address
from retexo_fl.channels.identity import certificate_digest, client_of, parse_certificate
from retexo_fl.errors import IdentityError

_MAX_CLIENT: Final = 2**31 - 1
_FIELDS: Final = frozenset({"client", "addresses", "certificate"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One client of the roster.

    Attributes:
        client: Client index.
        certificate_pem: What it must show; whoever proves its key is this client.
        addresses: Where its agent can be reached, the best first; none if only it can connect.
    """

    client: int
    certificate_pem: str
    addresses: tuple[str, ...]

    @property
    def digest(self) -> bytes:
        """SHA-256 of the certificate in DER."""
        return certificate_digest(self.certificate_pem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """All clients that may exchange with each other.

    Attributes:
        members: By client index, ascending.

    Raises:
        IdentityError: Two members have the same key, or a member cannot be used.
    """

    members: Mapping[int, Member] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check every member and that no two have the same key."""
        owners: dict[bytes, int] = {}
        for client, member in sorted(self.members.items()):
            key = _checked_key(member)
            if client != member.client or key in owners:
                raise IdentityError(
                    f"roster: client {client} has the key of client {owners.get(key, client)}; "
                    "every client needs its own"
                )
            owners[key] = client
        object.__setattr__(self, "members", MappingProxyType(dict(sorted(self.members.items()))))

    @classmethod
    def of(cls, members: Iterable[Member]) -> Self:
        """Build a roster from members in any order.

        Raises:
            IdentityError: A client stands there twice, or a member cannot be used.
        """
        by_client: dict[int, Member] = {}
        for member in members:
            if member.client in by_client:
                raise IdentityError(f"roster: client {member.client} is listed twice")
            by_client[member.client] = member
        return cls(members=by_client)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a roster file.

        Raises:
            IdentityError: It cannot be read or used; the message names file and member.
        """
        try:
            return cls.parse(path.read_text("utf-8"))
        except OSError as error:
            raise IdentityError(f"{path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise IdentityError(f"{path}: not UTF-8") from error
        except IdentityError as error:
            raise IdentityError(f"{path}: {error}") from error

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text of a roster.

        Raises:
            IdentityError: It cannot be used.
        """
        try:
            data = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            # Beside bad TOML: numbers of thousands of digits, tables in tables without end.
            raise IdentityError(f"not TOML: {error}") from error
        entries = data.pop("member", [])
        if data or not isinstance(entries, list):
            raise IdentityError("expected [[member]] tables and nothing else")
        return cls.of(_parse_member(entry, number) for number, entry in enumerate(entries, 1))

    def with_members(self, members: Iterable[Member]) -> Roster:
        """Return a roster in which ``members`` stand as well, in place of their former entries.

        Raises:
            IdentityError: Two members have the same key, or a member cannot be used.
        """
        return Roster(members={**self.members, **{member.client: member for member in members}})

    def text(self) -> str:
        """Return the roster as TOML, clients ascending."""
        entries = [
            {
                "client": member.client,
                "addresses": list(member.addresses),
                "certificate": member.certificate_pem,
            }
            for member in self.members.values()
        ]
        return tomli_w.dumps({"member": entries}, multiline_strings=True)


def _parse_member(entry: Any, number: int) -> Member:
    if not isinstance(entry, dict) or set(entry) != _FIELDS:
        raise IdentityError(f"member {number}: expected the keys {', '.join(sorted(_FIELDS))}")
    client, addresses, pem = entry["client"], entry["addresses"], entry["certificate"]
    is_list = isinstance(addresses, list) and all(isinstance(one, str) for one in addresses)
    if not isinstance(client, int) or isinstance(client, bool):
        raise IdentityError(f"member {number}: client is {client!r}, expected a whole number")
    if not is_list or not isinstance(pem, str):
        raise IdentityError(
            f"member {number}: expected a list of strings as addresses and a string as certificate"
        )
    return Member(client=client, certificate_pem=pem, addresses=tuple(addresses))


def _checked_key(member: Member) -> bytes:
    """Return the member's public key after checking all of its entry."""
    where = f"client {member.client}"
    if not 0 <= member.client <= _MAX_CLIENT:
        raise IdentityError(f"{where}: expected a client index from 0 to {_MAX_CLIENT}")
    certificate = parse_certificate(member.certificate_pem, where)
    if (named := client_of(certificate, where)) != member.client:
        raise IdentityError(f"{where}: its certificate is that of client {named}")
    for address in member.addresses:
        try:
            check_address(address)
        except IdentityError as error:
            raise IdentityError(f"{where}: {error}") from error
    return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
