"""A block in the outbox: a file of whole frames, of which any can be read again."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from retexo_fl.channels.base import BlockKey
from retexo_fl.channels.depot_files import delivered_mark
from retexo_fl.errors import ChannelUnavailable, LocalProtocolError, RemoteProtocolError
from retexo_fl.exchange.frames import HEADER_BYTES, Frame, FrameHeader
from retexo_fl.exchange.link_check import parse_frame
from retexo_fl.exchange.states import FrameKind
from retexo_fl.files import write_whole

_LAST: Final = (FrameKind.DONE, FrameKind.ABORT)


@dataclass(slots=True, kw_only=True)
class OutgoingBlock:
    """One block for a peer.

    Attributes:
        path: Its file.
        starts: Where each frame begins, and at the end where the last one ends.
        is_delivered: The peer has acknowledged it.
        was_offered: It was offered on some link, by this process or maybe by an earlier one.
    """

    path: Path
    starts: tuple[int, ...]
    is_delivered: bool = False
    was_offered: bool = False
    _seed: int | None = field(default=None)

    @property
    def num_frames(self) -> int:
        """Frames of the block."""
        return len(self.starts) - 1

    @property
    def num_bytes(self) -> int:
        """Bytes of all frames."""
        return self.starts[-1]

    @classmethod
    def write(cls, path: Path, frames: Sequence[bytes]) -> Self:
        """Put a new block in the outbox.

        Raises:
            LocalProtocolError: They are not the whole frames of a block.
            OSError: It could not be written; nothing of it is left.
        """
        starts = [0]
        for frame in frames:
            starts.append(starts[-1] + len(frame))
        try:
            kinds = [parse_frame(frame).kind for frame in frames]
        except RemoteProtocolError as error:
            raise LocalProtocolError(f"a block to send: {error}") from error
        if len(kinds) < 2 or kinds[0] is not FrameKind.HELLO or kinds[-1] not in _LAST:
            raise LocalProtocolError("a block to send must begin with HELLO and end with DONE")
        # Whoever has all that it lacks is asked nothing more, and would not make it again.
        write_whole(path, frames, durable=True)
        return cls(path=path, starts=tuple(starts))

    @classmethod
    def found(cls, path: Path) -> Self | None:
        """Take over a block that an earlier process left, or None if its file is not whole.

        Raises:
            OSError: It cannot be read.
        """
        starts, kind = [0], None
        size_bytes = path.stat().st_size
        with path.open("rb") as file:
            while starts[-1] + HEADER_BYTES <= size_bytes:
                file.seek(starts[-1])
                try:
                    header = FrameHeader.parse(file.read(HEADER_BYTES))
                except RemoteProtocolError:
                    return None
                starts.append(starts[-1] + HEADER_BYTES + header.payload_bytes)
                kind = header.kind
        if starts[-1] != size_bytes or kind not in _LAST:
            return None
        is_delivered = delivered_mark(path).exists()
        return cls(path=path, starts=tuple(starts), is_delivered=is_delivered, was_offered=True)

    def read_frame(self, key: BlockKey, sequence: int) -> bytes:
        """Return one whole frame.

        Raises:
            ChannelUnavailable: The file was damaged, or is gone.
            OSError: It cannot be read now.
        """
        try:
            with self.path.open("rb") as file:
                if self._seed is None:
                    self._seed = zlib.crc32(self._read(file.fileno(), 0)[HEADER_BYTES:])
                data = self._read(file.fileno(), sequence)
            payload = memoryview(data)[HEADER_BYTES:]
            if Frame(header=parse_frame(data), payload=payload).has_checksum(self._seed):
                return data
            problem = "its checksum differs"
        except FileNotFoundError:
            problem = "it is gone"
        except RemoteProtocolError as error:
            problem = str(error)
        raise ChannelUnavailable(
            f"outbox file {self.path.name} for client {key.receiver}, frame {sequence}: {problem}"
        )

    def keep_mark(self) -> None:
        """Keep on disk whether the peer has it.

        Raises:
            OSError: The mark cannot be changed.
        """
        if self.is_delivered:
            delivered_mark(self.path).touch()
        else:
            delivered_mark(self.path).unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove file and mark.

        Raises:
            OSError: They cannot be removed.
        """
        # In this order: a mark that was left would speak for the next block of this name.
        delivered_mark(self.path).unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    def _read(self, descriptor: int, sequence: int) -> bytes:
        begin, end = self.starts[sequence], self.starts[sequence + 1]
        return os.pread(descriptor, end - begin, begin)
