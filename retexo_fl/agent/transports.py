"""Transports of the agent's owner, as its settings name them."""

from __future__ import annotations

from retexo_fl.agent.settings import AgentSettings
from retexo_fl.channels.streams import Transport
from retexo_fl.errors import PluginError
from retexo_fl.plugins import load_callable


def own_transports(settings: AgentSettings) -> dict[str, Transport]:
    """Import and make them, by scheme.

    Raises:
        PluginError: One cannot be imported, or is no transport.
    """
    return {scheme: _make(plugin) for scheme, plugin in settings.own_transports.items()}


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
