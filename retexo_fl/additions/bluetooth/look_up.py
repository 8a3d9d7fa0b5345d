"""Asking a device for its records."""

from __future__ import annotations

import asyncio
import os
import socket
from importlib.util import find_spec
from typing import Final

from retexo_fl.additions.bluetooth import pybluez, sdp
from retexo_fl.additions.bluetooth.sockets import ANY_ADAPTER, NO_SOCKETS, SOCKETS_REMEDY
from retexo_fl.errors import ChannelUnavailable, RemoteProtocolError

#: Where every device answers such questions, paired or not.
_PSM: Final = 1
#: To page a device takes up to 5 s, a long answer over a bad link about as much.
LOOK_UP_S: Final = 20.0
_MAX_PACKET_BYTES: Final = 2**16
_MAX_PACKETS: Final = 512


async def find_offers(address: str, adapter: str) -> tuple[sdp.Offer, ...]:
    """Return what the device at ``address`` offers; nothing: it runs no agent.

    Raises:
        ChannelUnavailable: It does not answer, or not as it should; or this Python has no
            Bluetooth sockets.
    """
    if not hasattr(socket, "AF_BLUETOOTH") and find_spec("bluetooth") is None:
        raise ChannelUnavailable(f"{NO_SOCKETS}; {SOCKETS_REMEDY}")
    try:
        async with asyncio.timeout(LOOK_UP_S):
            return sdp.offers(await _answer(address, adapter))
    except TimeoutError as error:
        raise ChannelUnavailable(f"{address}: no answer within {LOOK_UP_S:g} s") from error
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ChannelUnavailable(f"{address}: {reason}") from error
    except RemoteProtocolError as error:
        raise ChannelUnavailable(f"{address}: {error}") from error


async def _answer(address: str, adapter: str) -> bytes:
    """Return the whole answer, which may come in parts."""
    loop = asyncio.get_running_loop()
    answer, rest = b"", b""
    with await _connected(address, adapter) as asking:
        for number in range(1, _MAX_PACKETS):
            await loop.sock_sendall(asking, sdp.question(number, rest))
            packet = await loop.sock_recv(asking, _MAX_PACKET_BYTES)
            if not packet:
                raise RemoteProtocolError("SDP: the device ended the connection")
            part, rest = sdp.answer_parts(packet, number)
            answer += part
            if len(answer) > sdp.MAX_ANSWER_BYTES:
                break
            if not rest:
                return answer
    raise RemoteProtocolError(f"SDP: an answer longer than {sdp.MAX_ANSWER_BYTES} bytes")


async def _connected(address: str, adapter: str) -> socket.socket:
    """Connect to the device, with what this Python has."""
    if not hasattr(socket, "AF_BLUETOOTH"):
        return await pybluez.connect(address, _PSM, adapter)
    asking = socket.socket(socket.AF_BLUETOOTH, socket.SOCK_SEQPACKET, socket.BTPROTO_L2CAP)
    try:
        asking.setblocking(False)
        if adapter != ANY_ADAPTER:
            asking.bind((adapter, 0))
        await asyncio.get_running_loop().sock_connect(asking, (address, _PSM))
    except BaseException:
        asking.close()
        raise
    return asking
