"""A block in the inbox: what has arrived of it, and the check that its next frame must pass."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from retexo_fl.channels.base import BlockKey
from retexo_fl.channels.gate import Admission
from retexo_fl.errors import ChannelUnavailable, PartitionError, PeerRefused, RemoteProtocolError
from retexo_fl.exchange.frames import Buffer
from retexo_fl.exchange.link_check import BlockCheck, cut_frames, sound_prefix
from retexo_fl.exchange.link_reasons import Reason, refused


class ArrivingBlock:
    """One peer's block; its methods may be called from any thread.

    Args:
        key: The block.
        path: Its file, which may hold what arrived earlier.
    """

    def __init__(self, key: BlockKey, path: Path) -> None:
        self._key = key
        self._path = path
        self._lock = threading.Lock()
        self._check: BlockCheck | None = None
        self._max_bytes = 0
        self._refusal: PartitionError | None = None
        self.num_bytes = 0
        self.next_sequence = 0
        self.is_whole = False

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
            num_frames: What its sender says that the whole block has.

        Raises:
            PartitionError: Both ends do not list the same edges; HELLO is kept, which shows it.
            ChannelUnavailable: The file cannot be read or cut.
        """
        with self._lock:
            self._check = BlockCheck(self._key, admission.header)
            self._max_bytes, self._refusal = admission.max_bytes, None
            try:
                is_sound = self._passes(self._check, self._stored())
                if not is_sound or (self.next_sequence >= num_frames and not self.is_whole):
                    # Another plan, or another block of this name: all of it has to come again.
                    self._cut(0, 0)
                    self._check = BlockCheck(self._key, admission.header)
            except PartitionError as error:
                self._refusal = error
                raise
            except OSError as error:
                raise self._unusable("read", error) from error

    def add(self, frame: Buffer) -> bool:
        """Check the next frame and keep it; return whether the block is whole.

        Raises:
            RemoteProtocolError: It is not what comes next; it is not kept.
            PartitionError: Its HELLO lists other edges than this part; HELLO alone is kept.
            PeerRefused: The block has grown too large or was refused before.
            ChannelUnavailable: The disk is full or fails; nothing of the frame is kept.
        """
        with self._lock:
            if self._check is None or self._refusal is not None:
                raise self._refusal or PeerRefused("the block was not admitted")
            if self.num_bytes + len(frame) > self._max_bytes:
                raise refused(
                    Reason.OVERSIZE,
                    f"a block of client {self._key.sender} has more than {self._max_bytes} bytes",
                )
            try:
                is_last = self._check.accept(frame)
            except PartitionError as error:
                self._append(frame)
                self._refusal = error
                raise
            self._append(frame)
            self.is_whole = is_last
            return is_last

    def read(self) -> bytes:
        """Return the sound frames that have arrived; a damaged rest is cut off.

        Raises:
            OSError: The file cannot be read or cut.
        """
        with self._lock:
            if not self.num_bytes and not self._path.exists():
                # It may have been admitted a moment ago, and its first frame is on its way.
                return b""
            if self._path.exists():
                stream = self._path.read_bytes()
                if sound_prefix(self._key, stream)[0] == len(stream) == self.num_bytes:
                    return stream
            self._check = None
            return self._recover()

    def remove(self) -> None:
        """Remove the file; a frame that comes later is refused.

        Raises:
            OSError: It cannot be removed.
        """
        with self._lock:
            self._check = None
            self._path.unlink(missing_ok=True)

    @staticmethod
    def _passes(check: BlockCheck, stream: bytes) -> bool:
        try:
            for frame in cut_frames(stream):
                check.accept(frame)
        except RemoteProtocolError:
            return False
        return True

    def _stored(self) -> bytes:
        """Return the frames that are kept; what did not come by :meth:`add` is cut off."""
        stream = self._path.read_bytes() if self._path.exists() else b""
        return stream if len(stream) == self.num_bytes else self._recover()

    def _recover(self) -> bytes:
        stream = self._path.read_bytes() if self._path.exists() else b""
        num_bytes, num_frames, is_whole = sound_prefix(self._key, stream)
        if num_bytes < len(stream):
            self._cut(num_bytes, num_frames)
        self.num_bytes, self.next_sequence, self.is_whole = num_bytes, num_frames, is_whole
        return stream[:num_bytes]

    def _append(self, frame: Buffer) -> None:
        try:
            if not self.num_bytes:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab", buffering=0) as file:
                written = file.write(frame)
                while written < len(frame):
                    written += file.write(memoryview(frame)[written:])
        except OSError as error:
            # The check has counted the frame: what is kept must be checked again.
            self._check = None
            self._cut(self.num_bytes, self.next_sequence)
            raise self._unusable("written", error) from error
        self.num_bytes += len(frame)
        self.next_sequence += 1

    def _cut(self, num_bytes: int, num_frames: int) -> None:
        self.num_bytes, self.next_sequence, self.is_whole = num_bytes, num_frames, False
        if num_bytes:
            os.truncate(self._path, num_bytes)
        else:
            self._path.unlink(missing_ok=True)

    def _unusable(self, verb: str, error: OSError) -> ChannelUnavailable:
        return ChannelUnavailable(
            f"inbox: a block of client {self._key.sender} could not be {verb} "
            f"({error.strerror}): {self._path.name}"
        )
