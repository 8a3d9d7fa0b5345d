"""Messages that wait to be sent, pulled in pieces of any size."""

from __future__ import annotations

from collections import deque

from retexo_fl.exchange.frames import Buffer


class MessageQueue:
    """Holds messages in the order in which they were added; nothing follows the last one."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._partly_sent = memoryview(b"")
        self.is_closed = False
        self.num_bytes = 0

    def __bool__(self) -> bool:
        """Whether something waits."""
        return bool(self._waiting or self._partly_sent)

    def tell(self, message: bytes) -> None:
        """Add a message, or a part of one; nothing once the queue is closed."""
        if not self.is_closed:
            self._waiting.append(message)
            self.num_bytes += len(message)

    def close(self, last_message: bytes) -> None:
        """Add the last message; again is no error."""
        self.tell(last_message)
        self.is_closed = True

    def pull(self, max_bytes: int) -> Buffer:
        """Return the next bytes, at most so many; empty if there are none."""
        if not self._partly_sent and self._waiting:
            self._partly_sent = memoryview(self._next_piece(max_bytes))
        data, self._partly_sent = self._partly_sent[:max_bytes], self._partly_sent[max_bytes:]
        return data

    def _next_piece(self, max_bytes: int) -> bytes:
        """Join small messages, so that each does not become a record and a packet of its own."""
        piece = [self._waiting.popleft()]
        size_bytes = len(piece[0])
        while self._waiting and size_bytes + len(self._waiting[0]) <= max_bytes:
            size_bytes += len(self._waiting[0])
            piece.append(self._waiting.popleft())
        self.num_bytes -= size_bytes
        return b"".join(piece) if len(piece) > 1 else piece[0]
