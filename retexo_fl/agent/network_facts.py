"""The network's report as it appears in an agent's status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from retexo_fl.channels.accounts import NetworkReport


def by_peer(report: NetworkReport) -> dict[int, Mapping[str, Any]]:
    """Return, by client index, how each peer is reached, what passed and what was refused.

    ``last_met`` and each channel's ``last_met_unix_s`` are Unix times, None for never;
    ``next_look_s`` is None while no attempt to connect is planned.
    """
    return {
        client: {
            "connected": peer.is_connected,
            "channel": peer.channel,
            "last_met": peer.last_met_unix_s,
            "next_look_s": peer.next_look_s,
            "channels": {name: asdict(counters) for name, counters in peer.channels.items()},
            "refusals": dict(peer.refusals),
            "last_error": peer.last_error,
        }
        for client, peer in report.peers.items()
    }


def strangers(report: NetworkReport) -> dict[str, int]:
    """Return by reason how many connections did not prove to be a client."""
    return dict(report.strangers_refused)
