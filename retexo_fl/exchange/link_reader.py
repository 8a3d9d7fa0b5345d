"""Cuts the bytes of a link into messages and owns the bytes of at most one."""

from __future__ import annotations

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.exchange.frames import HEADER_BYTES, Buffer
from retexo_fl.exchange.link_messages import (
    BODY_BYTES,
    LINK_VERSION,
    MESSAGE_HEADER,
    MESSAGE_HEADER_BYTES,
    REF_BYTES,
    Message,
    MessageKind,
)
from retexo_fl.exchange.link_reasons import Reason, refused
from retexo_fl.units import counted


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
