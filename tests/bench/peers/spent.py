"""Processor time of a process and all that descend of it, those that left their parents too."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

_SET_CHILD_SUBREAPER: Final = 36
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def adopt_orphans() -> None:
    """Become the parent of descendants whose parents end, as daemons' do (Linux)."""
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def tree_s() -> float:
    """Return the CPU seconds of this process, its descendants, and those of them that ended."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            text = (place / "stat").read_text(encoding="ascii", errors="replace")
        except OSError:  # It ended meanwhile.
            continue
        fields = text.rpartition(")")[2].split()
        process = int(place.name)
        parents[process] = int(fields[1])
        ticks[process] = sum(map(int, fields[11:15]))
    here = os.getpid()
    return sum(ticks[one] for one in ticks if _descends(one, here, parents)) / _TICKS


def _descends(process: int, ancestor: int, parents: dict[int, int]) -> bool:
    while process != ancestor:
        if process not in parents:
            return False
        process = parents[process]
    return True
