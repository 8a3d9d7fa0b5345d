"""The machine itself: Python, packages, clock, disk."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.version import Version

from retexo_fl.doctor.finding import Finding, bad, doubtful, good
from retexo_fl.units import format_bytes

#: The distribution whose requirements are looked at.
_DISTRIBUTION: Final = "retexo-fl"
#: What a training cannot go without, and where two versions matter.
_PACKAGES: Final = ("torch", "flwr", "numpy", "scipy", "cryptography")
_OLDEST_PYTHON: Final = (3, 11)
#: Below this much free disk a checkpoint or the blocks of an exchange may not fit.
_LITTLE_DISK_BYTES: Final = 1_000_000_000
#: Certificates begin a day in the past; within this the clocks of a federation may differ.
_CLOCK_TOLERANCE_S: Final = 60.0
_WRONG_CLOCK_S: Final = 6 * 3600.0


def examine_machine() -> Iterator[Finding]:
    """Look at Python and at the packages that a training needs."""
    yield _python()
    requirements = _requirements()
    for name in _PACKAGES:
        yield _package(name, requirements.get(name))


def _python() -> Finding:
    seen = f"{platform.python_version()} on {platform.machine()}"
    if sys.version_info < _OLDEST_PYTHON:
        return bad("python", seen, "install Python 3.11 or later")
    return good("python", seen)


def _requirements() -> Mapping[str, Requirement]:
    """Return what this installation demands, by name, for this machine."""
    try:
        lines = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return {}
    wanted = (Requirement(line) for line in lines)
    return {
        item.name.lower(): item
        for item in wanted
        if item.marker is None or item.marker.evaluate({"extra": ""})
    }


def _package(name: str, wanted: Requirement | None) -> Finding:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return bad(name, "not installed", "install retexo_fl into this environment (README, Start)")
    if wanted is not None and not wanted.specifier.contains(Version(version), prereleases=True):
        advice = f"pip install '{name}{wanted.specifier}'"
        return bad(name, f"{version}; expected {wanted.specifier}", advice)
    return good(name, version)


def examine_disk(thing: str, folder: Path) -> Finding:
    """Look at a folder that is written to, or at the nearest one above it that exists.

    Args:
        thing: What the folder is.
        folder: It need not exist yet.
    """
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return bad(thing, f"{there} cannot be written to", "make it, and chown it to this user")
    found = os.statvfs(there)
    free_bytes = found.f_bavail * found.f_frsize
    seen = f"{folder}, {format_bytes(free_bytes)} free"
    if free_bytes < _LITTLE_DISK_BYTES:
        return doubtful(thing, seen, "free some space: checkpoints and vectors are kept there")
    if found.f_favail == 0 and found.f_files:
        return bad(thing, f"{folder}, no free inode", "remove files: no new one can be created")
    return good(thing, seen)


def judge_clock(offset_s: float) -> Finding:
    """Judge how far this machine's clock is ahead of the server's.

    Args:
        offset_s: Seconds; negative where it is behind.
    """
    seen = f"{abs(offset_s):.0f} s {'ahead of' if offset_s > 0 else 'behind'} the server's"
    advice = "synchronise it: timedatectl set-ntp true"
    if abs(offset_s) > _WRONG_CLOCK_S:
        return bad("clock", seen, f"{advice}; with a wrong clock, certificates are refused")
    if abs(offset_s) > _CLOCK_TOLERANCE_S:
        return doubtful("clock", seen, advice)
    return good("clock", "as the server's" if abs(offset_s) < 2 else seen)
