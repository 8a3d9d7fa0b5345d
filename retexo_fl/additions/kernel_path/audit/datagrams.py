"""How many datagrams an agent reports as sent and received by its socket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Answers leave by another port.
_OTHER_PORT = "af_xdp"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatagramLedger:
    """The totals of the counters of an agent's endpoint.

    Attributes:
        port: UDP port.
        sent: Packets that left by its socket; None where they were not counted.
        received: Packets that its socket brought.
    """

    port: int
    sent: int | None
    received: int


def datagram_ledger(facts: Mapping[str, Any] | None) -> DatagramLedger | None:
    """Return the packets counted in an agent's status; None where it takes no datagrams.

    Args:
        facts: ``datagrams`` of the status.
    """
    if facts is None:
        return None
    counted: Mapping[str, int] = facts["counters"]
    return DatagramLedger(
        port=int(str(facts["address"]).rpartition(":")[2]),
        sent=_sent(facts["kind"], counted),
        received=counted["socket_packets"],
    )


def _sent(kind: str, counted: Mapping[str, int]) -> int | None:
    # One that the kernel clones is counted once, and its copies are counted apart.
    if kind == _OTHER_PORT or counted.get("clone_copies", 0):
        return None
    return counted["packets_sent"] - counted["packets_refused"] + counted["answers_sent"]
