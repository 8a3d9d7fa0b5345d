"""What arrives at a depot: a file for each block, that grows by checked frames, and the inbox.

The inbox also holds the keys of blocks that were looked for too early; the peers are asked for
them. It is not thread-safe, a block is.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from retexo_fl.channels.base import BlockKey
from retexo_fl.channels.depot.files import DepotFiles
from retexo_fl.channels.gate import Admission
from retexo_fl.errors import ChannelUnavailable, PartitionError, PeerRefused, RemoteProtocolError
from retexo_fl.exchange.block import check_same_block
from retexo_fl.exchange.block_frames import NOTHING, BlockProgress, check_frame, sound_prefix
from retexo_fl.exchange.frames import Buffer
from retexo_fl.exchange.link.reasons import Reason, refused
from retexo_fl.files import FileStamp, file_stamp


class ArrivingBlock:
    """One peer's block; its methods may be called from any thread.

    Each frame is checked once, when it arrives; all of them again where the file was written by
    another process, an earlier one of this client too.

    Args:
        key: The block.
        path: Its file, which may hold what arrived earlier.
    """

    def __init__(self, key: BlockKey, path: Path) -> None:
        self._key = key
        self._path = path
        self._lock = threading.Lock()
        self._admission: Admission | None = None
        self._refusal: PartitionError | None = None
        self._progress = NOTHING
        #: Of the file as this process left it.
        self._stamp: FileStamp | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of the frames that are here."""
        return self._progress.traffic.wire_bytes

    @property
    def next_sequence(self) -> int:
        """Number of the first frame that is not here."""
        return self._progress.num_frames

    @property
    def is_whole(self) -> bool:
        """Whether all of the block is here."""
        return self._progress.is_whole

    def recover(self) -> None:
        """Keep the sound frames that the file begins with and cut the rest off.

        Raises:
            OSError: The file cannot be read or cut.
        """
        with self._lock:
            self._recover()

    def admit(self, admission: Admission, num_frames: int) -> None:
        """Check what has arrived against what is expected now, and what comes from here on.

        Args:
            admission: What it must be.
            num_frames: Of the whole block, as its sender offered it.

        Raises:
            PartitionError: Both ends do not list the same edges; HELLO is kept, which shows it.
            ChannelUnavailable: The file cannot be read or cut.
        """
        with self._lock:
            self._admission, self._refusal = admission, None
            try:
                if file_stamp(self._path) != self._stamp:
                    self._recover()
                is_over = self._progress.num_frames >= num_frames and not self.is_whole
                if is_over or not self._is_of(admission):
                    # Another plan, or another block of this name: all of it has to come again.
                    self._cut(NOTHING)
            except PartitionError as error:
                self._refusal = error
                raise
            except OSError as error:
                raise self._unusable("read", error) from error

    def add(self, data: Buffer) -> bool:
        """Check the next frame and keep it; return whether the block is whole.

        Raises:
            RemoteProtocolError: It is not what comes next; it is not kept.
            PartitionError: Its HELLO lists other edges than this part; HELLO alone is kept.
            PeerRefused: The block has grown too large or was refused before.
            ChannelUnavailable: The disk is full or fails; nothing of the frame is kept.
        """
        with self._lock:
            if self._admission is None or self._refusal is not None:
                raise self._refusal or PeerRefused("the block was not admitted")
            if file_stamp(self._path) != self._stamp:
                self._recover()
            if self.num_bytes + len(data) > self._admission.max_bytes:
                raise refused(
                    Reason.OVERSIZE,
                    f"a block of client {self._key.sender} has more than "
                    f"{self._admission.max_bytes} bytes",
                )
            try:
                progress = check_frame(data, self._progress, self._key, self._admission.header)
            except PartitionError as error:
                self._append(data, check_frame(data, self._progress, self._key))
                self._refusal = error
                raise
            self._append(data, progress)
            return self.is_whole

    def read(self) -> bytes:
        """Return the sound frames that have arrived; a damaged rest is cut off.

        Raises:
            OSError: The file cannot be read or cut.
        """
        with self._lock:
            if file_stamp(self._path) == self._stamp:
                # It may have been admitted a moment ago, and its first frame is on its way.
                return self._path.read_bytes() if self._stamp else b""
            self._admission = None
            return self._recover()

    def remove(self) -> None:
        """Remove the file; a frame that comes later is refused.

        Raises:
            OSError: It cannot be removed.
        """
        with self._lock:
            self._admission = None
            self._path.unlink(missing_ok=True)

    def _is_of(self, admission: Admission) -> bool:
        """Return whether what has arrived is of the block that is expected."""
        if self._progress.block is None or admission.header is None:
            return True
        try:
            check_same_block(self._progress.block, admission.header)
        except RemoteProtocolError:
            return False
        return True

    def _recover(self) -> bytes:
        stream = self._path.read_bytes() if self._path.exists() else b""
        progress = sound_prefix(self._key, stream)
        num_bytes = progress.traffic.wire_bytes
        if num_bytes < len(stream):
            self._cut(progress)
        self._progress, self._stamp = progress, file_stamp(self._path)
        return stream[:num_bytes]

    def _append(self, data: Buffer, progress: BlockProgress) -> None:
        try:
            if self._stamp is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab", buffering=0) as file:
                written = file.write(data)
                while written < len(data):
                    written += file.write(memoryview(data)[written:])
            self._progress, self._stamp = progress, file_stamp(self._path)
        except OSError as error:
            self._cut(self._progress)
            raise self._unusable("written", error) from error

    def _cut(self, progress: BlockProgress) -> None:
        """Cut the file to what has come as far as ``progress``."""
        self._progress = progress
        if progress.num_frames:
            os.truncate(self._path, progress.traffic.wire_bytes)
        else:
            self._path.unlink(missing_ok=True)
        self._stamp = file_stamp(self._path)

    def _unusable(self, verb: str, error: OSError) -> ChannelUnavailable:
        return ChannelUnavailable(
            f"inbox: a block of client {self._key.sender} could not be {verb} "
            f"({error.strerror}): {self._path.name}"
        )


class Inbox:
    """Arriving blocks by key, and the keys that were asked for.

    Args:
        files: Where they are kept.
    """

    def __init__(self, files: DepotFiles) -> None:
        self.blocks: dict[BlockKey, ArrivingBlock] = {}
        self._files = files
        self._asked: set[BlockKey] = set()
        self._asked_by_peer: Counter[int] = Counter()

    def load(self) -> None:
        """Take over what an earlier process left; what is not whole is asked for.

        Raises:
            OSError: It cannot be read.
        """
        for key, path in self._files.blocks("inbox"):
            block = ArrivingBlock(key, path)
            block.recover()
            self.blocks[key] = block
            if not block.is_whole:
                self.ask_for(key)

    def opened(self, key: BlockKey) -> ArrivingBlock:
        """Return a block, a new one if nothing of it has arrived."""
        return self.blocks.setdefault(key, ArrivingBlock(key, self._files.incoming(key)))

    def pop(self, key: BlockKey) -> ArrivingBlock | None:
        """Take out a block and return it; None if it is not here."""
        self.asked_no_more(key)
        return self.blocks.pop(key, None)

    def has_whole(self, key: BlockKey) -> bool:
        """Return whether all of a block has arrived."""
        block = self.blocks.get(key)
        return block is not None and block.is_whole

    def missing(self, keys: Collection[BlockKey]) -> frozenset[BlockKey]:
        """Return those that have not arrived whole."""
        return frozenset(key for key in keys if not self.has_whole(key))

    def senders(self, job: str, layer: int, weights_digest: bytes) -> frozenset[int]:
        """Return every client of which something has arrived in an exchange."""
        exchange = (job, layer, weights_digest)
        return frozenset(
            key.sender
            for key, block in self.blocks.items()
            if (key.job, key.layer, key.weights_digest) == exchange and block.next_sequence
        )

    def ask_for(self, key: BlockKey) -> bool:
        """Note that a block is looked for; return whether that is new."""
        if key in self._asked or self.has_whole(key):
            return False
        self._asked.add(key)
        self._asked_by_peer[key.sender] += 1
        return True

    def asked_no_more(self, key: BlockKey) -> None:
        """Note that a block has come, or is not looked for any more."""
        if key in self._asked:
            self._asked.remove(key)
            self._asked_by_peer[key.sender] -= 1

    def asked_of_job(self, job: str) -> list[BlockKey]:
        """Return the blocks of a job that are looked for."""
        return [key for key in self._asked if key.job == job]

    def asks(self, peer: int) -> frozenset[BlockKey]:
        """Return the blocks of a peer that are looked for."""
        if not self.asks_of(peer):
            return frozenset()
        return frozenset(key for key in self._asked if key.sender == peer)

    def asks_of(self, peer: int) -> bool:
        """Return whether a block of a peer is looked for."""
        return self._asked_by_peer[peer] > 0
