"""Maps of a BPF object: looked up by key, seen as arrays, and ring buffers read."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from retexo_fl.additions.kernel_path.xdp.library import RING_SAMPLE, failure, libbpf, possible_cpus
from retexo_fl.errors import ChannelUnavailable

#: ``BPF_MAP_TYPE_PERCPU_HASH``, ``_PERCPU_ARRAY`` and ``_LRU_PERCPU_HASH`` of linux/bpf.h.
_PERCPU_TYPES: Final = frozenset({5, 6, 10})


class BpfMap:
    """One map of an object.

    Args:
        handle: ``struct bpf_map *``.
    """

    def __init__(self, handle: int) -> None:
        self._library = libbpf()
        self._handle = handle
        self.name: str = self._library.bpf_map__name(handle).decode()

    @property
    def fd(self) -> int:
        """Its file descriptor, once loaded."""
        return int(self._library.bpf_map__fd(self._handle))

    @property
    def max_entries(self) -> int:
        """How many entries it has, or may have."""
        return int(self._library.bpf_map__max_entries(self._handle))

    @property
    def value_bytes(self) -> int:
        """Size of one entry's value."""
        return int(self._library.bpf_map__value_size(self._handle))

    def resize(self, entries: int) -> None:
        """Set the number of entries before loading (bytes of a ring buffer)."""
        code = self._library.bpf_map__set_max_entries(self._handle, entries)
        if code:
            raise failure(f"map {self.name} of {entries} entries", code)

    def initial_value(self) -> tuple[int, int]:
        """Return address and size of the contents that a map of variables begins with."""
        size = ctypes.c_size_t()
        where = self._library.bpf_map__initial_value(self._handle, ctypes.byref(size))
        return int(where), size.value

    def array(self, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return the memory of an array map, not a copy: what either side writes, both see.

        The map must have ``BPF_F_MMAPABLE`` and values of a multiple of 8 bytes. The memory lives
        as long as the array does.

        Args:
            dtype: Of one value; ``np.dtype((np.int32, 16))`` adds a dimension.

        Raises:
            ChannelUnavailable: The kernel does not map it.
        """
        wanted = np.dtype(dtype)
        if wanted.itemsize != self.value_bytes:
            raise ValueError(f"map {self.name}: values of {self.value_bytes} B, not {wanted}")
        try:
            memory = mmap.mmap(self.fd, self.max_entries * self.value_bytes)
        except OSError as error:
            raise ChannelUnavailable(f"map {self.name}: {error.strerror}") from error
        return np.frombuffer(memory, dtype=wanted, count=self.max_entries)

    def lookup(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if there is none.

        A map that keeps values per processor gives all of them, one after the other, each padded
        to a multiple of 8 bytes.
        """
        size = self.value_bytes
        if self._library.bpf_map__type(self._handle) in _PERCPU_TYPES:
            size = (size + 7) // 8 * 8 * possible_cpus()
        value = ctypes.create_string_buffer(size)
        return None if self._library.bpf_map_lookup_elem(self.fd, key, value) else value.raw

    def update(self, key: bytes, value: bytes) -> None:
        """Set the value of a key (all processors' values, laid out as :meth:`lookup` gives them).

        Raises:
            ChannelUnavailable: The kernel refused.
        """
        code = self._library.bpf_map_update_elem(self.fd, key, value, 0)
        if code:
            raise failure(f"map {self.name}, key {key.hex()}", code)

    def delete(self, key: bytes) -> None:
        """Remove a key, if it is there."""
        self._library.bpf_map_delete_elem(self.fd, key)


class RingBuffer:
    """The reading end of a ring buffer map.

    Args:
        source: Of type ``BPF_MAP_TYPE_RINGBUF``, loaded.

    Attributes:
        fd: Becomes readable when something is in it.
    """

    def __init__(self, source: BpfMap) -> None:
        self._library = libbpf()
        self._taken: list[bytes] = []
        self._callback = RING_SAMPLE(self._take)
        self._handle: int | None = self._library.ring_buffer__new(
            source.fd, self._callback, None, None
        )
        if not self._handle:
            raise failure(f"ring buffer {source.name}", 0)
        self.fd = source.fd

    def consume(self) -> list[bytes]:
        """Return what is in it, oldest first; empty if nothing is. Does not wait."""
        if self._handle is not None:
            self._library.ring_buffer__consume(self._handle)
        taken, self._taken = self._taken, []
        return taken

    def close(self) -> None:
        """Let the memory go."""
        if self._handle is not None:
            self._library.ring_buffer__free(self._handle)
            self._handle = None

    def _take(self, _context: int | None, data: int, size: int) -> int:
        self._taken.append(ctypes.string_at(data, size))
        return 0
