"""What every channel does: take a block for a peer, and return what has arrived."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from retexo_fl.exchange.block import BlockKey

__all__ = ["BlockKey", "Channel"]


@runtime_checkable
class Channel(Protocol):
    """A store-and-forward transport: no call waits for the peer.

    Delivery is idempotent: a block that was sent under a key is the block of that key.
    """

    def send_block(self, key: BlockKey, frames: Sequence[bytes]) -> int | None:
        """Take over whole frames for ``key.receiver`` and return at once.

        Returns:
            Bytes passed to the transport, 0 for a block that is already there, or None where the
            transport does not count them.

        Raises:
            ChannelError: The block could not be taken over; nothing of it is visible to the peer.
        """
        ...

    def receive_block(self, key: BlockKey) -> bytes | None:
        """Return what has arrived of a block, whole frames from its first on, or None.

        Raises:
            ChannelError: What has arrived cannot be read.
        """
        ...

    def senders(
        self, job: str, layer: int, weights_digest: bytes, *, receiver: int
    ) -> frozenset[int]:
        """Return every client of which something has arrived for ``receiver`` in an exchange.

        A client that finds one here with which it shares no edge can say so.

        Raises:
            ChannelError: What has arrived cannot be listed.
        """
        ...

    def forget_job(self, job: str, client: int) -> None:
        """Drop every block that was addressed to ``client`` in a job; unknown ones are no error."""
        ...
