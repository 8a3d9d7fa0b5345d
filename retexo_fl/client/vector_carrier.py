"""The seam between a client and what carries its vectors in another way than as blocks.

It works without any. It knows that of ``retexo_fl/additions/kernel_path`` by this protocol and the
numbers of a carrier's control blocks alone; an agent knows more of it (``agent/carrier_path.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol, TypeAlias

import numpy as np

from retexo_fl.channels.base import BlockKey
from retexo_fl.exchange import BlockHeader, FixedVectors
from retexo_fl.ledger import Traffic

#: Names an exchange: job, stage, digest.
ExchangeId: TypeAlias = tuple[str, int, bytes]

# ---- control blocks: ordinary blocks by which two carriers agree -------------------------------

#: Stage indices of ordinary blocks lie below; a notice's and a grant's are shifted up.
CONTROL_LAYERS: Final = 1 << 16
#: Kind of the first grant; a notice has kind 1.
FIRST_GRANT: Final = 2
#: Grants of one exchange that are numbered; a receiver that loses more has another trouble.
MOST_GRANTS: Final = 64
#: Numbers of a notice or a grant beside one for each vector, and of each stream.
CONTROL_NUMBERS: Final = 16
STREAM_NUMBERS: Final = 3
#: Streams of one sender for one receiver: its own, and one for each set of peers that it serves
#: with one packet.
MOST_STREAMS: Final = 64


def split_layer(layer: int) -> tuple[int, int]:
    """Return the stage that a block belongs to and 0 for vectors, 1 for a notice, else a grant."""
    return layer % CONTROL_LAYERS, layer // CONTROL_LAYERS


def is_control(kind: int) -> bool:
    """Return whether a kind of :func:`split_layer` is a notice or a grant."""
    return 0 < kind < FIRST_GRANT + MOST_GRANTS


def most_control_bytes(vectors: int) -> int:
    """Return the most bytes of a notice or a grant for so many vectors."""
    return 4096 + 8 * (CONTROL_NUMBERS + vectors + STREAM_NUMBERS * MOST_STREAMS) * 2


# ---- what a carrier does ------------------------------------------------------------------------


class VectorCarrier(Protocol):
    """One job's end."""

    def reaches(self, peer: int) -> bool:
        """Return whether vectors for a peer, and from it, go this way."""
        ...

    def refuse_strangers(
        self,
        header_of: Callable[[int], BlockHeader],
        exchange: ExchangeId,
        *,
        known: Collection[int],
    ) -> None:
        """Look at announcements of clients that are no peers.

        Raises:
            PartitionError: One lists an edge which this part lacks.
        """
        ...

    def send(
        self,
        headers: Mapping[int, BlockHeader],
        fixed: FixedVectors,
        *,
        rows: Mapping[int, np.ndarray] | None = None,
    ) -> dict[int, Traffic]:
        """Send vectors to some peers; return the bytes of each, but of those that get a block.

        Args:
            headers: By peer, the header of the block that its vectors would make.
            fixed: Vectors of these and perhaps other peers.
            rows: By peer, [n] int64 the inner node whose row each vector is, -1 where it is none.
        """
        ...

    def expect(
        self,
        headers: Mapping[int, BlockHeader],
        targets: Mapping[int, np.ndarray] | None,
        *,
        all_needed: bool | None = None,
    ) -> None:
        """Take vectors from some peers from now on.

        Args:
            headers: By peer, the header of the block that its vectors would make.
            targets: By peer, [n] int64 what each vector is summed into, -1 for nothing.
            all_needed: Of this exchange; None: as of the job.
        """
        ...

    def arrived(self, exchange: ExchangeId) -> list[dict[int, tuple[np.ndarray, Traffic]]]:
        """Return, by peer, the vectors that are there, and their bytes; those summed in one dict.

        Raises:
            RetexoError: What went wrong with the exchange.
        """
        ...

    def keep(self, exchange: ExchangeId, vectors: Mapping[int, np.ndarray]) -> None:
        """Put vectors that were summed together on disk, by peer: all of them or none.

        Raises:
            CheckpointError: They could not be written.
        """
        ...

    def kept(self, exchange: ExchangeId) -> dict[int, np.ndarray]:
        """Return, by peer, what was put on disk, also by an earlier process.

        Raises:
            CheckpointError: A file is damaged.
        """
        ...

    def carries(self, key: BlockKey) -> bool:
        """Return whether a peer's vectors come this way, and not as a block."""
        ...

    def untaken(self, exchanges: set[ExchangeId]) -> list[int]:
        """Return the peers that have not taken all that was sent in some exchanges."""
        ...

    def drop(self, exchanges: set[ExchangeId]) -> set[BlockKey]:
        """Forget exchanges; return the mailboxes of their control blocks."""
        ...
