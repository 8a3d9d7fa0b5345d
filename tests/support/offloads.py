"""Switch off what lets an interface hand over several packets as one, for counters that count.

A program, run inside a namespace with the names of interfaces: ``python offloads.py eth0``.
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct
import sys

_SIOCETHTOOL = 0x8946
#: linux/ethtool.h: ETHTOOL_SRXCSUM, STXCSUM, SSG, STSO, SGSO, SGRO.
_SETTINGS = (0x15, 0x17, 0x19, 0x1F, 0x24, 0x2C)


def switch_off(interface: str) -> None:
    """Switch off checksum, segmentation and receive offloads of an interface of this namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for setting in _SETTINGS:
            value = array.array("I", (setting, 0))
            request = struct.pack("16sP16x", interface.encode(), value.buffer_info()[0])
            fcntl.ioctl(control, _SIOCETHTOOL, request)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        switch_off(name)
