"""Which blocks may arrive: the agent has the plan, the depot asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from retexo_fl.channels.base import BlockKey
from retexo_fl.exchange import BlockHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What an arriving block must be.

    Attributes:
        header: Exactly what its HELLO must contain; None where that is not known yet, as for the
            exchanges inside a round: it is then compared when the block is decoded.
        max_bytes: Of the whole stream, frame headers included.
    """

    header: BlockHeader | None
    max_bytes: int


class Gate(Protocol):
    """One job's answer to what peers offer."""

    def admission(self, key: BlockKey) -> Admission:
        """Say what the block must be; called in the network's thread, must not block.

        Raises:
            PeerRefused: The block may not come; the sentence names the peer and why.
            RemoteProtocolError: Likewise.
        """
        ...
