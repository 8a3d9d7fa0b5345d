"""Hands packets to the socket: cut by the kernel, one by one, or later when it is full."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from retexo_fl.additions.kernel_path.endpoint.broadcasting import BroadcastKind
from retexo_fl.additions.kernel_path.endpoint.udp_socket import (
    Message,
    UdpSocket,
    group_packets,
    single_packets,
)

#: The kernel's errors where a device or a path cannot take a message that has to be cut.
_NOT_CUT: Final = {errno.EIO, errno.EINVAL, errno.EOPNOTSUPP, errno.EMSGSIZE}
_TOO_LONG: Final = "packets are longer than the path carries now (its MTU fell)"


class PacketSender:
    """Sends packets; what the socket has no room for is kept until it has.

    Args:
        socket: Where they leave.
        kind: How packets for several destinations are sent.
    """

    def __init__(self, socket: UdpSocket, kind: BroadcastKind) -> None:
        self._socket = socket
        self._kind = kind
        self._room = np.zeros(2**20, np.uint8)
        self._unsent: list[Message] = []
        self.packets = 0
        self.refused = 0

    @property
    def is_blocked(self) -> bool:
        """Whether the socket has to be written to before anything else is sent."""
        return bool(self._unsent)

    @staticmethod
    def is_too_long(reason: str) -> bool:
        """Return whether packets were refused for their length."""
        return reason is _TOO_LONG

    def table(self, packets: int, packet_bytes: int) -> NDArray[np.uint8]:
        """Return room for packets, (packets, packet_bytes) uint8; valid until the next call."""
        size = packets * packet_bytes
        if size > len(self._room):
            self._room = np.zeros(size, np.uint8)
        return self._room[:size].reshape(packets, packet_bytes)

    def send(
        self,
        data: NDArray[np.uint8],
        packet_bytes: int,
        name: bytes,
        *,
        to_many: bool = False,
        is_cloned: bool = False,
    ) -> str:
        """Send packets that follow each other in ``data``.

        Args:
            data: (bytes,) uint8; may change after the call.
            packet_bytes: Of each packet but the last.
            name: The receiver's socket address.
            to_many: Others get the same packets.
            is_cloned: The kernel clones them, each by itself.

        Returns:
            Why they could not be sent; empty where they could, or will be.
        """
        messages = group_packets(data, packet_bytes, name)
        is_single = is_cloned or (to_many and self._kind in ("sendto", "sendmmsg"))
        if is_single or not self._socket.cuts_messages:
            messages = single_packets(messages)
        self.packets += sum(message.packets for message in messages)
        if self._unsent:
            self._keep(messages)
            return ""
        if to_many and self._kind == "sendto":
            problems = [self._send([message]) for message in messages]
            return next(filter(None, problems), "")
        return self._send(messages)

    def flush(self) -> None:
        """Send what was kept; what cannot be sent now is lost."""
        kept, self._unsent = self._unsent, []
        if kept:
            self._send(kept)

    def _send(self, messages: Sequence[Message]) -> str:
        try:
            self._socket.send(messages)
        except OSError as error:
            return self._send_otherwise(messages[self._socket.messages_sent :], error)
        self._keep(messages[self._socket.messages_sent :])
        return ""

    def _send_otherwise(self, messages: Sequence[Message], error: OSError) -> str:
        """Send one by one what was refused; report why where that is refused, too."""
        was_cut = any(message.packets > 1 for message in messages)
        if was_cut and error.errno in _NOT_CUT:
            problem = self._send(single_packets(messages))
            # Not for the path's sake: this device cuts nothing.
            self._socket.cuts_messages &= bool(problem)
            return problem
        self.refused += sum(message.packets for message in messages)
        if error.errno == errno.EMSGSIZE:
            return _TOO_LONG
        return os.strerror(error.errno or 0)

    def _keep(self, messages: Sequence[Message]) -> None:
        self._unsent += [replace(message, data=message.data.copy()) for message in messages]
