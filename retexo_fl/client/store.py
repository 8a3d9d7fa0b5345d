"""What a client keeps between messages: its rows for each stage and how each exchange was closed.

A message may reach another process than the one before it (Flower's simulation), so what a later
message needs is kept here, and a client object may be dropped at any time.
"""

from __future__ import annotations

import io
import json
import shutil
import zlib
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.answer_book import AnswerBook
from retexo_fl.errors import CheckpointError
from retexo_fl.files import write_whole
from retexo_fl.graph.features import Features
from retexo_fl.graph.npy import open_npy, open_npz
from retexo_fl.line_log import LineLog

_CHUNK_BYTES: Final = 2**20


class ClientStore(Protocol):
    """Kept for one client and one job."""

    @property
    def book(self) -> AnswerBook:
        """What the client has answered."""
        ...

    def rows(self, stage: int, digest: bytes) -> Features | None:
        """Return the (N, H) rows made for a stage, or None."""
        ...

    def put_rows(self, stage: int, digest: bytes, rows: Features) -> None:
        """Keep the rows made for a stage."""
        ...

    def weights(self, stage: int, digest: bytes) -> np.ndarray | None:
        """Return the (P,) weights that make a stage's input of its rows, or None."""
        ...

    def put_weights(self, stage: int, digest: bytes, weights: np.ndarray) -> None:
        """Keep the weights that make a stage's input."""
        ...

    def held_weights(self, stage: int, name: bytes) -> np.ndarray | None:
        """Return the (P,) weights of this name that a message of a stage had, or None."""
        ...

    def hold_weights(self, stage: int, name: bytes, weights: np.ndarray, *, most: int) -> None:
        """Keep the weights of a message, and at most so many in all; none of other stages."""
        ...

    def missing_peers(self, stage: int, digest: bytes) -> tuple[int, ...] | None:
        """Return the peers without whom an exchange was closed, or None while it is open."""
        ...

    def close_exchange(self, stage: int, digest: bytes, missing_peers: tuple[int, ...]) -> None:
        """Remember without whom an exchange was closed."""
        ...

    def note(self, name: str) -> bytes | None:
        """Return what was kept under a name, or None."""
        ...

    def put_note(self, name: str, content: bytes) -> None:
        """Keep a few bytes under a name, readable by the owner alone."""
        ...

    def forget(self) -> None:
        """Drop everything."""
        ...


class MemoryStore:
    """For clients whose process lives as long as the job; keeps the rows of the latest digest."""

    def __init__(self) -> None:
        self.book = AnswerBook()
        self._rows: dict[tuple[int, bytes], Features] = {}
        self._weights: dict[tuple[int, bytes], np.ndarray] = {}
        self._held: dict[tuple[int, bytes], np.ndarray] = {}
        self._closed: dict[tuple[int, bytes], tuple[int, ...]] = {}
        self._notes: dict[str, bytes] = {}

    def rows(self, stage: int, digest: bytes) -> Features | None:
        """See :class:`ClientStore`."""
        return self._rows.get((stage, digest))

    def put_rows(self, stage: int, digest: bytes, rows: Features) -> None:
        """See :class:`ClientStore`."""
        kept = {key: held for key, held in self._rows.items() if key[1] == digest}
        self._rows = {**kept, (stage, digest): rows}

    def weights(self, stage: int, digest: bytes) -> np.ndarray | None:
        """See :class:`ClientStore`."""
        return self._weights.get((stage, digest))

    def put_weights(self, stage: int, digest: bytes, weights: np.ndarray) -> None:
        """See :class:`ClientStore`."""
        self._weights = {(stage, digest): weights}

    def held_weights(self, stage: int, name: bytes) -> np.ndarray | None:
        """See :class:`ClientStore`."""
        return self._held.get((stage, name))

    def hold_weights(self, stage: int, name: bytes, weights: np.ndarray, *, most: int) -> None:
        """See :class:`ClientStore`."""
        self._held.pop((stage, name), None)
        kept = [(key, held) for key, held in self._held.items() if key[0] == stage]
        self._held = dict([*kept[max(0, len(kept) + 1 - most) :], ((stage, name), weights)])

    def missing_peers(self, stage: int, digest: bytes) -> tuple[int, ...] | None:
        """See :class:`ClientStore`."""
        return self._closed.get((stage, digest))

    def close_exchange(self, stage: int, digest: bytes, missing_peers: tuple[int, ...]) -> None:
        """See :class:`ClientStore`."""
        self._closed[stage, digest] = missing_peers

    def note(self, name: str) -> bytes | None:
        """See :class:`ClientStore`."""
        return self._notes.get(name)

    def put_note(self, name: str, content: bytes) -> None:
        """See :class:`ClientStore`."""
        self._notes[name] = content

    def forget(self) -> None:
        """See :class:`ClientStore`."""
        self._notes.clear()
        self._rows.clear()
        self._weights.clear()
        self._held.clear()
        self._closed.clear()


class FolderStore:
    """A folder for each client and job; files are written beside and renamed.

    Args:
        folder: Belongs to this store alone.
        durable: What is put outlives a power cut, not only the process.
        book: Kept elsewhere; one in the folder if None.
        held: Where weights of messages are held; in the folder if None.
    """

    def __init__(
        self,
        folder: Path,
        *,
        durable: bool = False,
        book: AnswerBook | None = None,
        held: SharedWeights | None = None,
    ) -> None:
        self._held = held
        self._folder = folder
        self._durable = durable
        self.book = book or AnswerBook(LineLog(folder / "answers.jsonl", durable=durable))

    def rows(self, stage: int, digest: bytes) -> Features | None:
        """See :class:`ClientStore`."""
        dense = self._array(_name(stage, digest, "npy"), dimensions=2)
        return self._sparse(_name(stage, digest, "npz")) if dense is None else dense

    def put_rows(self, stage: int, digest: bytes, rows: Features) -> None:
        """See :class:`ClientStore`."""
        if isinstance(rows, np.ndarray):
            self._put_array(_name(stage, digest, "npy"), rows)
            return
        content = io.BytesIO()
        arrays = {"data": rows.data, "indices": rows.indices, "indptr": rows.indptr}
        np.savez(content, shape=np.array(rows.shape), **arrays)
        self._put_whole(_name(stage, digest, "npz"), content.getvalue())

    def weights(self, stage: int, digest: bytes) -> np.ndarray | None:
        """See :class:`ClientStore`."""
        return self._array(_name(stage, digest, "weights.npy"), dimensions=1)

    def put_weights(self, stage: int, digest: bytes, weights: np.ndarray) -> None:
        """See :class:`ClientStore`."""
        self._put_array(_name(stage, digest, "weights.npy"), weights)

    def held_weights(self, stage: int, name: bytes) -> np.ndarray | None:
        """See :class:`ClientStore`; damaged ones are as good as none."""
        if self._held is not None:
            return self._held.held_weights(stage, name)
        with suppress(CheckpointError):
            return self._array(_held_name(stage, name), dimensions=1)
        return None

    def hold_weights(self, stage: int, name: bytes, weights: np.ndarray, *, most: int) -> None:
        """See :class:`ClientStore`."""
        if self._held is not None:
            self._held.hold_weights(stage, name, weights, most=most)
            return
        kept = _held_name(stage, name)
        self._put_array(kept, weights)
        held = sorted(self._folder.glob("held-*.npy"), key=_written_ns)
        older = [p for p in held if p.name.startswith(_held_name(stage)) and p.name != kept]
        for path in {*held} - {*older[max(0, len(older) + 1 - most) :], self._folder / kept}:
            path.unlink(missing_ok=True)
            path.with_name(f"{path.name}.crc32").unlink(missing_ok=True)

    def missing_peers(self, stage: int, digest: bytes) -> tuple[int, ...] | None:
        """See :class:`ClientStore`."""
        text = self._text(_name(stage, digest, "json"))
        if text is None:
            return None
        try:
            peers = json.loads(text)
        except (ValueError, RecursionError):
            peers = None
        if not isinstance(peers, list) or not all(type(p) is int and p >= 0 for p in peers):
            raise CheckpointError(f"{self._folder}: the record of exchange {stage} is damaged")
        return tuple(peers)

    def close_exchange(self, stage: int, digest: bytes, missing_peers: tuple[int, ...]) -> None:
        """See :class:`ClientStore`."""
        self._write(_name(stage, digest, "json"), json.dumps(missing_peers).encode())

    def note(self, name: str) -> bytes | None:
        """See :class:`ClientStore`."""
        path = self._folder / name
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error

    def put_note(self, name: str, content: bytes) -> None:
        """See :class:`ClientStore`."""
        self._write(name, content, private=True)

    def forget(self) -> None:
        """See :class:`ClientStore`; what other clients hold, too, stays theirs."""
        self._held = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def _array(self, name: str, *, dimensions: int) -> np.ndarray | None:
        path = self._folder / name
        if not self._is_there(path):
            return None
        array = open_npy(path, error=CheckpointError)
        if array.ndim != dimensions or array.dtype.kind != "f":
            raise CheckpointError(
                f"{path}: damaged ({array.dtype} of shape {array.shape}; expected rows of floats)"
            )
        return array

    def _sparse(self, name: str) -> csr_array | None:
        path = self._folder / name
        if not self._is_there(path):
            return None
        with open_npz(path, error=CheckpointError) as file:
            data, indices, indptr, shape = map(file.read, ("data", "indices", "indptr", "shape"))
        try:
            rows = csr_array((data, indices, indptr), shape=tuple(map(int, shape)))
            rows.check_format(full_check=True)
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: damaged ({error})") from error
        if rows.ndim != 2 or rows.dtype.kind != "f":
            raise CheckpointError(
                f"{path}: damaged ({rows.dtype} of shape {rows.shape}; expected rows of floats)"
            )
        return rows

    def _put_array(self, name: str, array: np.ndarray) -> None:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, np.lib.format.header_data_from_array_1_0(np.ascontiguousarray(array))
        )
        self._put_whole(name, header.getvalue(), np.ascontiguousarray(array).tobytes())

    def _put_whole(self, name: str, *content: bytes) -> None:
        # The checksum first: an array that has none is not whole.
        self._write(f"{name}.crc32", _checksum(content).encode())
        self._write(name, *content)

    def _text(self, name: str) -> str | None:
        path = self._folder / name
        try:
            return path.read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error

    def _is_there(self, path: Path) -> bool:
        """Return whether there is a file, which is whole."""
        try:
            self._check_whole(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
        return True

    def _check_whole(self, path: Path) -> None:
        """Compare rows with their checksum; damaged ones are removed, so that they are made anew.

        Raises:
            CheckpointError: They do not fit.
            OSError: They cannot be read.
        """
        with path.open("rb") as file:
            found = _checksum(iter(partial(file.read, _CHUNK_BYTES), b""))
        if self._text(f"{path.name}.crc32") != found:
            path.unlink(missing_ok=True)
            raise CheckpointError(
                f"{path}: damaged (its checksum does not fit its content) and removed; "
                "a resume computes these rows again"
            )

    def _write(self, name: str, *content: bytes, private: bool = False) -> None:
        try:
            write_whole(self._folder / name, content, durable=self._durable, private=private)
        except OSError as error:
            raise CheckpointError(
                f"{self._folder / name}: could not be written ({error.strerror})"
            ) from error


class SharedWeights:
    """Held weights of all clients of a job, in one of the processes that have them.

    All clients get the same weights in a round, so one copy serves them all; a client that is asked
    in another process finds it in the folder.

    Args:
        folder: Of all processes, for nothing else.
    """

    def __init__(self, folder: Path) -> None:
        self._files = FolderStore(folder)
        self._memory = MemoryStore()
        self._latest: tuple[int, bytes] | None = None

    def held_weights(self, stage: int, name: bytes) -> np.ndarray | None:
        """See :class:`ClientStore`."""
        found = self._memory.held_weights(stage, name)
        return self._files.held_weights(stage, name) if found is None else found

    def hold_weights(self, stage: int, name: bytes, weights: np.ndarray, *, most: int) -> None:
        """See :class:`ClientStore`."""
        if self._latest == (stage, name):
            return
        self._memory.hold_weights(stage, name, weights, most=most)
        self._files.hold_weights(stage, name, weights, most=most)
        self._latest = (stage, name)


def _written_ns(path: Path) -> int:
    """Return when a file was written; 0 where another process has removed it."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _checksum(content: Iterable[bytes]) -> str:
    """Return a CRC-32, against damage on the disk."""
    crc = 0
    for piece in content:
        crc = zlib.crc32(piece, crc)
    return f"{crc:08x}"


def _held_name(stage: int, name: bytes | None = None) -> str:
    return f"held-{stage}-" if name is None else f"held-{stage}-{name.hex()}.npy"


def _name(stage: int, digest: bytes, ending: str) -> str:
    return f"stage-{stage}-{digest[:8].hex()}.{ending}"
