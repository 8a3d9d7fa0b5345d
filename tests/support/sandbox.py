"""What a unit of systemd lets its processes do, and what a traced process did."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest


def require_tracing() -> None:
    """Skip the calling test where system calls cannot be compared with a unit's."""
    if shutil.which("strace") is None or shutil.which("systemd-analyze") is None:
        pytest.skip("strace or systemd-analyze is not installed (Debian: strace, systemd)")


def settings_of(unit: str) -> dict[str, str]:
    """Return the settings of a unit or a drop-in; values of one that stands twice are joined."""
    found: dict[str, str] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", unit, re.M):
        found[name] = f"{found[name]} {value}" if name in found else value
    return found


def allowed_calls(words: str) -> set[str]:
    """Return the system calls of ``SystemCallFilter``'s value: names, and groups of systemd's."""
    found: set[str] = set()
    for word in words.split():
        found |= _calls_of_group(word) if word.startswith("@") else {word}
    return found


def _calls_of_group(group: str) -> set[str]:
    told = subprocess.run(
        ["systemd-analyze", "syscall-filter", "--no-pager", group],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    ).stdout
    lines = (line.strip() for line in told.splitlines()[1:])
    return allowed_calls(" ".join(line for line in lines if not line.startswith("#")))


def traced_calls(trace: Path) -> set[str]:
    """Return the names of the system calls in what ``strace -f -o`` wrote."""
    return set(re.findall(r"^\d+ +(\w+)\(", trace.read_text(errors="replace"), re.M))


def traced_families(trace: Path) -> set[str]:
    """Return the families of the sockets that were made."""
    return set(re.findall(r"^\d+ +socket(?:pair)?\((\w+)", trace.read_text(errors="replace"), re.M))
