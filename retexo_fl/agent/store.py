"""What a client keeps between messages: its rows for each stage and how each exchange was closed.

A message may reach another process than the one before it (Flower's simulation), so what a later
message needs is kept here, and a client object may be dropped at any time.
"""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Protocol

import numpy as np

from retexo_fl.errors import CheckpointError
from retexo_fl.files import write_whole


class ClientStore(Protocol):
    """Kept for one client and one job."""

    def attempt(self) -> int:
        """Return the highest attempt seen, 0 at first."""
        ...

    def set_attempt(self, attempt: int) -> None:
        """Remember a newer attempt."""
        ...

    def rows(self, stage: int, digest: bytes) -> np.ndarray | None:
        """Return the (N, H) rows made for a stage, or None."""
        ...

    def put_rows(self, stage: int, digest: bytes, rows: np.ndarray) -> None:
        """Keep the rows made for a stage."""
        ...

    def missing_peers(self, stage: int, digest: bytes) -> tuple[int, ...] | None:
        """Return the peers without whom an exchange was closed, or None while it is open."""
        ...

    def close_exchange(self, stage: int, digest: bytes, missing_peers: tuple[int, ...]) -> None:
        """Remember without whom an exchange was closed."""
        ...

    def forget(self) -> None:
        """Drop everything."""
        ...


class MemoryStore:
    """For clients whose process lives as long as the job; keeps the latest stage."""

    def __init__(self) -> None:
        self._attempt = 0
        self._rows: dict[tuple[int, bytes], np.ndarray] = {}
        self._closed: dict[tuple[int, bytes], tuple[int, ...]] = {}

    def attempt(self) -> int:
        """See :class:`ClientStore`."""
        return self._attempt

    def set_attempt(self, attempt: int) -> None:
        """See :class:`ClientStore`."""
        self._attempt = attempt

    def rows(self, stage: int, digest: bytes) -> np.ndarray | None:
        """See :class:`ClientStore`."""
        return self._rows.get((stage, digest))

    def put_rows(self, stage: int, digest: bytes, rows: np.ndarray) -> None:
        """See :class:`ClientStore`."""
        self._rows = {(stage, digest): rows}

    def missing_peers(self, stage: int, digest: bytes) -> tuple[int, ...] | None:
        """See :class:`ClientStore`."""
        return self._closed.get((stage, digest))

    def close_exchange(self, stage: int, digest: bytes, missing_peers: tuple[int, ...]) -> None:
        """See :class:`ClientStore`."""
        self._closed[stage, digest] = missing_peers

    def forget(self) -> None:
        """See :class:`ClientStore`."""
        self._rows.clear()
        self._closed.clear()


class FolderStore:
    """A folder for each client and job; files are written beside and renamed.

    Args:
        folder: Belongs to this store alone.
        durable: What is put outlives a power cut, not only the process.
    """

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        self._folder = folder
        self._durable = durable

    def attempt(self) -> int:
        """See :class:`ClientStore`."""
        try:
            return int((self._folder / "attempt").read_text(encoding="ascii"))
        except FileNotFoundError:
            return 0
        except ValueError as error:
            raise CheckpointError(f"{self._folder}: the attempt is damaged") from error

    def set_attempt(self, attempt: int) -> None:
        """See :class:`ClientStore`."""
        self._write("attempt", str(attempt).encode())

    def rows(self, stage: int, digest: bytes) -> np.ndarray | None:
        """See :class:`ClientStore`."""
        try:
            rows: np.ndarray = np.load(
                self._folder / _name(stage, digest, "npy"), mmap_mode="r", allow_pickle=False
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, EOFError) as error:
            raise CheckpointError(f"{self._folder}: rows of stage {stage} ({error})") from error
        return rows

    def put_rows(self, stage: int, digest: bytes, rows: np.ndarray) -> None:
        """See :class:`ClientStore`."""
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, np.lib.format.header_data_from_array_1_0(np.ascontiguousarray(rows))
        )
        content = np.ascontiguousarray(rows).tobytes()
        self._write(_name(stage, digest, "npy"), header.getvalue(), content)

    def missing_peers(self, stage: int, digest: bytes) -> tuple[int, ...] | None:
        """See :class:`ClientStore`."""
        try:
            text = (self._folder / _name(stage, digest, "json")).read_text(encoding="ascii")
        except FileNotFoundError:
            return None
        try:
            return tuple(json.loads(text))
        except ValueError as error:
            raise CheckpointError(
                f"{self._folder}: the end of exchange {stage} is damaged"
            ) from error

    def close_exchange(self, stage: int, digest: bytes, missing_peers: tuple[int, ...]) -> None:
        """See :class:`ClientStore`."""
        self._write(_name(stage, digest, "json"), json.dumps(missing_peers).encode())

    def forget(self) -> None:
        """See :class:`ClientStore`."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self, name: str, *content: bytes) -> None:
        try:
            write_whole(self._folder / name, content, durable=self._durable)
        except OSError as error:
            raise CheckpointError(
                f"{self._folder / name}: could not be written ({error.strerror})"
            ) from error


class KeepingStore(FolderStore):
    """A folder store that its owner empties, once the job's last answer is on disk."""

    def forget(self) -> None:
        """Keep everything."""


def _name(stage: int, digest: bytes, ending: str) -> str:
    return f"stage-{stage}-{digest[:8].hex()}.{ending}"
