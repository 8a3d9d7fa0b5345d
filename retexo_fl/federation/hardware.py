"""What a run was computed on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def describe_machine() -> dict[str, Any]:
    """Return CPU, cores and memory of this machine."""
    cpu = platform.processor() or platform.machine()
    memory_gib = None
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("model name", "Model")):
                cpu = line.partition(":")[2].strip()
                break
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        memory_gib = round(int(meminfo.read_text(encoding="ascii").split()[1]) / 2**20, 1)
    return {"cpu": cpu, "cores": os.cpu_count(), "memory_gib": memory_gib}
