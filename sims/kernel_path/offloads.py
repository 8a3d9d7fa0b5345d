"""Features of a network interface, by the names that ``ethtool -k`` prints."""

from __future__ import annotations

import array
import fcntl
import socket
import struct
from collections.abc import Iterable
from functools import cache
from typing import Final

from retexo_fl.errors import ConfigurationError

#: linux/sockios.h, linux/ethtool.h.
_SIOCETHTOOL: Final = 0x8946
_GET_STRINGS: Final = 0x1B
_GET_STRING_COUNT: Final = 0x37
_SET_FEATURES: Final = 0x3B
_OF_FEATURES: Final = 4
_NAME_BYTES: Final = 32

#: What lets a frame that is handed over hold more than one packet, for TCP and for UDP.
SEGMENTATION: Final = (
    "tx-tcp-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-tcp6-segmentation",
    "tx-udp-segmentation",
)
JOINING: Final = ("rx-gro",)


def set_features(interface: str, names: Iterable[str], *, on: bool) -> None:
    """Switch features of an interface of this thread's namespace.

    Raises:
        ConfigurationError: This kernel has no feature of such a name.
    """
    places = _feature_places(interface)
    blocks = [[0, 0] for _ in range(-(-len(places) // 32))]
    for name in names:
        if name not in places:
            raise ConfigurationError(f"interface {interface}: no feature {name} in this kernel")
        block, bit = divmod(places[name], 32)
        blocks[block][0] |= 1 << bit
        blocks[block][1] |= on << bit
    words = [_SET_FEATURES, len(blocks), *(word for block in blocks for word in block)]
    _ask(interface, array.array("B", struct.pack(f"={len(words)}I", *words)))


@cache
def _feature_places(interface: str) -> dict[str, int]:
    asked = array.array("B", struct.pack("=IIQI", _GET_STRING_COUNT, 0, 1 << _OF_FEATURES, 0))
    _ask(interface, asked)
    (count,) = struct.unpack_from("=I", asked, 16)
    begin = struct.pack("=III", _GET_STRINGS, _OF_FEATURES, count)
    strings = array.array("B", begin + bytes(count * _NAME_BYTES))
    _ask(interface, strings)
    told = strings.tobytes()[len(begin) :]
    names = [told[place : place + _NAME_BYTES] for place in range(0, len(told), _NAME_BYTES)]
    return {name.partition(b"\0")[0].decode(): place for place, name in enumerate(names)}


def _ask(interface: str, request: array.array[int]) -> None:
    where = struct.pack("16sP16x", interface.encode(), request.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCETHTOOL, where)
