"""Processor time of kernel threads, as procfs has it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

_NANOSECOND: Final = 1e-9


def thread_that_serves(interface: str) -> int:
    """Return the process id of the kernel thread that takes an interface's packets.

    Raises:
        LookupError: There is not exactly one.
    """
    (found,) = threads_that_serve(interface) or (0,)
    if not found:
        raise LookupError(f"{interface}: no kernel thread takes its packets")
    return found


def threads_that_serve(interface: str) -> list[int]:
    """Return the kernel threads that take packets of interfaces of this name, in any namespace."""
    return _threads(lambda name: name.startswith(f"napi/{interface}-"))


def softirq_threads() -> list[int]:
    """Return the kernel threads that do what interrupts left undone, of all interfaces."""
    return _threads(lambda name: name.startswith("ksoftirqd/"))


def used_s(process: int) -> float:
    """Return the seconds that a process's first thread has run."""
    text = Path(f"/proc/{process}/schedstat").read_text(encoding="ascii")
    return int(text.split()[0]) * _NANOSECOND


def _threads(wanted: Callable[[str], bool]) -> list[int]:
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):  # it ended meanwhile
                if wanted((path / "comm").read_text(encoding="utf-8")):
                    found.append(int(path.name))
    return found
