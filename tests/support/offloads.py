"""Whether an interface hands over several packets as one: off for counters that count.

A program, run inside a namespace with the names of interfaces, switches it off: ``python
offloads.py eth0``.
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct
import sys

_SIOCETHTOOL = 0x8946
#: linux/ethtool.h: ETHTOOL_SRXCSUM, STXCSUM, SSG, STSO, SGSO, SGRO.
_JOINING = 0x2C
_SETTINGS = (0x15, 0x17, 0x19, 0x1F, 0x24, _JOINING)


def switch_off(interface: str) -> None:
    """Switch off checksum, segmentation and receive offloads of an interface of this namespace."""
    for setting in _SETTINGS:
        _set(interface, setting, 0)


def join_packets(interface: str) -> None:
    """Have an interface of this namespace join what arrives (GRO); a cable gets NAPI by it."""
    _set(interface, _JOINING, 1)


def _set(interface: str, setting: int, value: int) -> None:
    request = array.array("I", (setting, value))
    where = struct.pack("16sP16x", interface.encode(), request.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCETHTOOL, where)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        switch_off(name)
