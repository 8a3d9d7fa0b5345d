"""Transports of the agent's owner, as its settings name them, and of additions."""

from __future__ import annotations

from collections.abc import Iterable

from retexo_fl.addition import BLUETOOTH
from retexo_fl.agent.settings import AgentSettings
from retexo_fl.channels.addresses import DATAGRAM_SCHEMES, parse_datagram, scheme_of
from retexo_fl.channels.streams import Transport
from retexo_fl.errors import PluginError
from retexo_fl.plugins import load_callable


def own_transports(settings: AgentSettings) -> dict[str, Transport]:
    """Import and make them, by scheme.

    Raises:
        PluginError: One cannot be imported, or is no transport.
    """
    return {scheme: _make(plugin) for scheme, plugin in settings.own_transports.items()}


def added_transports(settings: AgentSettings) -> dict[str, Transport]:
    """Make those of additions, by scheme: peers may have addresses of theirs.

    Raises:
        ConfigurationError: ``listen`` demands what this machine cannot give.
        IdentityError: An address of ``listen`` is none.
    """
    if not BLUETOOTH.is_here:
        return {}
    return {"bluetooth": BLUETOOTH.module("agent", "listen").bluetooth_transport(settings)}


def reachable_at(listen: Iterable[str]) -> tuple[str, ...]:
    """Return addresses for the rosters of others, of those at which an agent listens."""
    found: list[str] = []
    for address in listen:
        if BLUETOOTH.serves(address):
            found += BLUETOOTH.module("agent", f"listen: {address}").reachable_at(address)
        else:
            is_datagrams = scheme_of(address) in DATAGRAM_SCHEMES
            found.append(str(parse_datagram(address)) if is_datagrams else address)
    return tuple(found)


def _make(plugin: str) -> Transport:
    made = load_callable("transport", plugin)()
    for name in ("connect", "listen"):
        if not callable(getattr(made, name, None)):
            raise PluginError(
                f"transport {plugin!r}: returned {type(made).__name__} without {name}; expected a "
                "Transport (retexo_fl/channels/streams.py)"
            )
    transport: Transport = made
    return transport
