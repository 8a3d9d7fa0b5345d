"""How much memory a device has left."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

import torch

_MEMORY_FACTS: Final = Path("/proc/meminfo")
_AVAILABLE: Final = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)


def free_bytes(device: torch.device) -> int:
    """Return the bytes that can be taken now, on a GPU or of the machine's memory.

    Files that Linux keeps in memory and would evict count as free. A system that does not report
    what is free is taken for empty.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        found = _AVAILABLE.search(_MEMORY_FACTS.read_text(encoding="ascii"))
    except OSError:
        found = None
    if found is None:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(found[1]) * 1024
