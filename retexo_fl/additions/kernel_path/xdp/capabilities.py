"""The privileges that the kernel path takes: which are held, which are missing, and letting go.

Linux splits what root may do into capabilities, which each thread holds or not. Loading a program
takes ``CAP_BPF`` and ``CAP_PERFMON``, attaching one ``CAP_NET_ADMIN``; nothing takes any of them
afterwards. An agent therefore holds them until its programs are attached, and then drops them.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Set
from enum import IntEnum
from pathlib import Path
from typing import Final

from retexo_fl.errors import ChannelUnavailable

_STATUS: Final = Path("/proc/thread-self/status")
_EFFECTIVE: Final = re.compile(r"^CapEff:\s*([0-9a-f]+)$", re.MULTILINE)
#: linux/capability.h: two words of 32 bits, each with its effective, permitted, inheritable part.
_VERSION: Final = 0x20080522
_Words = ctypes.c_uint32 * 6


class Capability(IntEnum):
    """Those that matter here, with the kernel's numbers."""

    CAP_NET_ADMIN = 12
    CAP_NET_RAW = 13
    CAP_SYS_ADMIN = 21
    CAP_PERFMON = 38
    CAP_BPF = 39


#: What loading and attaching needs; ``CAP_SYS_ADMIN`` includes the first two.
NEEDED: Final = (Capability.CAP_BPF, Capability.CAP_PERFMON, Capability.CAP_NET_ADMIN)
_IMPLIED_BY_ADMIN: Final = frozenset({Capability.CAP_BPF, Capability.CAP_PERFMON})


class _Header(ctypes.Structure):
    """``struct __user_cap_header_struct``; thread 0 is the calling one."""

    _fields_ = (("version", ctypes.c_uint32), ("thread", ctypes.c_int))


def held_capabilities() -> frozenset[Capability]:
    """Return which of the capabilities that matter this thread holds, as procfs has them.

    Raises:
        ChannelUnavailable: There is no procfs.
    """
    try:
        found = _EFFECTIVE.search(_STATUS.read_text(encoding="ascii"))
    except OSError as error:
        raise ChannelUnavailable(f"{_STATUS}: {error.strerror}") from error
    mask = int(found[1], 16) if found else 0
    return frozenset(each for each in Capability if mask >> each & 1)


def missing_capabilities(held: Set[Capability] | None = None) -> tuple[str, ...]:
    """Return the names of those that loading and attaching takes and that are not held.

    Args:
        held: Those that are; None for this thread's.
    """
    there = held_capabilities() if held is None else held
    if Capability.CAP_SYS_ADMIN in there:
        there = there | _IMPLIED_BY_ADMIN
    return tuple(each.name for each in NEEDED if each not in there)


def drop_after_loading() -> None:
    """Give up for good every capability named in :class:`Capability`, and keep all others.

    It holds for this thread and for those that it starts afterwards: the kernel knows capabilities
    of threads only, so call it before others are started; those keep theirs. Programs that are
    attached stay, and detaching them takes none.

    Raises:
        ChannelUnavailable: The kernel refused.
    """
    library = ctypes.CDLL(None, use_errno=True)
    header, words = _Header(version=_VERSION, thread=0), _Words()
    if library.capget(ctypes.byref(header), words):
        raise ChannelUnavailable(f"read capabilities: {os.strerror(ctypes.get_errno())}")
    for each in Capability:
        word, bit = divmod(int(each), 32)
        for part in range(3):
            words[3 * word + part] &= ~(1 << bit)
    if library.capset(ctypes.byref(header), words):
        raise ChannelUnavailable(f"drop capabilities: {os.strerror(ctypes.get_errno())}")
