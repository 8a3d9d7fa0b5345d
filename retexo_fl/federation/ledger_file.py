"""The account of a run's bytes on disk: a checkpoint appends what changed since the last one."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from retexo_fl.errors import CheckpointError
from retexo_fl.federation.checkpoints import named_damage, replace_file
from retexo_fl.ledger import TrafficLedger

#: A file this many times longer than the whole account was as it began is followed by another.
MOST_TIMES: Final = 4
#: Shorter ones are not.
LEAST_BYTES: Final = 2**20


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

    A line says what its account has in all, so the last line of an account stands. The checkpoint
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
            CheckpointError: The disk is full, or failed; what stood before the piece still does.
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
        """Remove all files but one: those before it, and one that no checkpoint came to name."""
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
