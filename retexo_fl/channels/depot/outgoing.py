"""A block in the outbox: a file of whole frames, of which any can be read again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Self

from retexo_fl.channels.base import BlockKey
from retexo_fl.channels.depot.files import delivered_mark
from retexo_fl.errors import ChannelUnavailable, RemoteProtocolError
from retexo_fl.exchange.block_frames import sound_prefix
from retexo_fl.exchange.frames import HEADER_BYTES, FrameHeader, FrameKind
from retexo_fl.files import FileStamp, file_stamp, write_whole


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
    _stamp: FileStamp | None = None

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
        """Put the whole frames of a new block in the outbox.

        Raises:
            OSError: It could not be written; nothing of it is left.
        """
        # Whoever has all that it lacks is asked nothing more, and would not make it again.
        write_whole(path, frames, durable=True)
        starts = tuple(accumulate(map(len, frames), initial=0))
        return cls(path=path, starts=starts, _stamp=file_stamp(path))

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
        if starts[-1] != size_bytes or kind is not FrameKind.DONE:
            return None
        is_delivered = delivered_mark(path).exists()
        return cls(path=path, starts=tuple(starts), is_delivered=is_delivered, was_offered=True)

    def read_frame(self, key: BlockKey, sequence: int) -> bytes:
        """Return one whole frame.

        Raises:
            ChannelUnavailable: The file is damaged or missing.
            OSError: It cannot be read now.
        """
        try:
            # It is as its frames were made, unless another program wrote to it.
            if file_stamp(self.path) != self._stamp:
                self._check(key)
            with self.path.open("rb") as file:
                begin, end = self.starts[sequence], self.starts[sequence + 1]
                return os.pread(file.fileno(), end - begin, begin)
        except FileNotFoundError as error:
            raise self._damaged(key, "the file was removed") from error

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

    def _check(self, key: BlockKey) -> None:
        """Check all frames of a file that this process did not write."""
        stamp = file_stamp(self.path)
        sound = sound_prefix(key, self.path.read_bytes())
        if not sound.is_whole or sound.traffic.wire_bytes != self.num_bytes:
            raise self._damaged(key, f"frame {sound.num_frames} is damaged")
        self._stamp = stamp

    def _damaged(self, key: BlockKey, problem: str) -> ChannelUnavailable:
        return ChannelUnavailable(
            f"outbox file {self.path.name} for client {key.receiver}: {problem}"
        )
