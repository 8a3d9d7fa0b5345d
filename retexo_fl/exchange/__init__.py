"""The wire protocol of an exchange, sans-IO: vectors to frames and back, every byte checked."""

from retexo_fl.exchange.block import BlockHeader, BlockTraffic
from retexo_fl.exchange.events import (
    NEED_DATA,
    BlockAborted,
    BlockDone,
    Event,
    HelloReceived,
    NeedData,
    RowsReceived,
)
from retexo_fl.exchange.exact_sums import exact_total, sum_shared
from retexo_fl.exchange.fixed_vectors import (
    FIXED,
    FixedVectors,
    fixed_vectors,
    in_compact_form,
    wire_codec,
)
from retexo_fl.exchange.frames import DEFAULT_MAX_FRAME_BYTES, HEADER_BYTES, WIRE_VERSION
from retexo_fl.exchange.sending import SendingSession
from retexo_fl.exchange.session import ReceivingSession
from retexo_fl.exchange.states import FrameKind, State
from retexo_fl.exchange.transfer import BlockAssembler, EncodedBlock, assemble, encode_block
from retexo_fl.exchange.vectors import Vectors, to_csr, to_dense

__all__ = [
    "DEFAULT_MAX_FRAME_BYTES",
    "FIXED",
    "HEADER_BYTES",
    "NEED_DATA",
    "WIRE_VERSION",
    "BlockAborted",
    "BlockAssembler",
    "BlockDone",
    "BlockHeader",
    "BlockTraffic",
    "EncodedBlock",
    "Event",
    "FixedVectors",
    "FrameKind",
    "HelloReceived",
    "NeedData",
    "ReceivingSession",
    "RowsReceived",
    "SendingSession",
    "State",
    "Vectors",
    "assemble",
    "encode_block",
    "exact_total",
    "fixed_vectors",
    "in_compact_form",
    "sum_shared",
    "to_csr",
    "to_dense",
    "wire_codec",
]
