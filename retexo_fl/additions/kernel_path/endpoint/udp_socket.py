"""A UDP socket that takes and sends many datagrams with one system call."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np

from retexo_fl.additions.kernel_path.endpoint.datagram_headers import (
    CONTROL,
    SOL_UDP,
    UDP_GRO,
    UDP_SEGMENT,
    MessageTable,
)
from retexo_fl.additions.kernel_path.endpoint.receive_buffer import ReceiveBuffer, Received
from retexo_fl.additions.kernel_path.endpoint.records import (
    SOCKADDR_BYTES,
    parse_endpoint,
    socket_address,
)
from retexo_fl.channels.addresses import why_not_bound
from retexo_fl.errors import ChannelUnavailable

#: Largest payload of a UDP datagram over IPv4, and of the segments of one message together.
MESSAGE_BYTES: Final = 65_507
#: Packets that the kernel cuts from one message at most.
MESSAGE_SEGMENTS: Final = 64
_SENT_AT_ONCE: Final = 64
_BUFFER_BYTES: Final = 8 * 2**20
# Linux' numbers, which Python does not name.
_SO_SNDBUFFORCE: Final = 32
_SO_RCVBUFFORCE: Final = 33
_IP_MTU_DISCOVER: Final = 10
_IP_MTU: Final = 14
_IP_PMTUDISC_DO: Final = 2
_NO_MESSAGES: Final = {errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR}


@dataclass(frozen=True, slots=True)
class Message:
    """Packets for one receiver that one entry of a system call carries.

    Attributes:
        data: (bytes,) uint8, contiguous; must not change until it was sent.
        packet_bytes: Size of each packet in it but the last, which may be shorter.
        name: The receiver's ``sockaddr_in``.
    """

    data: np.ndarray
    packet_bytes: int
    name: bytes

    @property
    def packets(self) -> int:
        """How many packets it holds."""
        return -(-len(self.data) // self.packet_bytes)


class UdpSocket:
    """A non-blocking, bound UDP socket that never fragments.

    Args:
        address: ``IP:PORT`` to bind; port 0 takes a free one.
        joins_packets: Let the kernel join packets of one sender that follow each other (UDP GRO).

    Raises:
        ChannelUnavailable: The address cannot be bound.
    """

    def __init__(self, address: str, *, joins_packets: bool = True) -> None:
        place = parse_endpoint(address, least_port=0)
        self._libc = _libc()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            self._socket.bind(place)
            self._socket.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_DO)
        except OSError as error:
            self._socket.close()
            raise ChannelUnavailable(f"udp://{address}: {why_not_bound(error)}") from error
        _enlarge(self._socket, _SO_RCVBUFFORCE, socket.SO_RCVBUF)
        _enlarge(self._socket, _SO_SNDBUFFORCE, socket.SO_SNDBUF)
        self._is_joining = joins_packets and _accepts(self._socket, UDP_GRO, 1)
        self._buffer = ReceiveBuffer(may_join=self._is_joining)
        #: Whether one message may carry several packets; ends where a device cannot do it.
        self.cuts_messages = _accepts(self._socket, UDP_SEGMENT, 0)
        self._prepare_tables()

    @property
    def address(self) -> str:
        """``IP:PORT`` it is bound to."""
        host, port = self._socket.getsockname()
        return f"{host}:{port}"

    def fileno(self) -> int:
        """Return the descriptor, to wait for it."""
        return self._socket.fileno()

    def close(self) -> None:
        """Give the port back."""
        self._socket.close()

    def receive(self) -> Received | None:
        """Return what has arrived, at most one system call's worth; None where nothing has.

        The arrays are valid until the next call.
        """
        table = self._buffer.prepared()
        count = self._libc.recvmmsg(
            self.fileno(), table.pointer(), table.count, socket.MSG_DONTWAIT, None
        )
        if count <= 0:
            # Errors of an earlier packet (ICMP) are reported here; the timers notice the loss.
            return None
        received = self._buffer.received(count)
        if self._buffer.is_joining != self._is_joining:
            self._is_joining = self._buffer.is_joining
            self._socket.setsockopt(SOL_UDP, UDP_GRO, int(self._is_joining))
        return received

    def send(self, messages: Sequence[Message]) -> int:
        """Send messages in their order and return how many packets of whole messages went out.

        Less than all means that the kernel's buffer is full: wait until the socket can be written.

        Raises:
            OSError: The first message that was not sent cannot be, for the reason it names; the
                attribute ``messages_sent`` of the socket is how many went out before.
        """
        self.messages_sent = 0
        while self.messages_sent < len(messages):
            part = messages[self.messages_sent : self.messages_sent + _SENT_AT_ONCE]
            self._fill(part)
            count = self._libc.sendmmsg(
                self.fileno(), self._outgoing.pointer(), len(part), socket.MSG_DONTWAIT
            )
            if count >= 0:
                self.messages_sent += count
                continue
            problem = ctypes.get_errno()
            if problem in _NO_MESSAGES:
                break
            raise OSError(problem, os.strerror(problem))
        return sum(message.packets for message in messages[: self.messages_sent])

    def send_lossy(self, messages: Sequence[Message]) -> None:
        """Send what can be sent now; the rest is lost, as it may be on the way."""
        begun = 0
        while begun < len(messages):
            try:
                self.send(messages[begun:])
                begun = len(messages)
            except OSError:
                begun += self.messages_sent + 1
                self.refused += 1

    def _fill(self, messages: Sequence[Message]) -> None:
        table, names = self._outgoing, self._names
        for place, message in enumerate(messages):
            size = len(message.data)
            names[place * SOCKADDR_BYTES : (place + 1) * SOCKADDR_BYTES] = message.name
            table.piece_starts[place] = message.data.__array_interface__["data"][0]
            table.piece_bytes[place] = size
            table.control_bytes[place] = CONTROL.itemsize if size > message.packet_bytes else 0
            table.control_values[place] = message.packet_bytes

    def _prepare_tables(self) -> None:
        self.messages_sent = 0
        #: Messages that :meth:`send_lossy` could not send for a reason.
        self.refused = 0
        self._outgoing = MessageTable(_SENT_AT_ONCE)
        self._outgoing.ask_for_segments()
        self._names = self._outgoing.names.data.cast("B")


def path_mtu(address: str) -> int:
    """Return the largest IP packet that reaches ``IP:PORT``, in bytes, as this machine knows it.

    Raises:
        ChannelUnavailable: There is no way to it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_DO)
            asking.connect(parse_endpoint(address))
            return asking.getsockopt(socket.IPPROTO_IP, _IP_MTU)
        except OSError as error:
            raise ChannelUnavailable(f"udp://{address}: {error.strerror}") from error


def single_packets(messages: Sequence[Message]) -> list[Message]:
    """Return messages of one packet each."""
    return [
        Message(message.data[start : start + message.packet_bytes], message.packet_bytes, name)
        for message, name in ((message, message.name) for message in messages)
        for start in range(0, len(message.data), message.packet_bytes)
    ]


def group_packets(data: np.ndarray, packet_bytes: int, name: bytes) -> list[Message]:
    """Return (bytes,) uint8 of packets that follow each other as messages as large as can be."""
    packets = min(MESSAGE_SEGMENTS, MESSAGE_BYTES // packet_bytes)
    step = packets * packet_bytes
    return [
        Message(data[start : start + step], packet_bytes, name)
        for start in range(0, len(data), step)
    ]


def message_for(data: bytes, address: str) -> Message:
    """Return one packet as a message."""
    return Message(np.frombuffer(data, np.uint8), len(data), socket_address(address))


def _enlarge(asked: socket.socket, forced: int, polite: int) -> None:
    """Have a large buffer: over the machine's limit where we may, else as large as it gives."""
    try:
        asked.setsockopt(socket.SOL_SOCKET, forced, _BUFFER_BYTES)
    except PermissionError:
        with suppress(OSError):
            asked.setsockopt(socket.SOL_SOCKET, polite, _BUFFER_BYTES)


def _accepts(asked: socket.socket, option: int, value: int) -> bool:
    """Return whether the kernel has an option of UDP."""
    try:
        asked.setsockopt(SOL_UDP, option, value)
    except OSError:
        return False
    return True


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    if ctypes.sizeof(ctypes.c_void_p) != 8 or not hasattr(libc, "recvmmsg"):
        raise ChannelUnavailable("udp: needs Linux of 64 bits (recvmmsg, sendmmsg)")
    pointer, number = ctypes.c_void_p, ctypes.c_int
    libc.recvmmsg.argtypes = [number, pointer, ctypes.c_uint, number, pointer]
    libc.sendmmsg.argtypes = [number, pointer, ctypes.c_uint, number]
    return libc
