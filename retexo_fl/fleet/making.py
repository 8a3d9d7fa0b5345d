"""``retexo fleet new``: what all machines of a fleet get, in one folder.

First the server's certificate, then each client's keys and member file, made here or come from
their owners; then the roster of all members; then the texts that follow from the fleet's file. What
is there already stays as it is, so that the same is done for a new fleet and for one more client.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_public_key,
)

from retexo_fl.channels.federation import Federation, Pieces
from retexo_fl.channels.identity import (
    CERTIFICATE_FILE,
    KEY_FILE,
    Identity,
    client_of,
    parse_certificate,
    read_certificate,
)
from retexo_fl.channels.owner_secret import OWN_FILE, OwnerSecret
from retexo_fl.channels.owner_words import Signature
from retexo_fl.channels.roster import MEMBER_FILE, Member, Roster, make_member
from retexo_fl.errors import AgreementError, ConfigurationError, IdentityError
from retexo_fl.file_lock import locked_folder
from retexo_fl.fleet.description import Fleet, FleetClient, Terms, read_fleet
from retexo_fl.fleet.shipped import shipped
from retexo_fl.fleet.staged import SECRET_MODE, Staged
from retexo_fl.fleet.texts import client_texts, server_texts
from retexo_fl.replacing import is_taken

#: The file that a folder was made of; whose folder it is.
FLEET_FILE: Final = "fleet.toml"
ROSTER_FILE: Final = "roster.toml"
PROPOSED_FILE: Final = "proposed.toml"
SUPERNODE_KEY: Final = "supernode-key"
SUPERNODE_PUBLIC_KEY: Final = "supernode-key.pub"
SERVER_TLS: Final = "server/tls"
#: Where files of owners are put.
MEMBERS: Final = "members"
_AUTHORITY: Final = "authority"
_CERTIFICATES_S: Final = 60.0
#: Until another process, that makes a fleet beside this one, has done so.
_FREE_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What came of it.

    Attributes:
        changed: Files that are new or other, relative to the folder, sorted.
        new: Names of clients that had no bundle before.
        missing: What is still to come from owners, a line each that names client and file;
            bundles lack a roster until all of it is there.
    """

    changed: tuple[str, ...]
    new: frozenset[str]
    missing: tuple[str, ...]


def bundle(one: FleetClient) -> str:
    """Return the folder of a client's bundle, relative to the fleet's."""
    return f"clients/{one.name}"


def make_fleet(fleet: Fleet, folder: Path) -> Made:
    """Make all of a fleet, or what is missing or other in its folder.

    Raises:
        ConfigurationError: The folder is something else, or what is needed is not installed.
        IdentityError: A key, a certificate or a member file cannot be used, or is another's.
        AgreementError: Owners cannot agree on this.
        PartitionError: A part that is to be promised cannot be read.
        OSError: A file cannot be written. Nothing has changed then but, where the disk failed
            amid the last step, whole files that the next call leaves as they are.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked_folder(folder.parent, within_s=_FREE_S, doing="making a fleet in"):
        return make_where_held(fleet, folder)


def make_where_held(fleet: Fleet, folder: Path) -> Made:
    """Do what :func:`make_fleet` does, whose caller holds the folder that this one is in."""
    _check_own(fleet, folder)
    new = frozenset(one.name for one in fleet.clients if not (folder / bundle(one)).exists())
    with Staged(folder) as staged:
        staged.put(FLEET_FILE, fleet.text)
        _certify_server(staged, fleet)
        making = _Members(staged, fleet)
        members = making.of_all()
        files = making.roster_files(members)
        for one in fleet.clients:
            for name, content in {**client_texts(fleet, one), **files}.items():
                staged.put(f"{bundle(one)}/{name}", content)
            staged.put(f"{bundle(one)}/ca.crt", _made(staged, f"{SERVER_TLS}/ca.crt"))
        for name, content in server_texts(fleet).items():
            staged.put(f"server/{name}", content)
        for name, content in files.items():
            staged.put(name, content)
        return Made(changed=tuple(staged.place()), new=new, missing=tuple(making.missing))


def _check_own(fleet: Fleet, folder: Path) -> None:
    path = folder / FLEET_FILE
    if path.is_file():
        name = read_fleet(path).name
        if name != fleet.name:
            raise ConfigurationError(
                f"out: {folder} is that of the fleet {name!r}; expected another folder"
            )
    elif is_taken(folder):
        raise ConfigurationError(
            f"out: {folder} is not empty; expected a new folder, or one that this command made"
        )


class _Members:
    """Who the clients are: keys that are made here, or files that came from their owners."""

    def __init__(self, staged: Staged, fleet: Fleet) -> None:
        self._staged, self._fleet = staged, fleet
        self._signatures: tuple[Signature, ...] = ()
        self.missing: list[str] = []

    def of_all(self) -> dict[int, Member]:
        """Return who is there, by client; SuperNodes' public keys are put to the server."""
        if self._fleet.keys_here:
            return {one.client: self._made(one) for one in self._fleet.clients}
        pieces = Pieces.read(sorted((self._staged.folder / MEMBERS).glob("*.toml")))
        if pieces.releases or pieces.proposal is not None:
            raise AgreementError(
                f"{self._staged.folder / MEMBERS}: has a release or a proposal; expected member "
                "files and signatures (with others: retexo keys roster)"
            )
        self._signatures = pieces.signatures
        known = {one.client for one in self._fleet.clients}
        if strangers := sorted(pieces.roster.members.keys() - known):
            raise IdentityError(
                f"{self._staged.folder / MEMBERS}: has client {strangers[0]}, who is not in the "
                "fleet's file; expected no file of it"
            )
        self._staged.new(f"{MEMBERS}/NAME.toml")
        found = {}
        for one in self._fleet.clients:
            member = pieces.roster.members.get(one.client)
            if member is None:
                self._lacks(one, f"{MEMBERS}/{one.name}.toml")
            else:
                found[one.client] = self._as_expected(one, member)
            path = self._staged.found(f"{MEMBERS}/{one.name}.pub")
            if path is None:
                self._lacks(one, f"{MEMBERS}/{one.name}.pub")
            else:
                self._put_supernode(one, path)
        return found

    def roster_files(self, members: Mapping[int, Member]) -> dict[str, bytes]:
        """Return the files that all clients get, by name; none while a member is missing."""
        if len(members) < len(self._fleet.clients):
            return {}
        roster = Roster.of(members.values())
        roster.refuse_shared_addresses()
        terms = self._fleet.terms
        if terms is None:
            plain = Roster.of(replace(member, promise=None) for member in members.values())
            return {ROSTER_FILE: plain.text().encode()}
        if self._fleet.keys_here:
            return {ROSTER_FILE: self._agreed_here(roster, terms).text().encode()}
        return self._agreed_by_owners(roster, terms)

    # ---- keys made here --------------------------------------------------------------------------

    def _made(self, one: FleetClient) -> Member:
        path = self._staged.found(f"{bundle(one)}/{CERTIFICATE_FILE}")
        if path is None:
            path = self._staged.new(f"{bundle(one)}/{CERTIFICATE_FILE}")
            make_member(path.parent, one.client, one.addresses)
        pem = read_certificate(path)
        if (client := client_of(parse_certificate(pem, str(path)), str(path))) != one.client:
            raise IdentityError(
                f"{path}: is of client {client}; expected that of client {one.client}, or another "
                "name for it"
            )
        known = self._staged.found(f"{bundle(one)}/{MEMBER_FILE}")
        promised = None if known is None else Roster.read(known).members.get(one.client)
        member = Member(
            client=one.client,
            certificate_pem=pem,
            addresses=one.addresses,
            promise=None if promised is None else promised.promise,
        )
        self._put_member(one, member)
        self._put_supernode(one, self._supernode_key(one))
        return member

    def _put_member(self, one: FleetClient, member: Member) -> None:
        self._staged.put(f"{bundle(one)}/{MEMBER_FILE}", Roster.of([member]).text().encode())

    def _supernode_key(self, one: FleetClient) -> Path:
        """Make a SuperNode's key where there is none, as ``ssh-keygen`` does; return its file."""
        name = f"{bundle(one)}/{SUPERNODE_PUBLIC_KEY}"
        if self._staged.found(name) is None:
            key = ec.generate_private_key(ec.SECP384R1())
            secret = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
            public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
            self._staged.put(f"{bundle(one)}/{SUPERNODE_KEY}", secret, SECRET_MODE)
            self._staged.put(name, public + b"\n")
        found = self._staged.found(name)
        assert found is not None
        return found

    def _agreed_here(self, roster: Roster, terms: Terms) -> Federation:
        """Return what all owners, who are one, promise and sign; what holds already stays."""
        # Loads torch.
        from retexo_fl.agent.promises import brought_by

        secrets, brought = {}, {}
        for one in self._fleet.clients:
            if one.part_here is None:
                raise ConfigurationError(
                    f"client {one.client}: part-here: missing; expected its part on this machine, "
                    "which [masks] has promised and signed"
                )
            secrets[one.client] = self._secret(one)
            brought[one.client] = brought_by(
                one.part_here, one.client, one.settings, links=terms.links, relation=terms.relation
            )
        former = self._former()
        promised = {
            client: replace(
                member,
                promise=member.promise
                if member.promise is not None
                and member.promise.brings == brought[client][0]
                and member.promise.part == secrets[client].part(brought[client][1])
                else secrets[client].promise(*brought[client]),
            )
            for client, member in roster.members.items()
        }
        if former is None or not _is_of(former, promised.values(), terms):
            # Numbers that were revealed once are drawn anew.
            promised = {
                client: replace(member, promise=secrets[client].promise(*brought[client]))
                for client, member in roster.members.items()
            }
            proposed = _proposed(promised.values(), terms, former)
            agreed = proposed.with_signatures(
                proposed.sign(self._identity(one), secrets[one.client])
                for one in self._fleet.clients
            )
        else:
            agreed = replace(former, roster=Roster.of(promised.values()))
        # Raises where the cohorts of it hide nobody.
        _ = agreed.agreement
        for one in self._fleet.clients:
            self._put_member(one, promised[one.client])
        return agreed

    def _identity(self, one: FleetClient) -> Identity:
        """Load the key of a client, which may have been taken away since it was made."""
        path = self._staged.found(f"{bundle(one)}/{CERTIFICATE_FILE}")
        assert path is not None
        return Identity.load(path.with_name(KEY_FILE), path)

    def _secret(self, one: FleetClient) -> OwnerSecret:
        name = f"{bundle(one)}/{OWN_FILE}"
        found = self._staged.found(name)
        if found is not None:
            return OwnerSecret.beside(found)
        return OwnerSecret.beside_or_new(self._staged.new(name))

    # ---- files of owners -------------------------------------------------------------------------

    def _as_expected(self, one: FleetClient, member: Member) -> Member:
        if member.addresses != one.addresses:
            raise IdentityError(
                f"client {one.client}: its member file has the addresses "
                f"{', '.join(member.addresses) or 'none'}; expected those of the fleet's file, "
                f"{', '.join(one.addresses) or 'none'}"
            )
        return member

    def _agreed_by_owners(self, roster: Roster, terms: Terms) -> dict[str, bytes]:
        former, pending = self._former(), self._federation(PROPOSED_FILE)
        members = roster.members.values()
        if former is not None and _is_of(former, members, terms):
            return {ROSTER_FILE: replace(former, roster=roster).text().encode()}
        # An owner's number is revealed once: whoever signed before promises anew.
        told = {None} if former is None else {None, *(it.promise for it in _members_of(former))}
        silent = [it for it in self._fleet.clients if roster.members[it.client].promise in told]
        if silent:
            for one in silent:
                what = f"{MEMBERS}/{one.name}.toml with a new promise (retexo keys member)"
                self._lacks(one, what)
            return {}
        if pending is None or not _is_of(pending, members, terms):
            pending = _proposed(members, terms, former)
        signed = [one for one in self._signatures if one.proposal == pending.proposal]
        agreed = pending.with_signatures(signed)
        files = {PROPOSED_FILE: pending.text().encode()}
        if agreed.signatures.keys() == roster.members.keys():
            _ = agreed.agreement
            return {**files, ROSTER_FILE: agreed.text().encode()}
        for one in self._fleet.clients:
            if one.client not in agreed.signatures:
                self._lacks(one, f"{MEMBERS}/ a signature of proposed.toml (retexo keys sign)")
        return files

    def _lacks(self, one: FleetClient, what: str) -> None:
        self.missing.append(f"client {one.client} ({one.name}): {what}")

    # ---- both ------------------------------------------------------------------------------------

    def _put_supernode(self, one: FleetClient, path: Path) -> None:
        content = path.read_bytes()
        try:
            key = load_ssh_public_key(content)
        except (ValueError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise IdentityError(f"{path}: expected an EC public key as `ssh-keygen` writes it")
        self._staged.put(f"server/supernodes/{one.name}.pub", content)

    def _former(self) -> Federation | None:
        return self._federation(ROSTER_FILE)

    def _federation(self, name: str) -> Federation | None:
        path = self._staged.folder / name
        return Federation.read(path) if path.exists() else None


def _members_of(federation: Federation) -> Iterable[Member]:
    return federation.roster.members.values()


def _is_of(federation: Federation, members: Iterable[Member], terms: Terms) -> bool:
    """Return whether owners agreed on these members, wherever they are, by these terms."""
    told = {one.client: (one.certificate_pem, one.promise) for one in members}
    known = {it.client: (it.certificate_pem, it.promise) for it in _members_of(federation)}
    return told == known and all(
        getattr(federation, name) == value for name, value in terms.for_file.items()
    )


def _proposed(members: Iterable[Member], terms: Terms, former: Federation | None) -> Federation:
    return Federation.proposed(
        Roster.of(members),
        former=former,
        releases=(),
        silent_since={},
        date=datetime.datetime.now(datetime.UTC).date(),
        **terms.for_file,
    )


def _certify_server(staged: Staged, fleet: Fleet) -> None:
    """Have the authority sign a certificate of the server's address where there is none."""
    known = staged.found(f"{SERVER_TLS}/server.pem")
    if known is not None and certifies(known, fleet.server.host):
        return
    work = staged.new(f"{_AUTHORITY}/ca.crt").parent
    for name in ("ca.crt", "ca.key"):
        if (before := staged.folder / _AUTHORITY / name).exists():
            shutil.copy(before, work)
    if known is not None and not (work / "ca.key").exists():
        raise IdentityError(
            f"{staged.folder / _AUTHORITY}/ca.key: missing; expected it back for a certificate of "
            f"{fleet.server.host}"
        )
    script = shipped("server/make-certificates.sh")
    try:
        done = subprocess.run(  # noqa: S603 - our script, and a host's name that was checked
            ["/bin/sh", script, work, fleet.server.host],
            capture_output=True,
            text=True,
            timeout=_CERTIFICATES_S,
            check=False,
            env=dict(os.environ),
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigurationError(f"{script}: did not end; expected certificates") from error
    if done.returncode:
        raise ConfigurationError(f"[server]: {done.stderr.strip() or 'no certificate was made'}")
    shutil.copy(work / "ca.crt", staged.new(f"{SERVER_TLS}/ca.crt"))
    for name in ("server.pem", "server.key"):
        (work / name).rename(staged.new(f"{SERVER_TLS}/{name}"))


def certifies(path: Path, host: str) -> bool:
    """Return whether a certificate is of a server's name or IP address.

    Raises:
        IdentityError: It is no certificate in PEM.
    """
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound) as error:
        raise IdentityError(f"{path}: not a server's certificate in PEM") from error
    try:
        return ipaddress.ip_address(host) in names.get_values_for_type(x509.IPAddress)
    except ValueError:
        return host in names.get_values_for_type(x509.DNSName)


def _made(staged: Staged, name: str) -> bytes:
    """Return the content of a file that is there by now."""
    found = staged.found(name)
    assert found is not None
    return found.read_bytes()
