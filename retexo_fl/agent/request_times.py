"""How long the requests that pass the meter take, inferred from the order of their bytes alone.

Bytes are encrypted, so a request is what goes up until something comes down, and its answer is what
comes down until something goes up again. Requests close upon each other carry a message of Flower;
one alone is a look for news or a sign of life.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

#: Between two requests of one message Flower computes; before it looks for news again it sleeps 3 s
#: and waits at least 0.5 s for the ClientApp.
_PAUSE_S: Final = 0.35
#: Both ends close a connection that was idle for 5 s; no part of an answer is so late.
_GOODBYE_S: Final = 3.0


@dataclass(slots=True, kw_only=True)
class Turn:
    """One request and its answer on one connection.

    Attributes:
        begun_s: When its first byte came, or when the connection was opened for it.
        ended_s: When the last byte of the answer came; None as long as nothing has.
        up_bytes: Of the request.
        down_bytes: Of the answer.
    """

    begun_s: float
    ended_s: float | None = None
    up_bytes: int = 0
    down_bytes: int = 0


@dataclass(slots=True)
class Connection:
    """One connection through the meter; call it for every piece that passes."""

    times: RequestTimes
    turn: Turn | None

    def up(self, size_bytes: int, now_s: float) -> None:
        """Note a piece that goes to the SuperLink."""
        if self.turn is None or self.turn.ended_s is not None:
            self.turn = self.times.begin(now_s)
        self.turn.up_bytes += size_bytes

    def down(self, size_bytes: int, now_s: float) -> None:
        """Note a piece that comes from the SuperLink; one long after an answer is a goodbye."""
        turn = self.turn
        if turn is None or (turn.ended_s is not None and now_s - turn.ended_s > _GOODBYE_S):
            return
        turn.ended_s = now_s
        turn.down_bytes += size_bytes

    def end(self) -> None:
        """Note that it was closed; what was not answered is no request."""
        if self.turn is not None and self.turn.ended_s is None:
            self.times.forget(self.turn)
        self.turn = None


@dataclass(slots=True)
class RequestTimes:
    """The requests of all connections of a meter.

    Attributes:
        messages_s: Seconds in which a request of a message was under way, or several.
        requests: Their number, without the handshakes of their connections.
        connections: Connections opened for them.
        polls: Requests of no message.
        polls_s: Seconds of these.
    """

    messages_s: float = 0.0
    requests: int = 0
    connections: int = 0
    polls: int = 0
    polls_s: float = 0.0
    _open: list[Turn] = field(default_factory=list)
    _opened: int = 0

    def connection(self, now_s: float) -> Connection:
        """Return the account of a connection that the SuperNode has just opened."""
        turn = self.begin(now_s)
        self._opened += 1
        return Connection(self, turn)

    def begin(self, now_s: float) -> Turn:
        """Begin a request; a pause before it ends the message."""
        self.settle(now_s)
        turn = Turn(begun_s=now_s)
        self._open.append(turn)
        return turn

    def forget(self, turn: Turn) -> None:
        """Take back a request that got no answer."""
        if turn in self._open:
            self._open.remove(turn)

    def settle(self, now_s: float) -> None:
        """Count the message that is over: everything was answered, and nothing came since."""
        ends = [turn.ended_s for turn in self._open if turn.ended_s is not None]
        if not ends or len(ends) < len(self._open) or now_s - max(ends) <= _PAUSE_S:
            return
        seconds, number = _covered_s(self._open), len(self._open) - self._opened
        if number > 1:
            self.messages_s += seconds
            self.requests += number
            self.connections += self._opened
        else:
            self.polls_s += seconds
            self.polls += number
        self._open.clear()
        self._opened = 0


def _covered_s(turns: list[Turn]) -> float:
    """Return the seconds in which at least one of some turns was under way."""
    covered_s = until_s = 0.0
    for begun_s, ended_s in sorted((turn.begun_s, turn.ended_s or turn.begun_s) for turn in turns):
        covered_s += max(0.0, ended_s - max(begun_s, until_s))
        until_s = max(until_s, ended_s)
    return covered_s
