"""What a crash leaves of a training: its checkpoint, beside it the account of bytes, and when.

A checkpoint is one safetensors file, replaced as a whole after a round (:class:`Checkpoint`). The
account of bytes only grows, so a checkpoint appends what changed since the last one
(:class:`LedgerFile`). Both are written while clients compute: in a thread of their own, at
intervals (:class:`CheckpointWriter`). :class:`Checkpoints` has all of it for a run directory.
"""

from __future__ import annotations

import csv
import json
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from retexo_fl.config import Scalar
from retexo_fl.errors import CheckpointError
from retexo_fl.files import write_whole
from retexo_fl.ledger import TrafficLedger
from retexo_fl.run_log.log import EventLog

#: Raised when the meaning of a checkpoint's content changes.
CHECKPOINT_VERSION: Final = 3
#: Finished rounds that a crash may cost, beside the one under way, in seconds of training.
MOST_LOST_S: Final = 1.0
#: A file of the account this many times longer than the whole account was as it began is followed
#: by another.
MOST_TIMES: Final = 4
#: Shorter ones are not.
LEAST_BYTES: Final = 2**20


# ---- the file -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A training after ``round`` rounds of ``stage``.

    Attributes:
        facts: The part in JSON: job, attempt, stage, round, best score, history.
        tensors: ``weights``, ``best`` (absent before the first candidate), ``adam.*``,
            ``control-*``.
    """

    facts: Mapping[str, Any]
    tensors: Mapping[str, np.ndarray] = field(default_factory=dict)


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint at ``path``; after a crash at any moment one of the two is whole.

    Raises:
        CheckpointError: The disk is full or not writable; the former checkpoint is intact.
    """
    facts = json.dumps({"version": CHECKPOINT_VERSION, **checkpoint.facts})
    tensors = {name: np.ascontiguousarray(item) for name, item in checkpoint.tensors.items()}
    content = save(tensors, metadata={"facts": facts, "crc32": checksum(facts, tensors)})
    replace_file(path, content)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        CheckpointError: There is none, or it is damaged or of another version.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    with named_damage(path):
        tensors = load(content)
        metadata = metadata_of(content)
        facts = json.loads(metadata["facts"])
        intact = metadata["crc32"] == checksum(metadata["facts"], tensors)
        version = facts.get("version")
    if version != CHECKPOINT_VERSION:
        raise CheckpointError(f"{path}: version {version!r:.40}; expected {CHECKPOINT_VERSION}")
    if not intact:
        raise CheckpointError(f"{path}: damaged (its checksum does not fit its content)")
    return Checkpoint(facts=facts, tensors=tensors)


@contextmanager
def named_damage(place: Path | str, problem: str = "damaged") -> Iterator[None]:
    """Name the file in whatever its content causes where it is not as it was written.

    Args:
        place: The file.
        problem: What is wrong with it.

    Raises:
        CheckpointError: Something was absent, of another type, or no number.
    """
    try:
        yield
    except (
        SafetensorError,
        AttributeError,
        LookupError,
        OverflowError,
        RecursionError,
        TypeError,
        ValueError,
        csv.Error,
    ) as error:
        raise CheckpointError(f"{place}: {problem} ({error})") from error


def metadata_of(content: bytes) -> Mapping[str, str]:
    """Return the metadata of a safetensors file.

    Raises:
        ValueError: Its header is not JSON.
        KeyError: It has none.
    """
    header_bytes = int.from_bytes(content[:8], "little")
    metadata: Mapping[str, str] = json.loads(content[8 : 8 + header_bytes])["__metadata__"]
    return metadata


def checksum(facts: str, tensors: Mapping[str, np.ndarray]) -> str:
    """Return a CRC-32 over the content of a file of tensors, against damage on the disk."""
    crc = zlib.crc32(facts.encode())
    for name in sorted(tensors):
        item = tensors[name]
        crc = zlib.crc32(f"{name} {item.dtype} {item.shape}".encode(), crc)
        crc = zlib.crc32(np.ascontiguousarray(item).tobytes(), crc)
    return f"{crc:08x}"


def replace_file(path: Path, content: bytes) -> None:
    """Write a file beside ``path`` and put it in its place.

    Raises:
        CheckpointError: It could not be written; what was at ``path`` is still there.
    """
    try:
        write_whole(path, [content], durable=True)
    except OSError as error:
        raise CheckpointError(f"{path}: could not be written ({error.strerror})") from error


# ---- the account of bytes -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one checkpoint writes of the account.

    Attributes:
        number: Of the file.
        begin: Where the piece begins; 0 for a whole account, in a file of its own.
        content: Lines, as in ``ledger.csv``.
        crc32: Of the file up to the end of the piece.
    """

    number: int
    begin: int
    content: bytes
    crc32: int

    @property
    def facts(self) -> dict[str, Any]:
        """What the checkpoint says of the account: which file, and how much of it."""
        return {
            "number": self.number,
            "bytes": self.begin + len(self.content),
            "crc32": f"{self.crc32:08x}",
        }


class LedgerFile:
    """``checkpoint-ledger-N.csv`` of a run directory.

    A line says what its account has in all, so the last line of an account counts. The checkpoint
    names the file and its length, so what a crash left after that is written over. A file that
    has grown long is followed by the next, which begins with the whole account; the former is
    removed once a checkpoint names the new one.

    Args:
        folder: The run directory.
    """

    def __init__(self, folder: Path) -> None:
        #: Where it is now: a run that replaces another moves.
        self.folder = folder
        self._number = self._bytes = self._crc32 = 0
        #: Of the whole account as the file began.
        self._whole_bytes = 0

    def next_piece(self, ledger: TrafficLedger) -> Piece:
        """Return what the next checkpoint has to write; asked for once for each of them."""
        changed = ledger.changes().encode()
        most_bytes = max(MOST_TIMES * self._whole_bytes, LEAST_BYTES)
        if self._number == 0 or self._bytes + len(changed) > most_bytes:
            changed = ledger.to_csv().encode()
            self._number += 1
            self._bytes = self._crc32 = 0
            self._whole_bytes = len(changed)
        begin = self._bytes
        self._bytes += len(changed)
        self._crc32 = zlib.crc32(changed, self._crc32)
        return Piece(number=self._number, begin=begin, content=changed, crc32=self._crc32)

    def write(self, piece: Piece) -> None:
        """Write a piece and wait until it is on the disk.

        Raises:
            CheckpointError: The disk is full, or failed; what was before the piece is still there.
        """
        path = self._path(piece.number)
        if piece.begin == 0:
            replace_file(path, piece.content)
            return
        try:
            with path.open("r+b") as file:
                file.truncate(piece.begin)
                file.seek(piece.begin)
                file.write(piece.content)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise CheckpointError(f"{path}: could not be written ({error.strerror})") from error

    def remove_others(self, number: int) -> None:
        """Remove all files but one: those before it, and one that no checkpoint names."""
        for path in self.folder.glob("checkpoint-ledger-*.csv"):
            if path != self._path(number):
                path.unlink(missing_ok=True)

    def read(self, facts: Mapping[str, Any]) -> TrafficLedger:
        """Return the account that a checkpoint names; :meth:`next_piece` goes on from there.

        Args:
            facts: :attr:`Piece.facts`, from the checkpoint.

        Raises:
            CheckpointError: The file is absent or damaged.
            ValueError: The facts are not those of a piece; so do KeyError and TypeError say.
        """
        number, size_bytes, crc32 = int(facts["number"]), int(facts["bytes"]), facts["crc32"]
        path = self._path(number)
        try:
            with path.open("rb") as file:
                content = file.read(max(size_bytes, 0))
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
        self._number, self._bytes, self._crc32 = number, len(content), zlib.crc32(content)
        if self._bytes != size_bytes or f"{self._crc32:08x}" != crc32:
            raise CheckpointError(f"{path}: damaged (its content is not what the checkpoint names)")
        with named_damage(path):
            return TrafficLedger.from_csv(content.decode().splitlines())

    def _path(self, number: int) -> Path:
        return self.folder / f"checkpoint-ledger-{number}.csv"


# ---- when ---------------------------------------------------------------------------------------


class CheckpointWriter:
    """Writes states of a training, in order, one at a time.

    After a crash the training continues from a state that is at most :data:`MOST_LOST_S` older than
    its last finished round. Rounds that take longer than half of that are therefore all written,
    shorter ones at intervals. Where a write might end too late, the training waits for it.

    Args:
        write: Called in the thread; returns when the checkpoint is on the disk.
        now_s: A monotonic clock.
    """

    def __init__(
        self,
        write: Callable[[Checkpoint, Piece], None],
        *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._now_s = now_s
        self._thread: ThreadPoolExecutor | None = None
        self._under_way: Future[float] | None = None
        #: Times of the last state that was given to :meth:`write`, and of the last one on the disk.
        self._handed_s = self._safe_s = float("-inf")
        self._last_took_s = 0.0

    def is_due(self) -> bool:
        """Return whether a state that has just been reached should be written.

        Raises:
            CheckpointError: An earlier one could not be.
        """
        if self._under_way is not None and self._under_way.done():
            self.wait()
        if self._now_s() - self._handed_s < MOST_LOST_S / 2:
            return False
        return self._under_way is None or self._now_s() - self._safe_s >= MOST_LOST_S

    def write(self, checkpoint: Checkpoint, ledger: Piece) -> None:
        """Write a state in the thread; its arrays may change afterwards.

        Args:
            checkpoint: The state.
            ledger: What of the account has changed until then.

        Raises:
            CheckpointError: It, or an earlier one, could not be written.
        """
        self.wait()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        kept = {name: item.copy() for name, item in checkpoint.tensors.items()}
        self._handed_s = self._now_s()
        self._under_way = self._thread.submit(
            self._timed, Checkpoint(facts=checkpoint.facts, tensors=kept), ledger
        )
        if self._handed_s - self._safe_s + self._last_took_s >= MOST_LOST_S:
            self.wait()

    def wait(self) -> None:
        """Return when everything given to :meth:`write` is on the disk.

        Raises:
            CheckpointError: It could not be written.
        """
        if self._under_way is None:
            return
        under_way, self._under_way = self._under_way, None
        self._last_took_s = under_way.result()
        self._safe_s = self._handed_s

    def close(self) -> None:
        """End the thread, after what it has under way; a failure is not raised any more."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = self._under_way = None

    def _timed(self, checkpoint: Checkpoint, ledger: Piece) -> float:
        begun_s = self._now_s()
        self._write(checkpoint, ledger)
        return self._now_s() - begun_s


# ---- of a run directory -------------------------------------------------------------------------


class Checkpoints:
    """``checkpoint.safetensors`` of a run directory, with the account of bytes that it names.

    Args:
        folder: The run directory.
        log: Its history, of which a checkpoint says how long it is.

    Attributes:
        config: What a resume may not change, of the run's configuration.
        seconds_before: Seconds that earlier attempts have taken.
        ledger_file: The account of bytes.
        writer: Says when a checkpoint is due, and waits for the one under way.
    """

    def __init__(self, folder: Path, log: EventLog) -> None:
        self.config: Mapping[str, Scalar] = {}
        self.seconds_before = 0.0
        self._begun_s = time.monotonic()
        self._log = log
        self.ledger_file = LedgerFile(folder)
        self.writer = CheckpointWriter(self._replace)

    @property
    def path(self) -> Path:
        """Where the checkpoint is."""
        return self.ledger_file.folder / "checkpoint.safetensors"

    @property
    def seconds(self) -> float:
        """Seconds that all attempts have taken so far."""
        return self.seconds_before + time.monotonic() - self._begun_s

    def write(self, checkpoint: Checkpoint, ledger: TrafficLedger) -> None:
        """Replace the checkpoint, in a thread that works while clients compute.

        Args:
            checkpoint: What the training is to go on from.
            ledger: The account of bytes at that moment.

        Raises:
            CheckpointError: It, or the one before, could not be written.
        """
        piece = self.ledger_file.next_piece(ledger)
        facts = {
            **checkpoint.facts,
            "config": self.config,
            "seconds": self.seconds,
            "metrics_bytes": self._log.size_bytes,
            "ledger": piece.facts,
        }
        self.writer.write(Checkpoint(facts=facts, tensors=checkpoint.tensors), piece)

    def _replace(self, checkpoint: Checkpoint, piece: Piece) -> None:
        # The history and the account that it counts on come first.
        self._log.force()
        self.ledger_file.write(piece)
        write_checkpoint(self.path, checkpoint)
        if piece.begin == 0:
            self.ledger_file.remove_others(piece.number)
