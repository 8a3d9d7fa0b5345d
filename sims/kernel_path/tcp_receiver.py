"""Vectors that arrive by TCP: one connection for each sender, each block added as it is whole."""

from __future__ import annotations

import selectors
import socket
import time
from typing import Final

import numpy as np
from numpy.typing import NDArray

from retexo_fl.errors import ChannelTimedOut
from sims.kernel_path.adding import add_rows
from sims.kernel_path.workload import Case, places_of

#: A long message is added in parts of so many bytes, while they are in the processor's cache.
_PART_BYTES: Final = 2**18
_BUFFER_BYTES: Final = 2**19
_PATIENCE_S: Final = 20.0
_TAKEN: Final = b"\1"


class TcpReceiver:
    """Adds what senders send; each connection begins with the sender's number.

    Args:
        case: What is sent.
        address: IPv4 address to listen at; the port is any.
    """

    def __init__(self, case: Case, address: str) -> None:
        self._case = case
        self._listener = socket.create_server((address, 0), backlog=case.senders)
        self._listener.settimeout(_PATIENCE_S)
        self._connections: list[_Connection] = []
        self.sums = np.zeros((case.accumulators, case.width), np.int32)

    @property
    def address(self) -> str:
        """``IP:PORT`` it listens at."""
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def accept(self) -> None:
        """Take the senders' connections, which have been begun."""
        while len(self._connections) < self._case.senders:
            connection, _ = self._listener.accept()
            connection.settimeout(_PATIENCE_S)
            self._connections.append(_Connection(connection, self._case))

    def receive(self) -> None:
        """Add everything, and tell each sender after each exchange."""
        deadline_s = time.monotonic() + _PATIENCE_S
        with selectors.DefaultSelector() as selector:
            for connection in self._connections:
                selector.register(connection.socket, selectors.EVENT_READ, connection)
            while selector.get_map():
                if time.monotonic() > deadline_s:
                    raise ChannelTimedOut("tcp: not everything has arrived")
                for key, _ in selector.select(1.0):
                    if key.data.read(self.sums):
                        selector.unregister(key.fileobj)

    def close(self) -> None:
        """Close all sockets."""
        for connection in self._connections:
            connection.socket.close()
        self._listener.close()


class _Connection:
    def __init__(self, connected: socket.socket, case: Case) -> None:
        self.socket = connected
        number = int.from_bytes(connected.recv(4, socket.MSG_WAITALL), "little")
        connected.setblocking(False)
        self._places = places_of(case, number)
        self._case = case
        self._message_rows = case.message_rows or case.rows
        self._buffer = np.empty(_BUFFER_BYTES, np.uint8)
        self._room = self._buffer.data
        self._held = 0
        self._row = 0
        self._exchange = 0

    def read(self, sums: NDArray[np.int32]) -> bool:
        """Read once and add what is whole; True when all exchanges are over."""
        self._held += self.socket.recv_into(self._room[self._held :])
        rows = self._rows_to_add()
        if not rows:
            return False
        used = rows * self._case.row_bytes
        values = self._buffer[:used].view(np.int32).reshape(rows, self._case.width)
        add_rows(sums, self._places[self._row : self._row + rows], values)
        left = self._held - used
        self._buffer[:left] = self._buffer[used : self._held].copy()
        self._held = left
        self._row += rows
        if self._row == self._case.rows:
            self._row = 0
            self._exchange += 1
            self.socket.send(_TAKEN)
        return self._exchange == self._case.exchanges

    def _rows_to_add(self) -> int:
        rows = self._held // self._case.row_bytes
        if self._held >= _PART_BYTES:
            return rows
        whole = (self._row + rows) // self._message_rows * self._message_rows
        return max(0, whole - self._row)
