"""What leaves a depot: a file of whole frames for each block, the outbox, and how long it is owed.

A block is written once, and any of its frames can be read again until the job is forgotten. The
outbox knows which blocks no peer has acknowledged, :class:`DeliveryTimes` for how long. These two
are not thread-safe.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, Self

from retexo_fl.channels.base import BlockKey
from retexo_fl.channels.depot.files import delivered_mark
from retexo_fl.errors import ChannelUnavailable, RemoteProtocolError
from retexo_fl.exchange.block_frames import sound_prefix
from retexo_fl.exchange.frames import HEADER_BYTES, FrameHeader, FrameKind
from retexo_fl.exchange.link.messages import Offer
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
    def restored(cls, path: Path) -> Self | None:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Owed:
    """What one peer has not acknowledged yet."""

    num_blocks: int
    num_bytes: int


class Outbox:
    """Blocks by key, and by peer those that it has not acknowledged, oldest first."""

    def __init__(self) -> None:
        self.blocks: dict[BlockKey, OutgoingBlock] = {}
        self._owed: dict[int, dict[BlockKey, OutgoingBlock]] = defaultdict(dict)

    def add(self, key: BlockKey, block: OutgoingBlock) -> None:
        """Take a block."""
        self.blocks[key] = block
        if not block.is_delivered:
            self._owed[key.receiver][key] = block

    def pop(self, key: BlockKey) -> OutgoingBlock | None:
        """Take out a block and return it; None if it is not here."""
        self._owed[key.receiver].pop(key, None)
        return self.blocks.pop(key, None)

    def mark(self, key: BlockKey, *, delivered: bool) -> bool:
        """Note whether the peer has a block; return whether that is new."""
        block = self.blocks.get(key)
        if block is None or block.is_delivered == delivered:
            return False
        block.is_delivered = delivered
        if delivered:
            self._owed[key.receiver].pop(key, None)
        else:
            self._owed[key.receiver][key] = block
        return True

    def num_owed(self, peer: int) -> int:
        """Return how many blocks a peer has not acknowledged."""
        return len(self._owed.get(peer, ()))

    def owed(self) -> Mapping[int, Owed]:
        """Return by peer what it has not acknowledged."""
        return {
            peer: Owed(
                num_blocks=len(blocks), num_bytes=sum(one.num_bytes for one in blocks.values())
            )
            for peer, blocks in sorted(self._owed.items())
            if blocks
        }

    def offers(self, peer: int) -> list[Offer]:
        """Return every block that a peer has not acknowledged."""
        return [
            Offer(
                key=key,
                num_frames=block.num_frames,
                num_bytes=block.num_bytes,
                is_eager=not block.was_offered,
            )
            for key, block in self._owed.get(peer, {}).items()
        ]


# ---- how long blocks are owed --------------------------------------------------------------------

#: Jobs whose deliveries are kept, the latest ones.
_JOBS_KNOWN: Final = 8


@dataclass(slots=True, kw_only=True)
class Deliveries:
    """The blocks of one job and layer that this process sent.

    Attributes:
        blocks: How many were acknowledged.
        size_bytes: Bytes of their frames.
        seconds: Time in which one or several of them were not acknowledged, from sending to the
            acknowledgement; with everything between: connections, waits, the peer's disk.
        longest_s: The longest that one was not acknowledged.
    """

    blocks: int = 0
    size_bytes: int = 0
    seconds: float = 0.0
    longest_s: float = 0.0
    _owed: dict[BlockKey, tuple[float, int]] = field(default_factory=dict)
    _since_s: float = 0.0

    @property
    def nothing_owed(self) -> bool:
        """Whether everything so far was acknowledged."""
        return not self._owed

    def begin(self, key: BlockKey, size_bytes: int, now_s: float) -> None:
        """Note that a block waits for its acknowledgement from now on."""
        if not self._owed:
            self._since_s = now_s
        self._owed.setdefault(key, (now_s, size_bytes))

    def end(self, key: BlockKey, now_s: float, *, delivered: bool) -> bool:
        """Note that a block waits no more; return whether it did, since :meth:`begin`."""
        if key not in self._owed:
            return False
        begun_s, size_bytes = self._owed.pop(key)
        if delivered:
            self.blocks += 1
            self.size_bytes += size_bytes
            self.longest_s = max(self.longest_s, now_s - begun_s)
        if not self._owed:
            self.seconds += now_s - self._since_s
        return True


class DeliveryTimes:
    """Deliveries by job and layer, of this process alone: those of a killed one are not timed.

    They stay when a job is over, for a later report.
    """

    def __init__(self) -> None:
        self._by_layer: dict[tuple[str, int], Deliveries] = {}

    def begin(self, key: BlockKey, size_bytes: int, now_s: float) -> None:
        """Note that a block was sent; the oldest jobs beyond the limit are then dropped."""
        deliveries = self._by_layer.setdefault((key.job, key.layer), Deliveries())
        jobs = list(dict.fromkeys(job for job, _ in self._by_layer))
        for job in jobs[:-_JOBS_KNOWN]:
            self._forget(job)
        deliveries.begin(key, size_bytes, now_s)

    def end(self, key: BlockKey, now_s: float, *, delivered: bool = True) -> Deliveries | None:
        """Note that a block was acknowledged or dropped; return its layer's, None if unknown."""
        deliveries = self._by_layer.get((key.job, key.layer))
        if deliveries is None or not deliveries.end(key, now_s, delivered=delivered):
            return None
        return deliveries

    def facts(self) -> list[dict[str, Any]]:
        """Return one entry for each job and layer."""
        return [
            {
                "job": job,
                "layer": layer,
                "blocks": one.blocks,
                "bytes": one.size_bytes,
                "seconds": round(one.seconds, 6),
                "longest_s": round(one.longest_s, 6),
            }
            for (job, layer), one in sorted(self._by_layer.items())
        ]

    def _forget(self, job: str) -> None:
        self._by_layer = {place: one for place, one in self._by_layer.items() if place[0] != job}
