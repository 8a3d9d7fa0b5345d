"""One examination: the machine, the way to the server, and, if it is a client's, the client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from retexo_fl.addition import ADDITIONS
from retexo_fl.agent.settings import AgentSettings, read_settings
from retexo_fl.doctor.client import (
    ask_status,
    examine_agreement,
    examine_folders,
    examine_ports,
    load_identity,
    load_roster,
    open_part,
)
from retexo_fl.doctor.finding import Finding, absent, bad, good
from retexo_fl.doctor.machine import examine_machine
from retexo_fl.doctor.peers import examine_peers
from retexo_fl.doctor.superlink import examine_superlink
from retexo_fl.errors import ConfigurationError
from retexo_fl.server_address import ServerAddress


def examine(
    config: Path | None, superlink: str, root_certificates: Path | None
) -> Iterator[Finding]:
    """Look at one thing after the other.

    Args:
        config: The ``agent.toml`` of a client; None on a machine without an agent.
        superlink: HOST:PORT of the server; empty: from ``config``, if it is set there.
        root_certificates: The server's CA.

    Raises:
        ConfigurationError: ``superlink`` is no HOST:PORT.
    """
    yield from examine_machine()
    settings: AgentSettings | None = None
    if config is not None:
        try:
            settings = read_settings(config)
        except ConfigurationError as error:
            yield bad("configuration", str(error), "see docs/deployment.md for an agent.toml")
        else:
            yield good("configuration", str(config))
    if settings is not None and not superlink:
        superlink, own_roots = _server_of(settings)
        root_certificates = root_certificates or own_roots
    yield from examine_superlink(superlink, root_certificates)
    if settings is None:
        yield from _examine_additions((), ())
    else:
        yield from _examine_client(settings)


def _server_of(settings: AgentSettings) -> tuple[str, Path | None]:
    """Return the SuperLink's address in an agent's settings, empty if none is, and its CA."""
    if not settings.is_own_node or settings.without_tls:
        return settings.superlink, None
    roots = Path(settings.root_certificates) if settings.root_certificates else None
    return f"https://{ServerAddress.parse(settings.superlink, 'superlink')}", roots


def _examine_client(settings: AgentSettings) -> Iterator[Finding]:
    part, finding = open_part(settings)
    yield finding
    yield from examine_folders(settings)
    identity, finding = load_identity(settings, part.client if part else None)
    yield finding
    roster, finding = load_roster(settings, identity, part)
    yield finding
    if identity is not None and roster is not None:
        yield examine_agreement(settings, identity, roster)
    status, finding = ask_status(settings)
    yield finding
    others = roster.members.values() if roster is not None else ()
    known = [address for member in others for address in member.addresses]
    yield from _examine_additions(settings.listen, known)
    yield from examine_ports(settings, running=status is not None)
    if identity is not None and roster is not None and part is not None:
        yield from examine_peers(identity, roster, part.peers, settings.listen)


def _examine_additions(listen: Sequence[str], known: Sequence[str]) -> Iterator[Finding]:
    """Look at what each addition takes of this machine.

    Args:
        listen: Addresses that the client listens at.
        known: Addresses in its roster.
    """
    for addition in ADDITIONS:
        if not addition.is_here:
            yield absent(addition.title.lower(), "not in this installation")
        elif addition.schemes:
            examination = addition.module("examination", addition.title)
            yield from examination.examine(listen, known)
