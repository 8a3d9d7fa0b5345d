"""NumPy's array format, read with distrust: a header is believed only when the bytes are there."""

from __future__ import annotations

import io
import math
import os
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Literal

import numpy as np
from numpy.lib import format as npy_format

from retexo_fl.errors import RetexoError
from retexo_fl.units import counted, format_bytes

#: Smaller arrays are read into memory. A mapping keeps a file descriptor open, and thousands of
#: clients in one process would run out of them. Chosen; not tuned.
MAPPED_FROM_BYTES: Final = 2**20
#: Of an array's header, as in NumPy; that of a plain array has 118.
_MOST_HEADER_BYTES: Final = 10_000

#: What is read of a compressed array in one go.
_CHUNK_BYTES: Final = 2**20
#: The others unpack without bound as soon as a byte is asked for.
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
#: That every NumPy takes.
_MOST_DIMENSIONS: Final = 32
#: By version: what reads a header, and how its length is written before it.
_READERS: Final = {
    (1, 0): (npy_format.read_array_header_1_0, struct.Struct("<H")),
    (2, 0): (npy_format.read_array_header_2_0, struct.Struct("<I")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayHeader:
    """What comes before the data of a ``.npy`` file.

    Attributes:
        shape: Of the array.
        dtype: Of the array, without Python objects.
        order: ``C`` or ``F``, as in ``numpy.reshape``.
        offset: Bytes before the data.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    order: Literal["C", "F"]
    offset: int

    @property
    def data_bytes(self) -> int:
        """Bytes of the data."""
        return math.prod(self.shape) * self.dtype.itemsize

    def array(self, content: bytes) -> np.ndarray:
        """Return the array whose data are ``content``, read-only."""
        return np.frombuffer(content, dtype=self.dtype).reshape(self.shape, order=self.order)


def memory_bytes() -> int:
    """Return the size of this machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def open_npy(path: Path, *, error: type[RetexoError]) -> np.ndarray:
    """Open an array, mapped from the file if it is large.

    Args:
        path: A ``.npy`` file.
        error: Class of the error for everything that is wrong with it.

    Returns:
        A read-only array.

    Raises:
        RetexoError: Of the class ``error``.
    """
    try:
        with path.open("rb") as file:
            size_bytes = path.stat().st_size
            header = _read_header(file, size_bytes, where=str(path), error=error)
            if header.data_bytes < MAPPED_FROM_BYTES:
                content = file.read(header.data_bytes)
                return header.array(content)
        mapped = np.memmap(
            path,
            dtype=header.dtype,
            mode="r",
            offset=header.offset,
            shape=header.shape,
            order=header.order,
        )
    except OSError as problem:
        raise error(f"{path}: cannot be read ({problem.strerror})") from problem
    return np.asarray(mapped)


class NpzArchive:
    """The arrays of a ``.npz`` file; use :func:`open_npz`."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, error: type[RetexoError]) -> None:
        self._path = path
        self._archive = archive
        self._error = error
        self.names = frozenset(
            name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")
        )

    def header(self, name: str) -> ArrayHeader:
        """Return an array's header, without reading the array."""
        with self._member(name) as (file, size_bytes):
            return self._header(name, file, size_bytes)

    def read(self, name: str) -> np.ndarray:
        """Read an array; refuse one that this machine's memory does not hold."""
        with self._member(name) as (file, size_bytes):
            header = self._header(name, file, size_bytes)
            self.check_memory(header)
            content = file.read(header.data_bytes)
        self._check_whole(name, len(content), header)
        return header.array(content)

    def chunks(self, name: str) -> Iterator[np.ndarray]:
        """Read an array [N] or [N, ...] of C order as flat arrays of about 1 MiB, one by one."""
        with self._member(name) as (file, size_bytes):
            header = self._header(name, file, size_bytes)
            at_once = max(1, _CHUNK_BYTES // header.dtype.itemsize) * header.dtype.itemsize
            found = 0
            while content := file.read(min(at_once, header.data_bytes - found)):
                found += len(content)
                if len(content) % header.dtype.itemsize:
                    break
                yield np.frombuffer(content, dtype=header.dtype)
        self._check_whole(name, found, header)

    def check_memory(self, *headers: ArrayHeader) -> None:
        """Refuse arrays that are together larger than this machine's memory.

        A file of 1 MB may claim, and unpack to, a thousand times as much.
        """
        claimed = sum(header.data_bytes for header in headers)
        if claimed > memory_bytes():
            raise self._error(
                f"{self._path}: its arrays take {format_bytes(claimed)}, and the machine has "
                f"{format_bytes(memory_bytes())}"
            )

    def _check_whole(self, name: str, found_bytes: int, header: ArrayHeader) -> None:
        if found_bytes != header.data_bytes:
            raise self._error(
                f"{self._path}: {name}: got {counted(found_bytes, 'byte')}; expected "
                f"{header.data_bytes}"
            )

    def _header(self, name: str, file: IO[bytes], size_bytes: int) -> ArrayHeader:
        where = f"{self._path}: {name}"
        return _read_header(file, size_bytes, where=where, error=self._error)

    @contextmanager
    def _member(self, name: str) -> Iterator[tuple[IO[bytes], int]]:
        if name not in self.names:
            raise self._error(
                f"{self._path}: {name}: missing; the file has {', '.join(sorted(self.names))}"
            )
        try:
            info = self._archive.getinfo(f"{name}.npy")
            if info.compress_type not in _METHODS:
                raise self._error(
                    f"{self._path}: {name}: compressed by method {info.compress_type}; expected "
                    "none or deflate, as NumPy does"
                )
            with self._archive.open(info) as file:
                yield file, info.file_size
        except (
            OSError,
            EOFError,
            zipfile.BadZipFile,
            zlib.error,
            NotImplementedError,  # a compression method that Python does not know
            RuntimeError,  # an encrypted member
            struct.error,  # a header that is cut off
            ValueError,  # an offset before the file
        ) as problem:
            raise self._error(f"{self._path}: {name}: damaged ({problem})") from problem


@contextmanager
def open_npz(path: Path, *, error: type[RetexoError]) -> Iterator[NpzArchive]:
    """Open a ``.npz`` file.

    Args:
        path: The file.
        error: Class of the error for everything that is wrong with it.

    Raises:
        RetexoError: Of the class ``error``.
    """
    try:
        archive = zipfile.ZipFile(path)
    except OSError as problem:
        raise error(f"{path}: cannot be read ({problem.strerror})") from problem
    except (
        zipfile.BadZipFile,
        NotImplementedError,  # a version of the format that Python does not know
        ValueError,  # a name that is not in the encoding that it claims
    ) as problem:
        raise error(f"{path}: not a .npz file, or damaged ({problem})") from problem
    with archive:
        yield NpzArchive(path, archive, error)


def _read_header(
    file: IO[bytes], size_bytes: int, *, where: str, error: type[RetexoError]
) -> ArrayHeader:
    """Read a header and check that the data it announces is there."""
    try:
        version = npy_format.read_magic(file)
        if version not in _READERS:
            raise error(f"{where}: .npy version {version}; expected 1.0 or 2.0")
        with warnings.catch_warnings():
            # NumPy tries to read a damaged header as one of Python 2, and says so.
            warnings.simplefilter("ignore", UserWarning)
            shape, fortran_order, dtype = _READERS[version][0](_header_text(file, version))
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        MemoryError,
        RecursionError,
        SyntaxError,
        TypeError,
        ValueError,
        tokenize.TokenError,
    ) as problem:
        # NumPy evaluates a literal and makes a dtype of it, which fail in all these ways.
        raise error(f"{where}: not an array in NumPy's format ({problem})") from problem
    if dtype.hasobject:
        raise error(f"{where}: holds Python objects; expected plain values")
    if not dtype.itemsize or dtype.subdtype is not None or not _is_shape(shape):
        raise error(f"{where}: {len(shape)} dimensions of {dtype}; expected an array of values")
    order: Literal["C", "F"] = "F" if fortran_order else "C"
    header = ArrayHeader(shape=shape, dtype=dtype, order=order, offset=file.tell())
    if header.offset + header.data_bytes != size_bytes or min(shape, default=0) < 0:
        raise error(
            f"{where}: {counted(size_bytes, 'byte')}; expected "
            f"{header.offset + header.data_bytes} for {dtype} of shape {shape}"
        )
    return header


def _is_shape(shape: tuple[int, ...]) -> bool:
    return len(shape) <= _MOST_DIMENSIONS and all(
        type(length) is int and length < 2**63 for length in shape
    )


def _header_text(file: IO[bytes], version: tuple[int, int]) -> io.BytesIO:
    """Return a header with its length before it, but none that NumPy would refuse for its length.

    Raises:
        ValueError: It is longer, or cut off.
    """
    form = _READERS[version][1]
    prefix = file.read(form.size)
    if len(prefix) < form.size:
        raise ValueError("its header is cut off")
    (size_bytes,) = form.unpack(prefix)
    if size_bytes > _MOST_HEADER_BYTES:
        raise ValueError(f"a header of {size_bytes} bytes; expected {_MOST_HEADER_BYTES} at most")
    return io.BytesIO(prefix + file.read(size_bytes))
