"""How much memory a process may have, what one takes before it has a graph, what it gives back."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

#: A client's process without a part (docs/edge.md), and a worker process (docs/devices.md).
PROCESS_BYTES: Final = 300_000_000
WORKER_BYTES: Final = 160_000_000
#: Of the kernel's ``madvise``.
_DONT_NEED: Final = 4
_MAPPINGS: Final = Path("/proc/self/maps")
_LIBRARY: Final = re.compile(r"^/.*\.so(\.[0-9.]+)?$")
#: ``Elf64_Ehdr`` and ``Elf64_Phdr`` of elf(5), little-endian.
_ELF64: Final = b"\x7fELF\x02\x01"
_HEADER: Final = struct.Struct("<32sQ14xHH4x")
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
_LOADED: Final = 1
_WRITABLE: Final = 2
_PAGE: Final = mmap.PAGESIZE
_CONTROL_GROUP: Final = Path("/proc/self/cgroup")
_CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Return the memory that this process may have: the machine's, or its control groups' limit."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        name = _CONTROL_GROUP.read_text(encoding="utf-8").rpartition("::/")[2].strip()
    except OSError:
        return found
    group = _CONTROL_GROUPS / name
    for folder in (group, *group.parents):
        try:
            found = min(found, int((folder / "memory.max").read_text(encoding="ascii")))
        except (OSError, ValueError):  # Not there, or "max".
            continue
    return found


def return_unused() -> None:
    """Return freed memory to the system, and what libraries have in memory as it is in their files.

    The system reads that again where it is used. To load PyTorch executes code all over it, once.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
    for address, length in _unwritable():
        library.madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), _DONT_NEED)


def _unwritable() -> Iterator[tuple[int, int]]:
    """Yield address and length of whole pages that a library's file has as code or constants.

    What the loader writes to, such as addresses, is in segments that may be written, also where
    they are protected after that. So a library that another thread loads meanwhile loses nothing,
    and Python unloads none. The loader itself is not asked: its lock and Python's may meet.
    """
    try:
        lines = _MAPPINGS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    bases: dict[str, tuple[int, int]] = {}
    for text in lines:
        place, _, _, _, inode, *path = text.split(maxsplit=5)
        if path and _LIBRARY.search(path[0]):
            # The first that is listed is the lowest.
            bases.setdefault(path[0], (int(place.partition("-")[0], 16), int(inode)))
    for name, (base, number) in bases.items():
        for begin, end in _read_only(Path(name), number):
            first, last = -(-(base + begin) // _PAGE) * _PAGE, (base + end) // _PAGE * _PAGE
            if first < last:
                yield first, last - first


def _read_only(path: Path, inode: int) -> list[tuple[int, int]]:
    """Return where segments begin and end that nobody may write to, from the file's lowest page.

    Args:
        path: A library.
        inode: Of the file that is in memory; none are returned of another one.
    """
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_ino != inode:
                return []
            head = file.read(_HEADER.size)
            if len(head) < _HEADER.size or not head.startswith(_ELF64):
                return []
            place, size, count = _HEADER.unpack(head)[1:]
            file.seek(place)
            table = file.read(size * count)
    except OSError:
        return []
    if size != _SEGMENT.size or len(table) != size * count:
        return []
    loaded = [
        (address, address + length, flags)
        for kind, flags, _, address, _, _, length, _ in _SEGMENT.iter_unpack(table)
        if kind == _LOADED
    ]
    lowest = min((begin for begin, _, _ in loaded), default=0) // _PAGE * _PAGE
    return [(begin - lowest, end - lowest) for begin, end, flags in loaded if not flags & _WRITABLE]
