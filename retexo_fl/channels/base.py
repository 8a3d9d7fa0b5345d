"""What every channel does: take a block for a peer, and return what has arrived."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from retexo_fl.exchange.block import BlockKey, BlockTraffic, Edges
from retexo_fl.exchange.vectors import Vectors

__all__ = ["BlockKey", "Channel", "RowPile"]


class RowPile(Protocol):
    """Rows of one exchange that clients of a process share as they are.

    What was shared once stays, as a block does. Bytes are those that blocks would be.
    """

    def share(
        self,
        rows: Vectors,
        chosen: Mapping[int, np.ndarray],
        edges: Mapping[int, Edges],
        *,
        sender: int,
        codec: str,
    ) -> tuple[int, BlockTraffic] | None:
        """Let peers have some of a client's rows.

        Args:
            rows: (N, width) rows of the client; they may not change from here on.
            chosen: By peer, (n,) int64 which of them it gets.
            edges: By peer, what is between it and the client.
            sender: The client.
            codec: How blocks would be written (:func:`.wire_codec`).

        Returns:
            How many peers did not have them yet, and the bytes for these; None where only blocks
            can say the rows.
        """
        ...

    def shared_with(
        self, receiver: int, edges: Mapping[int, Edges], *, width: int, dtype: str
    ) -> frozenset[int]:
        """Return the senders whose rows are there for a client, and are what it expects.

        Those of others, which list other edges, can be received as blocks that say so.
        """
        ...

    def traffic(self, receiver: int, senders: Iterable[int]) -> BlockTraffic:
        """Return the bytes of what a client gets from some others."""
        ...

    def gathered(self, receiver: int, senders: Sequence[int]) -> Vectors:
        """Return the (n, width) rows that a client gets from one or more others, one by one.

        Returns:
            CSR if the block of each would be decoded as CSR, else dense; in memory of its own.
        """
        ...


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

    def pile(self, job: str, layer: int, weights_digest: bytes) -> RowPile | None:
        """Return where clients of this process share the rows of an exchange as they are.

        What lies there can be received as blocks, too.

        Returns:
            None where only blocks cross.
        """
        ...

    def forget_job(self, job: str, client: int) -> None:
        """Drop every block that was addressed to ``client`` in a job; unknown ones are no error."""
        ...
