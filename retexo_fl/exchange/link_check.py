"""Every frame of a block is checked when it arrives, before it is kept."""

from __future__ import annotations

from collections.abc import Iterator

from retexo_fl.errors import PartitionError, RemoteProtocolError
from retexo_fl.exchange.block import BlockHeader, parse_hello
from retexo_fl.exchange.events import BlockAborted, BlockDone, NeedData
from retexo_fl.exchange.frames import HEADER_BYTES, Buffer, Frame, FrameHeader
from retexo_fl.exchange.link_key import BlockKey
from retexo_fl.exchange.session import ReceivingSession
from retexo_fl.exchange.states import FrameKind
from retexo_fl.units import counted

_KEY_FIELDS = ("job", "layer", "weights_digest", "sender", "receiver")


class BlockCheck:
    """Takes the frames of one block in order and says which one ends it.

    Args:
        key: The block.
        header: What its HELLO must say and its rows must be; None while this end does not know:
            then sequence, checksum and the key alone are checked, and the rest when the block is
            decoded.
    """

    def __init__(self, key: BlockKey, header: BlockHeader | None = None) -> None:
        self._key = key
        self._session = None if header is None else ReceivingSession(header)
        self._seed = 0
        self._next_sequence = 0

    def accept(self, frame: Buffer) -> bool:
        """Check the next whole frame; return whether it is the block's last.

        Raises:
            RemoteProtocolError: It is not the next frame of this block.
            PartitionError: HELLO lists other edges than this end does.
        """
        if self._session is None:
            return self._accept_unknown(frame)
        self._session.receive_data(frame)
        is_last = False
        while not isinstance(event := self._session.next_event(), NeedData):
            is_last = isinstance(event, BlockDone | BlockAborted)
        return is_last

    def _accept_unknown(self, frame: Buffer) -> bool:
        header = parse_frame(frame)
        if header.sequence != self._next_sequence:
            raise RemoteProtocolError(
                f"sequence is {header.sequence}, expected {self._next_sequence}"
            )
        if (header.kind is FrameKind.HELLO) != (self._next_sequence == 0):
            raise RemoteProtocolError(f"{header.kind.name} as frame {header.sequence}")
        payload = memoryview(frame)[HEADER_BYTES:]
        if not Frame(header=header, payload=payload).has_checksum(self._seed):
            raise RemoteProtocolError(
                "checksum differs: the frame was altered, or is of another block"
            )
        if header.kind is FrameKind.HELLO:
            self._seed = self._seed_of(bytes(payload))
        self._next_sequence += 1
        return header.kind in (FrameKind.DONE, FrameKind.ABORT)

    def _seed_of(self, payload: bytes) -> int:
        hello = parse_hello(payload)
        for name in _KEY_FIELDS:
            if getattr(hello, name) != getattr(self._key, name):
                raise RemoteProtocolError(f"HELLO: {name} is not that of the block's key")
        return hello.seed()


def parse_frame(frame: Buffer) -> FrameHeader:
    """Return the header of bytes that must be one whole frame.

    Raises:
        RemoteProtocolError: They are not.
    """
    if len(frame) < HEADER_BYTES:
        raise RemoteProtocolError(
            f"a frame has {counted(len(frame), 'byte')}, expected {HEADER_BYTES} or more"
        )
    header = FrameHeader.parse(memoryview(frame)[:HEADER_BYTES])
    if HEADER_BYTES + header.payload_bytes != len(frame):
        raise RemoteProtocolError(
            f"a frame has {counted(len(frame), 'byte')}, expected "
            f"{HEADER_BYTES + header.payload_bytes}"
        )
    return header


def cut_frames(stream: Buffer) -> Iterator[memoryview]:
    """Yield the whole frames that a stream begins with, unchecked; stops at what is none."""
    view = memoryview(stream)
    while len(view) >= HEADER_BYTES:
        try:
            header = FrameHeader.parse(view[:HEADER_BYTES])
        except RemoteProtocolError:
            return
        size_bytes = HEADER_BYTES + header.payload_bytes
        if len(view) < size_bytes:
            return
        yield view[:size_bytes]
        view = view[size_bytes:]


def sound_prefix(key: BlockKey, stream: Buffer) -> tuple[int, int, bool]:
    """Return bytes and number of the sound frames that a stored block begins with; whole or not."""
    check, num_bytes, num_frames = BlockCheck(key), 0, 0
    for frame in cut_frames(stream):
        try:
            is_last = check.accept(frame)
        except (RemoteProtocolError, PartitionError):
            break
        num_bytes += len(frame)
        num_frames += 1
        if is_last:
            return num_bytes, num_frames, True
    return num_bytes, num_frames, False
