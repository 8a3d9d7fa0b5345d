"""The wire protocol of an exchange, sans-IO: vectors to frames and back, every byte checked."""

from retexo_fl.exchange.block import BlockHeader, BlockTraffic, Edges
from retexo_fl.exchange.block_frames import (
    BlockProgress,
    EncodedBlock,
    check_frame,
    decode_block,
    encode_block,
)
from retexo_fl.exchange.exact_sums import exact_total, sum_shared
from retexo_fl.exchange.fixed_vectors import (
    BYTE_BITS,
    FIXED,
    FIXED8,
    FixedVectors,
    fixed_vectors,
    grid_bits,
    in_compact_form,
    wire_codec,
)
from retexo_fl.exchange.frames import (
    DEFAULT_MAX_FRAME_BYTES,
    HEADER_BYTES,
    WIRE_VERSION,
    FrameKind,
)
from retexo_fl.exchange.vectors import Vectors, to_csr, to_dense

__all__ = [
    "BYTE_BITS",
    "DEFAULT_MAX_FRAME_BYTES",
    "FIXED",
    "FIXED8",
    "HEADER_BYTES",
    "WIRE_VERSION",
    "BlockHeader",
    "BlockProgress",
    "BlockTraffic",
    "Edges",
    "EncodedBlock",
    "FixedVectors",
    "FrameKind",
    "Vectors",
    "check_frame",
    "decode_block",
    "encode_block",
    "exact_total",
    "fixed_vectors",
    "grid_bits",
    "in_compact_form",
    "sum_shared",
    "to_csr",
    "to_dense",
    "wire_codec",
]
