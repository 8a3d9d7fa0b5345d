"""The messages of a link: their bytes, how a stream is cut into them, and what waits to be sent.

Every message has an 8-byte header, little-endian::

    version u8 | kind u8 | 0 u16 | body_bytes u32

and a body by its kind. ``ref`` is the number of an offer, counted from 1 by the end that offers, on
each link anew::

    GREET     "RTXL" | client u32                    the first message of both ends
    OFFER     ref u32 | num_frames u32 | num_bytes u64 | is_eager u8 | key
    WANT      ref u32 | sequence u32                 send the frames from this one on
    HAVE      ref u32                                the acknowledgement
    REFUSE    ref u32 | code u8 | reason UTF-8
    WITHDRAW  ref u32                                the offer is taken back
    FRAME     ref u32 | one whole exchange frame
    ASK       key                                    offer this again, whatever was acknowledged
    ADMITTED  job                                    blocks of this job are welcome now
    PING, PONG                                       nothing
    BYE       reason UTF-8                           the last message

    key       layer u32 | sender u32 | receiver u32 | weights digest 32 | job
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass
from enum import IntEnum, unique
from typing import Final

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.exchange.block import DIGEST_BYTES, MAX_JOB_CHARS, BlockKey
from retexo_fl.exchange.frames import HEADER_BYTES, Buffer
from retexo_fl.exchange.link.reasons import Reason, refused
from retexo_fl.units import counted

LINK_VERSION: Final = 1
MAX_REASON_BYTES: Final = 300
_MAGIC: Final = b"RTXL"
_MAX_COUNT: Final = 2**31 - 1

MESSAGE_HEADER: Final = struct.Struct("<BBHI")
_REF: Final = struct.Struct("<I")
_GREET: Final = struct.Struct("<4sI")
_OFFER: Final = struct.Struct("<IIQB")
_WANT: Final = struct.Struct("<II")
_REFUSE: Final = struct.Struct("<IB")
_KEY: Final = struct.Struct(f"<III{DIGEST_BYTES}s")
MESSAGE_HEADER_BYTES: Final = MESSAGE_HEADER.size
#: The number of an offer, before a message's other fields about it.
REF_BYTES: Final = _REF.size


@unique
class MessageKind(IntEnum):
    """What a message is; the numbers are those on the wire."""

    GREET = 1
    OFFER = 2
    WANT = 3
    HAVE = 4
    REFUSE = 5
    WITHDRAW = 6
    FRAME = 7
    ASK = 8
    ADMITTED = 9
    PING = 10
    PONG = 11
    BYE = 12


@unique
class RefusalCode(IntEnum):
    """What the sender of a refused block should do; the numbers are those on the wire."""

    #: Try this block again, later and later.
    BLOCK = 0
    #: The job is not known: try one of its blocks, later and later.
    JOB = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One block that its sender has for its receiver.

    Attributes:
        key: The block.
        num_frames: Frames of the whole block, at least 1.
        num_bytes: Bytes of all its frames.
        is_eager: Its frames follow at once, without waiting for WANT.
    """

    key: BlockKey
    num_frames: int
    num_bytes: int
    is_eager: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One whole message as it arrived."""

    kind: MessageKind
    body: Buffer


_KEY_LIMITS: Final = (_KEY.size + 1, _KEY.size + MAX_JOB_CHARS)
#: Least and most bytes of a body; FRAME's most depends on the frame limit.
BODY_BYTES: Final[dict[MessageKind, tuple[int, int]]] = {
    MessageKind.GREET: (_GREET.size, _GREET.size),
    MessageKind.OFFER: (_OFFER.size + _KEY_LIMITS[0], _OFFER.size + _KEY_LIMITS[1]),
    MessageKind.WANT: (_WANT.size, _WANT.size),
    MessageKind.HAVE: (_REF.size, _REF.size),
    MessageKind.REFUSE: (_REFUSE.size + 1, _REFUSE.size + MAX_REASON_BYTES),
    MessageKind.WITHDRAW: (_REF.size, _REF.size),
    MessageKind.ASK: _KEY_LIMITS,
    MessageKind.ADMITTED: (1, MAX_JOB_CHARS),
    MessageKind.PING: (0, 0),
    MessageKind.PONG: (0, 0),
    MessageKind.BYE: (1, MAX_REASON_BYTES),
}


def encode(kind: MessageKind, *parts: Buffer) -> bytes:
    """Return a message with the body that ``parts`` make up."""
    size_bytes = sum(map(len, parts))
    return b"".join((MESSAGE_HEADER.pack(LINK_VERSION, kind, 0, size_bytes), *parts))


def encode_greet(client: int) -> bytes:
    """Return GREET."""
    return encode(MessageKind.GREET, _GREET.pack(_MAGIC, client))


def encode_offer(ref: int, offer: Offer) -> bytes:
    """Return OFFER."""
    fields = _OFFER.pack(ref, offer.num_frames, offer.num_bytes, offer.is_eager)
    return encode(MessageKind.OFFER, fields, encode_key(offer.key))


def encode_want(ref: int, sequence: int) -> bytes:
    """Return WANT."""
    return encode(MessageKind.WANT, _WANT.pack(ref, sequence))


def encode_refuse(ref: int, code: RefusalCode, reason: str) -> bytes:
    """Return REFUSE."""
    return encode(MessageKind.REFUSE, _REFUSE.pack(ref, code), encode_line(reason))


def encode_ref(kind: MessageKind, ref: int) -> bytes:
    """Return HAVE or WITHDRAW."""
    return encode(kind, _REF.pack(ref))


def frame_prefix(ref: int, frame_bytes: int) -> bytes:
    """Return what precedes an exchange frame in FRAME; the frame itself is not copied."""
    header = MESSAGE_HEADER.pack(LINK_VERSION, MessageKind.FRAME, 0, _REF.size + frame_bytes)
    return header + _REF.pack(ref)


def encode_key(key: BlockKey) -> bytes:
    """Return a key as ASK and OFFER carry it."""
    fields = _KEY.pack(key.layer, key.sender, key.receiver, key.weights_digest)
    return fields + key.job.encode("ascii")


def encode_line(text: str) -> bytes:
    """Return one printable line of at most :data:`MAX_REASON_BYTES`."""
    line = "".join(letter if letter.isprintable() else " " for letter in text) or "no reason"
    return line.encode("utf-8", "replace")[:MAX_REASON_BYTES].decode("utf-8", "ignore").encode()


def parse_greet(body: Buffer) -> int:
    """Return the client index that GREET names.

    Raises:
        RemoteProtocolError: It is not a greeting of this protocol.
    """
    magic, client = _GREET.unpack(body)
    if magic != _MAGIC or client > _MAX_COUNT:
        raise RemoteProtocolError(f"GREET: begins with {magic!r}, expected {_MAGIC!r}")
    return int(client)


def parse_offer(body: Buffer) -> tuple[int, Offer]:
    """Return number and content of an offer.

    Raises:
        RemoteProtocolError: A field is not one that a block can have.
    """
    ref, num_frames, num_bytes, eager = _OFFER.unpack_from(body)
    if eager > 1 or not 1 <= num_frames <= num_bytes // HEADER_BYTES:
        raise RemoteProtocolError(
            f"OFFER: {counted(num_frames, 'frame')} of "
            f"{counted(num_bytes, 'byte')}, eager {eager}, cannot be"
        )
    offer = Offer(
        key=parse_key(memoryview(body)[_OFFER.size :]),
        num_frames=num_frames,
        num_bytes=num_bytes,
        is_eager=bool(eager),
    )
    return ref, offer


def parse_key(body: Buffer) -> BlockKey:
    """Return a key.

    Raises:
        RemoteProtocolError: A field is not one that a block can have.
    """
    layer, sender, receiver, weights_digest = _KEY.unpack_from(body)
    if max(layer, sender, receiver) > _MAX_COUNT:
        raise RemoteProtocolError(f"key: layer, sender or receiver is over {_MAX_COUNT}")
    job = parse_job(memoryview(body)[_KEY.size :])
    return BlockKey(
        job=job, layer=layer, weights_digest=weights_digest, sender=sender, receiver=receiver
    )


def parse_job(body: Buffer) -> str:
    """Return the name of a job.

    Raises:
        RemoteProtocolError: It is not printable ASCII.
    """
    job = bytes(body).decode("latin-1")
    if not (job.isascii() and job.isprintable()):
        raise RemoteProtocolError(f"job is {job!r}, expected printable ASCII")
    return job


def parse_line(body: Buffer) -> str:
    """Return a reason as one printable line, whatever the peer sent."""
    text = bytes(body).decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def parse_want(body: Buffer) -> tuple[int, int]:
    """Return ref and sequence of WANT."""
    ref, sequence = _WANT.unpack(body)
    return ref, sequence


def parse_ref(body: Buffer) -> tuple[int, memoryview]:
    """Return the number of an offer and what follows it."""
    return _REF.unpack_from(body)[0], memoryview(body)[_REF.size :]


def parse_refuse(body: Buffer) -> tuple[int, RefusalCode, str]:
    """Return ref, code and reason of REFUSE.

    Raises:
        RemoteProtocolError: The code is unknown.
    """
    ref, code = _REFUSE.unpack_from(body)
    if code not in RefusalCode.__members__.values():
        raise RemoteProtocolError(f"REFUSE: code {code} is unknown")
    return ref, RefusalCode(code), parse_line(memoryview(body)[_REFUSE.size :])


# ---- from a stream -------------------------------------------------------------------------------


class MessageReader:
    """Feed :meth:`give`, then call :meth:`next_message` until it returns None.

    Args:
        max_frame_bytes: Payload limit of an exchange frame.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self._frame_limits = (
            REF_BYTES + HEADER_BYTES,
            REF_BYTES + HEADER_BYTES + max_frame_bytes,
        )
        self._given = memoryview(b"")
        self._kept = bytearray(MESSAGE_HEADER_BYTES)
        self._num_kept = 0
        self._kind: MessageKind | None = None

    @property
    def started_bytes(self) -> int:
        """Size of the message that has begun and is not whole, 0 if there is none."""
        if self._kind is not None:
            return MESSAGE_HEADER_BYTES + len(self._kept)
        return MESSAGE_HEADER_BYTES if self._num_kept else 0

    def give(self, data: Buffer) -> None:
        """Add bytes; the previous ones must have been read."""
        assert not self._given, "bytes given before the last ones were read"
        self._given = memoryview(data).cast("B")

    def next_message(self) -> Message | None:
        """Return the next whole message, or None when more bytes are needed.

        Raises:
            RemoteProtocolError: It is not a message of this version, or of a wrong size.
            PeerRefused: It is too large.
        """
        if self._kind is None:
            if not self._is_filled():
                return None
            kind, body_bytes = self._parse(self._kept)
            self._expect(kind, body_bytes)
        if self._kind is None or not self._is_filled():
            return None
        message = Message(kind=self._kind, body=self._kept)
        self._expect(None, MESSAGE_HEADER_BYTES)
        return message

    def _expect(self, kind: MessageKind | None, size_bytes: int) -> None:
        """Begin a new buffer, never a cleared one: frames may still look at the old one."""
        self._kind, self._kept, self._num_kept = kind, bytearray(size_bytes), 0

    def _parse(self, header: Buffer) -> tuple[MessageKind, int]:
        version, kind, nothing, size_bytes = MESSAGE_HEADER.unpack(header)
        if version != LINK_VERSION or nothing:
            raise RemoteProtocolError(f"link version is {version}, expected {LINK_VERSION}")
        if kind not in MessageKind.__members__.values():
            raise RemoteProtocolError(f"message kind {kind} is unknown")
        kind = MessageKind(kind)
        is_frame = kind is MessageKind.FRAME
        least, most = self._frame_limits if is_frame else BODY_BYTES[kind]
        if size_bytes > most:
            raise refused(
                Reason.OVERSIZE,
                f"{kind.name} of {counted(size_bytes, 'byte')}, expected at most {most}",
            )
        if size_bytes < least:
            raise RemoteProtocolError(
                f"{kind.name} of {counted(size_bytes, 'byte')}, expected at least {least}"
            )
        return kind, size_bytes

    def _is_filled(self) -> bool:
        """Move given bytes to the buffer; return whether it is full."""
        piece = self._given[: len(self._kept) - self._num_kept]
        end = self._num_kept + len(piece)
        self._kept[self._num_kept : end] = piece
        self._num_kept = end
        # An empty slice would still hold on to the caller's buffer.
        self._given = self._given[len(piece) :] or memoryview(b"")
        return end == len(self._kept)


# ---- to a stream ---------------------------------------------------------------------------------


class MessageQueue:
    """Holds messages in the order in which they were added; nothing follows the last one."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._partly_sent = memoryview(b"")
        self.is_closed = False
        self.num_bytes = 0

    def __bool__(self) -> bool:
        """Whether something waits."""
        return bool(self._waiting or self._partly_sent)

    def tell(self, message: bytes) -> None:
        """Add a message, or a part of one; nothing once the queue is closed."""
        if not self.is_closed:
            self._waiting.append(message)
            self.num_bytes += len(message)

    def close(self, last_message: bytes) -> None:
        """Add the last message; again is no error."""
        self.tell(last_message)
        self.is_closed = True

    def pull(self, max_bytes: int) -> Buffer:
        """Return the next bytes, at most so many; empty if there are none."""
        if not self._partly_sent and self._waiting:
            self._partly_sent = memoryview(self._next_piece(max_bytes))
        data, self._partly_sent = self._partly_sent[:max_bytes], self._partly_sent[max_bytes:]
        return data

    def _next_piece(self, max_bytes: int) -> bytes:
        """Join small messages, so that each does not become a record and a packet of its own."""
        piece = [self._waiting.popleft()]
        size_bytes = len(piece[0])
        while self._waiting and size_bytes + len(self._waiting[0]) <= max_bytes:
            size_bytes += len(self._waiting[0])
            piece.append(self._waiting.popleft())
        self.num_bytes -= size_bytes
        return b"".join(piece) if len(piece) > 1 else piece[0]
