"""Arrays in memory that worker processes read without a copy: one file without a name.

On Linux a memfd, which needs no ``/dev/shm`` (a container's may hold 64 MB) and vanishes with its
last user; elsewhere a temporary file that is unlinked at once. Processes pass on its descriptor.
"""

from __future__ import annotations

import mmap
import os
import re
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

import numpy as np
import torch

from retexo_fl.errors import DeviceFailed

#: Each array begins on a cache line, which vector instructions need.
ALIGNMENT_BYTES: Final = 64
_MEMORY_FACTS: Final = Path("/proc/meminfo")
_AVAILABLE: Final = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)
_KILOBYTE: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one array is in the memory.

    Attributes:
        name: Of the array.
        dtype: Its element type, as ``numpy.dtype.str``.
        shape: Its sizes.
        offset_bytes: Its begin.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int


Access = Literal["read", "write", "copy"]
_ACCESSES: Final[dict[Access, int]] = {
    "read": mmap.ACCESS_READ,
    "write": mmap.ACCESS_WRITE,
    "copy": mmap.ACCESS_COPY,
}

#: Where all arrays are.
Layout = tuple[Place, ...]


class SharedArrays:
    """Arrays in memory that other processes can map; a context manager that releases it."""

    def __init__(self, descriptor: int, layout: Layout) -> None:
        self.descriptor = descriptor
        self.layout = layout

    @classmethod
    def holding(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """Copy arrays into new memory.

        Raises:
            DeviceFailed: The machine has not that much memory; nothing is left behind.
        """
        shared = cls._made(_lay_out({name: (a.dtype, a.shape) for name, a in arrays.items()}))
        copies = shared.mapped("write")
        for name, array in arrays.items():
            np.copyto(copies[name], array)
        return shared

    @classmethod
    def zeros(cls, shapes: Mapping[str, tuple[int, ...]], dtype: np.dtype[Any]) -> Self:
        """Make arrays of zeros.

        Raises:
            DeviceFailed: As :meth:`holding`.
        """
        return cls._made(_lay_out({name: (dtype, shape) for name, shape in shapes.items()}))

    def mapped(self, access: Access) -> dict[str, np.ndarray]:
        """Return the arrays by name; they stay valid when this object is closed.

        Args:
            access: ``read`` forbids writing, ``write`` writes what others read, ``copy`` keeps
                what is written to itself.
        """
        memory = mmap.mmap(self.descriptor, _total_bytes(self.layout), access=_ACCESSES[access])
        return {place.name: _array_at(memory, place) for place in self.layout}

    def close(self) -> None:
        """Release the memory; it is freed once no process has it mapped."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    def _made(cls, layout: Layout) -> Self:
        total_bytes = _total_bytes(layout)
        available_bytes = free_bytes()
        if available_bytes is not None and total_bytes > available_bytes:
            raise _no_room(total_bytes, f"{available_bytes / 1e6:.0f} MB are free")
        descriptor = _nameless_file()
        try:
            _reserve(descriptor, total_bytes)
        except OSError as error:
            os.close(descriptor)
            raise _no_room(total_bytes, str(error.strerror)) from error
        return cls(descriptor, layout)


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """Return a tensor over a read-only array, without PyTorch's warning; do not write to it.

    To be called while a task is made: warnings are silenced for the whole process meanwhile.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


def _lay_out(arrays: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]) -> Layout:
    places, offset = [], 0
    for name, (dtype, shape) in arrays.items():
        assert not dtype.hasobject, f"{name} holds Python objects, which cannot be shared"
        place = Place(name=name, dtype=dtype.str, shape=tuple(shape), offset_bytes=offset)
        places.append(place)
        offset = -(-_end_bytes(place) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return tuple(places)


def _total_bytes(layout: Layout) -> int:
    # Memory of no bytes cannot be mapped.
    return max((_end_bytes(place) for place in layout), default=0) or ALIGNMENT_BYTES


def _end_bytes(place: Place) -> int:
    size_bytes = np.dtype(place.dtype).itemsize
    for length in place.shape:
        size_bytes *= length
    return place.offset_bytes + size_bytes


def _array_at(memory: mmap.mmap, place: Place) -> np.ndarray:
    return np.ndarray(place.shape, place.dtype, buffer=memory, offset=place.offset_bytes)


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("retexo-devices", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _reserve(descriptor: int, total_bytes: int) -> None:
    """Claim the memory now: a page that is missing later would end the process with SIGBUS."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, total_bytes)
    else:
        os.ftruncate(descriptor, total_bytes)


def free_bytes() -> int | None:
    """Return what can be claimed without swapping; None where that is unknown.

    Asked first, since claiming too much makes Linux end some process instead of saying no.
    """
    try:
        found = _AVAILABLE.search(_MEMORY_FACTS.read_text(encoding="ascii"))
    except OSError:
        return None
    return None if found is None else int(found[1]) * _KILOBYTE


def _no_room(total_bytes: int, why: str) -> DeviceFailed:
    return DeviceFailed(
        f"no room for {total_bytes / 1e6:.0f} MB of shared memory ({why}); devices = cpu needs none"
    )
