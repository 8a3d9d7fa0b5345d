"""Reading a whole block out of the depot."""

from __future__ import annotations

import numpy as np

from retexo_fl.agent.blocks import decode_block
from retexo_fl.agent.vectors.control import key_of
from retexo_fl.channels.depot import BlockDepot
from retexo_fl.exchange import BlockHeader, to_dense


def read_block(depot: BlockDepot, expected: BlockHeader) -> np.ndarray | None:
    """Return the values of a block that has arrived whole; else it is asked for, and None.

    Raises:
        RemoteProtocolError: It is not what was expected.
        PartitionError: The sender lists other edges than this part.
    """
    stream = depot.receive_block(key_of(expected))
    vectors = decode_block(expected, stream)[0] if stream else None
    return None if vectors is None else to_dense(vectors)
