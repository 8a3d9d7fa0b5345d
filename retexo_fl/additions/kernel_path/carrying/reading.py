"""Reading a whole block out of the depot."""

from __future__ import annotations

import numpy as np

from retexo_fl.channels.depot import BlockDepot
from retexo_fl.exchange import BlockHeader, decode_block, to_dense


def read_block(depot: BlockDepot, expected: BlockHeader) -> np.ndarray | None:
    """Return the values of a block that has arrived whole; else it is asked for, and None.

    Raises:
        RemoteProtocolError: It is not what was expected.
        PartitionError: The sender lists other edges than this part.
    """
    decoded = decode_block(expected, depot.receive_block(expected.key) or b"")
    return None if decoded is None else to_dense(decoded[0])
