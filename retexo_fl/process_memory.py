"""How much memory a process may have, and what one takes before it has a graph."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

#: A client's process without a part (docs/edge.md), and a worker process (docs/devices.md).
PROCESS_BYTES: Final = 300_000_000
WORKER_BYTES: Final = 160_000_000
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
