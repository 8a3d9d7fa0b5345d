"""A client: its configuration, part, state, keys and roster, and whether its agent runs."""

from __future__ import annotations

import datetime
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from retexo_fl.addition import ADDITIONS
from retexo_fl.agent.agreed import OwnersFile
from retexo_fl.agent.remote import ask_agent
from retexo_fl.agent.settings import AgentSettings
from retexo_fl.channels.addresses import DATAGRAM_SCHEMES, parse_tcp, scheme_of, why_not_bound
from retexo_fl.channels.identity import Identity, fingerprint, parse_certificate
from retexo_fl.channels.roster import Roster
from retexo_fl.doctor.finding import Finding, absent, bad, doubtful, good
from retexo_fl.doctor.machine import examine_disk
from retexo_fl.errors import AgentUnreachable, IdentityError, InputError, RetexoError
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.graph.parts.storage import open_partition
from retexo_fl.plugins import is_own_scheme
from retexo_fl.units import clients_named, format_counted

#: A certificate that ends sooner than this should be made again.
_SOON = datetime.timedelta(days=60)


def open_part(settings: AgentSettings) -> tuple[GraphPartition | None, Finding]:
    """Open the client's part, and report what it is or why it cannot be used."""
    try:
        part = open_partition(Path(settings.partition))
    except InputError as error:
        return None, bad("part", str(error), "make it with `retexo partition`, and copy it here")
    seen = (
        f"client {part.client} of {part.num_clients}, "
        f"{format_counted(part.num_inner, 'node')}, {format_counted(len(part.peers), 'peer')}"
    )
    train, least = int(part.train_mask.sum()), settings.least_train_nodes
    if 0 < train < least:
        told = f"{seen}; {format_counted(train, 'train node')}, and least-train-nodes is {least}"
        advice = f"trainings are refused; least-train-nodes = {train} in agent.toml allows them"
        return part, doubtful("part", told, f"{advice} (docs/security.md: what that reveals)")
    return part, good("part", seen)


def examine_folders(settings: AgentSettings) -> Iterator[Finding]:
    """Look at the folders that the agent writes to."""
    yield examine_disk("state", Path(settings.state))
    if settings.predictions:
        yield examine_disk("predictions", Path(settings.predictions))


def load_identity(settings: AgentSettings, client: int | None) -> tuple[Identity | None, Finding]:
    """Load key and certificate, and report whose they are or why they cannot be used.

    Args:
        settings: Names their files.
        client: Whose part this is; None if that is not known.
    """
    try:
        identity = Identity.load(Path(settings.key), Path(settings.certificate))
    except IdentityError as error:
        return None, bad("key", str(error), "make one: retexo keys new")
    if client is not None and identity.client != client:
        advice = "use the key of the client that owns the part"
        return identity, bad("key", f"of client {identity.client}; the part is {client}'s", advice)
    return identity, _judge_dates(identity)


def _judge_dates(identity: Identity) -> Finding:
    certificate = parse_certificate(identity.certificate_pem, str(identity.certificate_path))
    now = datetime.datetime.now(datetime.UTC)
    if now < certificate.not_valid_before_utc:
        begins = f"{certificate.not_valid_before_utc:%Y-%m-%d}"
        return bad("key", f"valid from {begins} on", "check this machine's clock")
    ends = f"{certificate.not_valid_after_utc:%Y-%m-%d}"
    if now > certificate.not_valid_after_utc:
        return bad("key", f"ended on {ends}", "make another, and give peers its member.toml")
    seen = f"client {identity.client}, {fingerprint(identity.certificate_pem)[:19]}..."
    if now + _SOON > certificate.not_valid_after_utc:
        return doubtful("key", f"{seen}, ends on {ends}", "make another in time")
    return good("key", f"{seen}, until {ends}")


def load_roster(
    settings: AgentSettings, identity: Identity | None, part: GraphPartition | None
) -> tuple[Roster | None, Finding]:
    """Read the roster, and compare it with the client's own certificate and its part's peers."""
    if not settings.roster:
        return None, absent("roster", "none; the server sends the entries of peers (introductions)")
    try:
        roster = Roster.read(Path(settings.roster))
    except IdentityError as error:
        return None, bad("roster", str(error), "make the roster again: retexo keys roster")
    return roster, _judge_roster(roster, identity, part, settings.listen)


def _judge_roster(
    roster: Roster,
    identity: Identity | None,
    part: GraphPartition | None,
    listen: tuple[str, ...],
) -> Finding:
    seen = format_counted(len(roster.members), "client")
    if identity is not None:
        own = roster.members.get(identity.client)
        if own is None or fingerprint(own.certificate_pem) != fingerprint(identity.certificate_pem):
            what = "lacks this client" if own is None else "has another certificate of this client"
            return bad("roster", f"{seen}, {what}", "add its member.toml on every machine")
    lacking = [peer for peer in part.peers if peer not in roster.members] if part else []
    if lacking:
        names = ", ".join(map(str, lacking[:10]))
        return bad("roster", f"{seen}, without peers {names}", "add their member.toml")
    if identity is not None:
        # Hosts and ports may differ, behind a router; what takes the bytes may not.
        heard = {_kind_of(address) for address in listen}
        told = roster.members[identity.client].addresses
        unheard = [address for address in told if _kind_of(address) not in {*heard, "relay"}]
        if unheard:
            has = ", ".join(listen) or "no address"
            seen += f"; peers are told {', '.join(unheard)}, where listen has {has}"
            advice = "add such an address to listen, or take it out of this client's member.toml"
            return doubtful("roster", seen, advice)
    return good("roster", seen)


def _kind_of(address: str) -> str:
    """Return an address's scheme, one for all schemes of datagrams."""
    scheme = address.partition(":")[0]
    return DATAGRAM_SCHEMES[0] if scheme in DATAGRAM_SCHEMES else scheme


def examine_agreement(settings: AgentSettings, identity: Identity, roster: Roster) -> Finding:
    """Look whether the owners agreed on masked sums, and this client may answer by that."""
    if not any(member.promise for member in roster.members.values()):
        if settings.require_secure_aggregation:
            advice = "agree with the other owners: retexo keys member (docs/keys.md)"
            return bad("agreement", "none, and require-secure-aggregation = true", advice)
        return absent("agreement", "none; runs with masks are refused")
    try:
        agreement = OwnersFile(settings, identity).checked().agreement
    except RetexoError as error:
        advice = "promise and sign anew: retexo keys member, roster --former, sign"
        return bad("agreement", str(error), advice)
    cohort = agreement.cohort_of(identity.client)
    others = clients_named([client for client in cohort.members if client != identity.client])
    uses = ", ".join(sorted(cohort.uses)) or "nothing"
    return good("agreement", f"{agreement.digest.hex()[:8]}..., {uses} with {others}")


def ask_status(settings: AgentSettings) -> tuple[Mapping[str, Any] | None, Finding]:
    """Ask the agent how it is, if it runs."""
    try:
        status = ask_agent(Path(settings.socket), "status")
    except AgentUnreachable:
        folder = Path(settings.socket).parent
        if folder.is_dir() and not os.access(folder, os.W_OK):
            advice = f"make {folder} writable for this user"
            return None, bad("agent", f"not running; {folder} cannot be written to", advice)
        advice = "start it: systemctl start retexo-agent, or retexo agent run"
        return None, doubtful("agent", "not running", advice)
    except RetexoError as error:
        return None, bad("agent", str(error), "restart it: systemctl restart retexo-agent")
    said, link = f"runs, version {status['version']}", status.get("superlink")
    if not link:
        return status, good("agent", said)
    said += f"; SuperLink {link['address']}: {link['state']}"
    if link["state"] != "connected":
        reason = f" ({link['reason']})" if link.get("reason") else ""
        return status, bad("agent", said + reason, "see the agent's log, lines superlink")
    return status, good("agent", said)


def examine_ports(settings: AgentSettings, *, running: bool) -> Iterator[Finding]:
    """Look at the addresses that the agent listens at.

    Args:
        settings: Names them.
        running: The agent runs, and holds them.
    """
    if not settings.listen:
        yield absent("listen", "no address; this client connects to its peers")
    for address in settings.listen:
        if running:
            yield good(address, "held by the agent")
        elif is_own_scheme(address.partition(":")[0]):
            yield absent(address, "not checked: a transport of your own")
        else:
            yield _bindable(address)


def _bindable(address: str) -> Finding:
    try:
        for addition in ADDITIONS:
            if addition.serves(address):
                examination = addition.module("examination", f"listen: {address}")
                finding: Finding = examination.judge_listening(address)
                return finding
        match scheme_of(address):
            case "tcp":
                pass
            case "relay":
                return bad(address, "not an address to listen at", "listen at tcp://0.0.0.0:PORT")
            case other:
                return absent(address, f"not checked: the doctor does not know how {other} listens")
        wanted = parse_tcp(address, least_port=0)
        family = socket.AF_INET6 if ":" in wanted.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((wanted.host, wanted.port))
    except IdentityError as error:
        return bad("listen", str(error), "write it as tcp://0.0.0.0:7411, or bluetooth:")
    except OSError as error:
        seen, _, advice = why_not_bound(error).partition("; ")
        return bad(address, seen, advice or "choose another address")
    return good(address, "free")
