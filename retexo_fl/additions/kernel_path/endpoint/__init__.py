"""Fixed-point vectors as UDP datagrams, added up where they arrive."""

from retexo_fl.additions.kernel_path.endpoint.broadcasting import BroadcastKind
from retexo_fl.additions.kernel_path.endpoint.endpoint import DEFAULT_MEMORY_BYTES, DatagramEndpoint
from retexo_fl.additions.kernel_path.endpoint.receiver import Receiver, UserSpaceReceiver
from retexo_fl.additions.kernel_path.endpoint.records import (
    Destination,
    DestinationState,
    ExchangeProgress,
    IncomingStream,
    SendState,
    StreamGrant,
    StreamProgress,
)

__all__ = [
    "DEFAULT_MEMORY_BYTES",
    "BroadcastKind",
    "DatagramEndpoint",
    "Destination",
    "DestinationState",
    "ExchangeProgress",
    "IncomingStream",
    "Receiver",
    "SendState",
    "StreamGrant",
    "StreamProgress",
    "UserSpaceReceiver",
]
