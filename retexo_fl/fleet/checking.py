"""``retexo fleet check``: whether bundles, and what is installed here, are as the file says.

Nothing is changed. Of each client one line says that all is well, or a line each what is not.
"""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
)

from retexo_fl.agent.remote import ask_agent
from retexo_fl.agent.settings import MAX_SOCKET_BYTES
from retexo_fl.channels.identity import (
    CERTIFICATE_FILE,
    KEY_FILE,
    Identity,
    client_of,
    parse_certificate,
    read_certificate,
)
from retexo_fl.channels.owner_secret import OWN_FILE
from retexo_fl.channels.roster import Roster
from retexo_fl.doctor.finding import Finding, bad, doubtful, good
from retexo_fl.errors import AgentUnreachable, IdentityError, RetexoError
from retexo_fl.fleet.description import Fleet, FleetClient
from retexo_fl.fleet.making import (
    FLEET_FILE,
    ROSTER_FILE,
    SERVER_TLS,
    SUPERNODE_KEY,
    bundle,
    certifies,
)
from retexo_fl.fleet.texts import client_texts, server_texts
from retexo_fl.units import format_counted

_SECRETS: Final = (KEY_FILE, OWN_FILE, SUPERNODE_KEY)
_FOLDERS: Final = ("authority", "clients", "members", "server", "server/supernodes", "server/tls")
_SERVER_SECRETS: Final = ("authority/ca.key", "server/tls/server.key")
_OTHERS: Final = 0o077
_AGAIN: Final = "retexo fleet new makes it again"
_REJOIN: Final = "put the former key back, or take the new member file: retexo fleet new"
_MISSING: Final = "missing"
#: Units that a machine's own folder has, not that of one client.
_UNIT: Final = ".service"
#: Of an agent that was started while its file was written.
_SLACK_S: Final = 1.0
_MOST_NAMED: Final = 5


def check_fleet(fleet: Fleet, folder: Path, *, machine: Path = Path("/")) -> Iterator[Finding]:
    """Compare a fleet's folder, and this machine's services of its clients, with its file.

    Args:
        fleet: As its file is now.
        folder: What ``retexo fleet new`` made.
        machine: Root of the machine whose installed clients are looked at.

    Yields:
        What is found: the folder's own state, the server, then each client.
    """
    if _read(folder / FLEET_FILE) != fleet.text:
        yield bad("fleet", "the file has changed since its folder was made", "retexo fleet new")
    yield from _open_folders(folder)
    yield _roster(fleet, folder)
    yield from _server(fleet, folder)
    for one in fleet.clients:
        place = _Place(fleet, one, folder, folder / bundle(one))
        yield from place.findings(one.name)
        installed = machine / "etc/retexo" / one.name
        if fleet.has_units and installed.exists():
            units = machine / "etc/systemd/system"
            place = _Place(fleet, one, folder, installed, units=units, machine=machine)
            yield from place.findings(f"{one.name} installed")


def _open_folders(folder: Path) -> Iterator[Finding]:
    """Look at who may read what this command made; programs that run in it make folders, too."""
    folders = [folder, *map(folder.joinpath, _FOLDERS), *sorted(folder.glob("clients/*"))]
    secrets = [*(folder / name for name in _SERVER_SECRETS)]
    secrets += [path for name in _SECRETS for path in sorted(folder.glob(f"clients/*/{name}"))]
    for path in (*folders, *secrets):
        if path.exists() and (mode := path.stat().st_mode & 0o777) & _OTHERS:
            wanted = "0700" if path.is_dir() else "0600"
            yield bad("permissions", f"{path}: mode {mode:04o}", f"chmod {wanted} {path}")


def _roster(fleet: Fleet, folder: Path) -> Finding:
    path = folder / ROSTER_FILE
    try:
        members = Roster.read(path).members
    except IdentityError as error:
        return bad("roster", str(error), "join what is missing: retexo fleet new")
    wanted = {one.client: one.addresses for one in fleet.clients}
    if {client: its.addresses for client, its in members.items()} != wanted:
        return bad("roster", "has other clients or addresses than the file", "retexo fleet new")
    return good("roster", format_counted(len(members), "client"))


def _server(fleet: Fleet, folder: Path) -> Iterator[Finding]:
    found = []
    path = folder / SERVER_TLS / "server.pem"
    try:
        if not certifies(path, fleet.server.host):
            found.append(bad("server", f"{path}: is not of {fleet.server.host}", _AGAIN))
    except (IdentityError, OSError):
        found.append(bad("server", f"{path}: not a certificate", _AGAIN))
    for name, content in server_texts(fleet).items():
        told = _difference(folder / "server" / name, content)
        if told and name != "README":
            found.append(bad("server", f"{name} {told}", _AGAIN))
    yield from found or [good("server", str(fleet.server))]


@dataclass(frozen=True, slots=True)
class _Place:
    """A client's files: its bundle, or what is installed of it.

    Attributes:
        units: Where its units are; None where they are beside the rest.
        machine: Root of the machine on which its paths are; None where they are the bundle's.
    """

    fleet: Fleet
    one: FleetClient
    folder: Path
    path: Path
    units: Path | None = None
    machine: Path | None = None

    def findings(self, thing: str) -> Iterator[Finding]:
        """Look at all of it."""
        if not self.path.is_dir():
            yield bad(thing, f"{self.path}: missing", _AGAIN)
            return
        if not os.access(self.path, os.R_OK | os.X_OK):
            yield bad(thing, f"{self.path}: cannot be looked into", "do it as root")
            return
        wrong = [
            bad(thing, seen, advice)
            for seen, advice in (*self._keys(), *self._files(), *self._modes())
        ]
        yield from wrong
        status = self._long_path(thing) or self._agent(thing)
        if status is not None:
            yield status
        elif not wrong:
            yield good(thing, f"client {self.one.client} at {self.one.host}")

    def _modes(self) -> Iterator[tuple[str, str]]:
        """Look at modes of what is installed; those of the folder are looked at together."""
        for path in (self.path / name for name in _SECRETS) if self.machine else ():
            if path.exists() and _is_open(path):
                yield f"{path}: others may read it", f"chmod 0600 {path}"

    def _keys(self) -> Iterator[tuple[str, str]]:
        certificate = self.path / CERTIFICATE_FILE
        if certificate.exists():
            try:
                yield from self._own_key(certificate)
            except (IdentityError, OSError) as error:
                yield str(error), "put the key of this client there"
        elif self.fleet.keys_here or self.machine:
            yield f"{CERTIFICATE_FILE} missing", "put that of this client there"
        yield from self._supernode_key()

    def _own_key(self, path: Path) -> Iterator[tuple[str, str]]:
        pem = read_certificate(path)
        client = client_of(parse_certificate(pem, str(path)), str(path))
        key = path.with_name(KEY_FILE)
        # Of one that others may read that is said, once, and no more.
        if key.exists() and not _is_open(key):
            Identity.load(key, path)
        roster = self.folder / ROSTER_FILE
        known = Roster.read(roster).members.get(self.one.client) if roster.exists() else None
        if client != self.one.client:
            yield f"wrong key: of client {client}", f"put that of client {self.one.client} there"
        elif known is not None and known.certificate_pem != pem:
            yield "wrong key: the roster has another certificate of this client", _REJOIN

    def _supernode_key(self) -> Iterator[tuple[str, str]]:
        secret = self.path / SUPERNODE_KEY
        registered = self.folder / "server/supernodes" / f"{self.one.name}.pub"
        if not registered.exists():
            yield "no public key of its SuperNode at the server", "retexo fleet new, with its file"
        elif secret.exists() and _public(secret) != registered.read_bytes().split()[:2]:
            yield f"wrong {SUPERNODE_KEY}: the server has another", "register its public key"

    def _files(self) -> Iterator[tuple[str, str]]:
        wanted = client_texts(self.fleet, self.one)
        for name in (ROSTER_FILE, "ca.crt"):
            source = ROSTER_FILE if name == ROSTER_FILE else f"{SERVER_TLS}/{name}"
            content = _read(self.folder / source)
            if content is not None and (told := _difference(self.path / name, content)):
                seen = told if told == _MISSING else "old: another than the fleet has"
                yield f"{name} {seen}", self._advice(name)
        for name, content in wanted.items():
            # Nothing reads the first; the second is not installed.
            if name == "README" or (self.machine and name == "install.sh"):
                continue
            is_unit = self.units is not None and name.endswith(_UNIT)
            place = self.units if is_unit and self.units is not None else self.path
            told = _difference(place / name, content)
            if told and name == "agent.toml" and told != _MISSING:
                told = _other_keys(place / name, self.one.agent)
            if told:
                yield f"{name} {told}", self._advice(name)

    def _advice(self, name: str) -> str:
        return f"copy {name} of {bundle(self.one)} there" if self.machine else _AGAIN

    def _socket(self) -> Path:
        return (self.machine or self.path) / str(self.one.agent["socket"])

    def _long_path(self, thing: str) -> Finding | None:
        """Look whether an agent could listen where this is; bundles are made for other places."""
        if (size := len(os.fsencode(self._socket()))) <= MAX_SOCKET_BYTES:
            return None
        return doubtful(
            thing,
            f"{self._socket()} has {size} bytes; an agent listens at {MAX_SOCKET_BYTES} at most",
            "run it where its bundle has a shorter path",
        )

    def _agent(self, thing: str) -> Finding | None:
        """Ask the agent that runs here, if one does."""
        if self.fleet.services != "none" and self.machine is None:
            return None
        file = self.path / "agent.toml"
        try:
            status: Mapping[str, Any] = ask_agent(self._socket(), "status")
        except AgentUnreachable:
            return None
        except RetexoError as error:
            return bad(thing, f"its agent says: {error}", "see its log")
        client = status["part"]["client"]
        if client != self.one.client:
            return bad(thing, f"its agent is client {client}'s", "stop it, and start this one's")
        started = time.time() - status["uptime_s"]
        if file.exists() and file.stat().st_mtime > started + _SLACK_S:
            return doubtful(thing, "its agent runs with an agent.toml of before", "restart it")
        return good(thing, f"client {client}, its agent runs here")


def _is_open(path: Path) -> bool:
    return bool(path.stat().st_mode & _OTHERS)


def _read(path: Path) -> bytes | None:
    """Return the content of a file; None where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return None


def _difference(path: Path, content: bytes) -> str:
    found = _read(path)
    if found is None:
        return _MISSING
    return "" if found == content else "differs from what follows from the file"


def _other_keys(path: Path, wanted: Mapping[str, Any]) -> str:
    """Return which keys of an ``agent.toml`` have other values; empty where none has."""
    try:
        found = tomllib.loads((_read(path) or b"").decode())
    except ValueError:
        return "is no TOML"
    other = sorted(key for key in {*found, *wanted} if found.get(key, ...) != wanted.get(key, ...))
    if not other:
        return ""
    more = "" if len(other) <= _MOST_NAMED else f" and {len(other) - _MOST_NAMED} more"
    return f"differs: {', '.join(other[:_MOST_NAMED])}{more}"


def _public(path: Path) -> list[bytes]:
    """Return kind and digits of the public key of a SuperNode's key; nothing of another file."""
    try:
        key = load_ssh_private_key(path.read_bytes(), password=None)
    except (ValueError, UnsupportedAlgorithm, OSError):
        return []
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        return []
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return public.split()[:2]
