"""The roster: who the clients are and where their agents can be reached."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self

import tomli_w
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from retexo_fl.channels.addresses import check_address, normalised
from retexo_fl.channels.identity import (
    certificate_digest,
    client_of,
    make_identity,
    parse_certificate,
)
from retexo_fl.errors import IdentityError
from retexo_fl.files import write_whole
from retexo_fl.masking.agreement import USES

#: What an owner sends to others: a roster of one.
MEMBER_FILE: Final = "member.toml"
MAX_CLIENT: Final = 2**31 - 1
_FIELDS: Final = frozenset({"client", "addresses", "certificate"})
_PROMISED: Final = frozenset({"brings", "part", "draw", "commitment"})
#: What owners agree on beside who they are (:mod:`retexo_fl.channels.federation`).
AGREED: Final = frozenset({"agreement", "past", "release", "signature"})
DRAW_BYTES: Final = 16
DIGEST_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What an owner says before owners agree on masked sums.

    Attributes:
        brings: Uses of which its part has enough.
        part: 32 bytes, a digest of the part that only its owner can compute.
        draw: 16 bytes by which the owner finds its number for the draw of cohorts again.
        commitment: SHA-256 of that number, which is revealed when all have committed.
    """

    brings: frozenset[str]
    part: bytes
    draw: bytes
    commitment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One client of the roster.

    Attributes:
        client: Client index.
        certificate_pem: What it must show; whoever proves its key is this client.
        addresses: Where its agent can be reached, the best first; none if only it can connect.
        promise: None where its owner agrees to no masked sums.
    """

    client: int
    certificate_pem: str
    addresses: tuple[str, ...]
    promise: Promise | None = None

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
            IdentityError: A client is there twice, or a member cannot be used.
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
            return cls.parse(read_text(path))
        except IdentityError as error:
            raise IdentityError(f"{path}: {error}") from error

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text of a roster, whatever its owners agree on beside.

        Raises:
            IdentityError: It cannot be used.
        """
        return cls.of_tables(parse_tables(text))

    @classmethod
    def of_tables(cls, data: Mapping[str, Any]) -> Self:
        """Return the roster in what TOML says.

        Raises:
            IdentityError: It cannot be used.
        """
        entries = data.get("member", [])
        if data.keys() - AGREED - {"member"} or not isinstance(entries, list):
            raise IdentityError(
                "expected [[member]] tables, and what owners agree on: " + ", ".join(sorted(AGREED))
            )
        return cls.of(_parse_member(entry, number) for number, entry in enumerate(entries, 1))

    def with_members(self, members: Iterable[Member]) -> Roster:
        """Return a roster with ``members`` added, in place of their former entries.

        Raises:
            IdentityError: Two members have the same key, or a member cannot be used.
        """
        return Roster(members={**self.members, **{member.client: member for member in members}})

    def refuse_shared_addresses(self) -> None:
        """Refuse two clients at one address: peers would reach whichever of them had bound it.

        Raises:
            IdentityError: There are two; the message names them.
        """
        owners: dict[str, int] = {}
        for member in self.members.values():
            for address in member.addresses:
                owner = owners.setdefault(normalised(address), member.client)
                if owner != member.client and address != "relay:":
                    raise IdentityError(
                        f"roster: clients {owner} and {member.client} have the address "
                        f"{address!r}; expected another host or port for each (retexo keys new "
                        "--address)"
                    )

    def text(self) -> str:
        """Return the roster as TOML, clients ascending."""
        return tomli_w.dumps(self.tables(), multiline_strings=True)

    def tables(self) -> dict[str, Any]:
        """Return what :meth:`of_tables` reads."""
        return {"member": [_told(member) for member in self.members.values()]}


def make_member(folder: Path, client: int, addresses: tuple[str, ...]) -> Member:
    """Make the key and certificate of one client, and its member file, never over others.

    Args:
        folder: Made if needed.
        client: Client index.
        addresses: Where its agent can be reached, the best first.

    Raises:
        IdentityError: An address cannot be used, or one of the files is there already.
        OSError: They cannot be written.
    """
    for address in addresses:
        check_address(address)
    path = folder / MEMBER_FILE
    if path.exists():
        raise IdentityError(f"{path}: exists; expected a new file")
    identity = make_identity(folder, client)
    member = Member(client=client, certificate_pem=identity.certificate_pem, addresses=addresses)
    write_whole(path, [Roster.of([member]).text().encode()])
    return member


def read_text(path: Path) -> str:
    """Return the text of a file; errors do not name it.

    Raises:
        IdentityError: It cannot be read.
    """
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise IdentityError(str(error.strerror)) from error
    except UnicodeDecodeError as error:
        raise IdentityError("not UTF-8") from error


def parse_tables(text: str) -> dict[str, Any]:
    """Return what TOML says.

    Raises:
        IdentityError: It is none.
    """
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # Beside bad TOML: numbers of thousands of digits, tables in tables without end.
        raise IdentityError(f"not TOML: {error}") from error


def hex_bytes(value: Any, size: int) -> bytes | None:
    """Return so many bytes from hexadecimal digits, as files have them; None if it is none."""
    try:
        found = bytes.fromhex(value)
    except (TypeError, ValueError):
        return None
    return found if len(found) == size else None


def _told(member: Member) -> dict[str, Any]:
    told = {
        "client": member.client,
        "addresses": list(member.addresses),
        "certificate": member.certificate_pem,
    }
    if (promise := member.promise) is not None:
        told |= {
            "brings": sorted(promise.brings),
            "part": promise.part.hex(),
            "draw": promise.draw.hex(),
            "commitment": promise.commitment.hex(),
        }
    return told


def _parse_promise(entry: Mapping[str, Any], number: int) -> Promise | None:
    if not entry.keys() >= _PROMISED:
        return None
    brings = entry["brings"]
    if not isinstance(brings, list) or any(use not in USES for use in brings):
        raise IdentityError(f"member {number}: brings: expected some of {', '.join(USES)}")
    part = hex_bytes(entry["part"], DIGEST_BYTES)
    draw = hex_bytes(entry["draw"], DRAW_BYTES)
    commitment = hex_bytes(entry["commitment"], DIGEST_BYTES)
    if part is None or draw is None or commitment is None:
        raise IdentityError(
            f"member {number}: expected hexadecimal digits as part, draw and commitment, as "
            "`retexo keys member` writes them"
        )
    return Promise(brings=frozenset(brings), part=part, draw=draw, commitment=commitment)


def _parse_member(entry: Any, number: int) -> Member:
    if not isinstance(entry, dict) or set(entry) not in (_FIELDS, _FIELDS | _PROMISED):
        raise IdentityError(
            f"member {number}: expected the keys {', '.join(sorted(_FIELDS))}; and "
            f"{', '.join(sorted(_PROMISED))}, or none of these"
        )
    client, addresses, pem = entry["client"], entry["addresses"], entry["certificate"]
    is_list = isinstance(addresses, list) and all(isinstance(one, str) for one in addresses)
    if not isinstance(client, int) or isinstance(client, bool):
        raise IdentityError(f"member {number}: client is {client!r}, expected a whole number")
    if not is_list or not isinstance(pem, str):
        raise IdentityError(
            f"member {number}: expected a list of strings as addresses and a string as certificate"
        )
    return Member(
        client=client,
        certificate_pem=pem,
        addresses=tuple(addresses),
        promise=_parse_promise(entry, number),
    )


def _checked_key(member: Member) -> bytes:
    """Return the member's public key after checking all of its entry."""
    where = f"client {member.client}"
    if not 0 <= member.client <= MAX_CLIENT:
        raise IdentityError(f"{where}: expected a client index from 0 to {MAX_CLIENT}")
    named, key = _named_key(member.certificate_pem, where)
    if named != member.client:
        raise IdentityError(f"{where}: its certificate is that of client {named}")
    for address in member.addresses:
        try:
            check_address(address)
        except IdentityError as error:
            raise IdentityError(f"{where}: {error}") from error
    return key


# An agent reads its roster with each question, and nearly always finds the same certificates.
@lru_cache(maxsize=1024)
def _named_key(pem: str, where: str) -> tuple[int, bytes]:
    """Return whose certificate this is, and its public key."""
    certificate = parse_certificate(pem, where)
    public = certificate.public_key()
    return client_of(certificate, where), public.public_bytes(
        Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    )
