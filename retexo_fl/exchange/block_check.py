"""Frames of one block in their order: what each must be, and what has come so far.

Everything but the rows is checked here: they are decoded when they are used
(:mod:`.block_decoding`). Pure functions: what a frame adds is a new :class:`BlockProgress`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from retexo_fl.errors import PartitionError, RemoteProtocolError
from retexo_fl.exchange.block import (
    BlockHeader,
    BlockKey,
    BlockTraffic,
    check_same_block,
    parse_hello,
)
from retexo_fl.exchange.frames import (
    Buffer,
    Frame,
    FrameHeader,
    FrameKind,
    parse_frame,
    split_frames,
)
from retexo_fl.exchange.row_decoding import parse_coding

_KEY_FIELDS: Final = ("job", "layer", "weights_digest", "sender", "receiver")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockProgress:
    """How much of a block has come.

    Attributes:
        num_frames: Frames that have come, which is the sequence of the next one.
        num_rows: Vectors in them.
        traffic: Their bytes.
        is_whole: DONE was the last of them.
        block: From HELLO, None before it.
        seed: CRC-32 of HELLO's payload, from which the checksums of the others start.
    """

    num_frames: int = 0
    num_rows: int = 0
    traffic: BlockTraffic = field(default_factory=BlockTraffic)
    is_whole: bool = False
    block: BlockHeader | None = None
    seed: int = 0


#: Before the first frame.
NOTHING: Final = BlockProgress()


def check_frame(
    data: Buffer, progress: BlockProgress, key: BlockKey, expected: BlockHeader | None = None
) -> BlockProgress:
    """Check bytes that must be the next whole frame of a block, its checksum included.

    Args:
        data: Whole frame.
        progress: What came before it.
        key: The block.
        expected: What its HELLO must contain, None while that is unknown.

    Raises:
        RemoteProtocolError: They are not.
        PartitionError: HELLO lists other edges than this end does.
    """
    try:
        frame = parse_frame(data)
    except RemoteProtocolError as error:
        raise located(error, progress, key) from error
    if not frame.has_checksum(progress.seed):
        problem = RemoteProtocolError(
            "checksum differs: the frame was altered, or is of another block"
        )
        raise located(problem, progress, key)
    return follow(frame, progress, key, expected)


def follow(
    frame: Frame, progress: BlockProgress, key: BlockKey, expected: BlockHeader | None = None
) -> BlockProgress:
    """Check that a frame comes next in a block, without its checksum; see :func:`check_frame`.

    Raises:
        RemoteProtocolError: It does not.
        PartitionError: HELLO lists other edges than this end does.
    """
    try:
        return _follow(frame, progress, key, expected)
    except RemoteProtocolError as error:
        raise located(error, progress, key) from error


def sound_prefix(key: BlockKey, stream: Buffer) -> BlockProgress:
    """Return what a stored block begins with that is as its sender made it."""
    progress = NOTHING
    try:
        for frame in split_frames(stream):
            progress = check_frame(frame.data, progress, key)
    except (RemoteProtocolError, PartitionError):
        pass
    return progress


def located(
    error: RemoteProtocolError, progress: BlockProgress, key: BlockKey
) -> RemoteProtocolError:
    """Return an error that names block and frame."""
    return RemoteProtocolError(
        f"block of layer {key.layer} from client {key.sender} to {key.receiver}, "
        f"frame {progress.num_frames}: {error}"
    )


def _follow(
    frame: Frame, progress: BlockProgress, key: BlockKey, expected: BlockHeader | None
) -> BlockProgress:
    header = frame.header
    _demand("sequence", header.sequence, progress.num_frames)
    if progress.is_whole:
        raise RemoteProtocolError(f"{header.kind.name} after DONE")
    if (header.kind is FrameKind.HELLO) != (progress.block is None):
        raise RemoteProtocolError(f"{header.kind.name} as frame {header.sequence}")
    if header.kind is not FrameKind.ROWS:
        _demand("positions", header.positions, 0)
        _demand("values", header.values, 0)
    if progress.block is None:
        _demand("num_rows", header.num_rows, 0)
        block = _read_hello(frame, key, expected)
        return BlockProgress(
            num_frames=1, traffic=block.traffic_of(header), block=block, seed=block.seed()
        )
    if header.kind is FrameKind.ROWS:
        _check_rows(header, progress.block, progress.block.num_vectors - progress.num_rows)
    else:
        _demand("rows before DONE", progress.num_rows, progress.block.num_vectors)
        _demand("num_rows", header.num_rows, progress.block.num_vectors)
        _demand("payload_bytes", header.payload_bytes, 0)
    is_rows = header.kind is FrameKind.ROWS
    return BlockProgress(
        num_frames=progress.num_frames + 1,
        num_rows=progress.num_rows + (header.num_rows if is_rows else 0),
        traffic=progress.traffic + progress.block.traffic_of(header),
        is_whole=not is_rows,
        block=progress.block,
        seed=progress.seed,
    )


def _read_hello(frame: Frame, key: BlockKey, expected: BlockHeader | None) -> BlockHeader:
    block = parse_hello(bytes(frame.payload))
    if expected is not None:
        check_same_block(block, expected)
    for name in _KEY_FIELDS:
        if getattr(block, name) != getattr(key, name):
            raise RemoteProtocolError(f"HELLO: {name} is not that of the block's key")
    return block


def _check_rows(header: FrameHeader, block: BlockHeader, missing: int) -> None:
    if not missing:
        raise RemoteProtocolError("ROWS after the last vector, expected DONE")
    _demand("num_rows", header.num_rows, 1, missing)
    parse_coding(header.positions, header.values)
    _demand("payload_bytes", header.payload_bytes, 1, header.num_rows * block.row_bytes)


def _demand(name: str, value: int, least: int, most: int | None = None) -> None:
    most = least if most is None else most
    if not least <= value <= most:
        expected = f"{least}" if least == most else f"{least} to {most}"
        raise RemoteProtocolError(f"{name} is {value}, expected {expected}")
