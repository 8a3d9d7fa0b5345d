"""The client as its ClientApp sees it: questions go to the resident agent over its Unix socket.

All questions may be asked twice, so a connection that breaks is opened again and the question
asked again: the agent is being restarted. How long that may take is bounded.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from retexo_fl.agent import wire
from retexo_fl.client.api import AnswerT, Request, answer_class
from retexo_fl.config import Scalar
from retexo_fl.errors import AgentUnreachable, RemoteProtocolError

#: An agent that computes sends a heartbeat every few seconds; after so long without one it is lost.
SILENCE_S: Final = 30.0
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
#: Where a run configuration does not say how long an answer may take.
_TIMEOUT_S: Final = 3600.0


class RemoteClient:
    """:class:`~retexo_fl.client.api.ClientApi` over the agent's socket.

    Args:
        socket_path: The agent's socket.
        run_config: The run configuration, which begins a job at the agent.
        wait_s: How long the agent may be away. However long it is there, an answer may take
            ``message-timeout-s``.
        stopping: Set when an agent that is away is not waited for any more.
    """

    def __init__(
        self,
        socket_path: Path,
        run_config: Mapping[str, Scalar],
        *,
        wait_s: float = 120.0,
        stopping: threading.Event | None = None,
    ) -> None:
        self._socket_path = socket_path
        self._run_config = run_config
        self._wait_s = wait_s
        self._stopping = stopping or threading.Event()
        self._masked = run_config.get("secure-aggregation") == "masked"
        timeout_s = run_config.get("message-timeout-s", _TIMEOUT_S)
        self._timeout_s = timeout_s if isinstance(timeout_s, int | float) else _TIMEOUT_S

    def ask(self, request: Request[AnswerT]) -> AnswerT:
        """See :class:`~retexo_fl.client.api.ClientApi`.

        Raises:
            AgentUnreachable: Nobody answers there.
            RetexoError: The agent's own named failure.
        """
        parts = wire.encode_request(request, self._run_config)
        deadline = time.monotonic() + self._timeout_s
        # An agent that takes the question and dies of it each time is bounded by the deadline.
        seen, pause_s = time.monotonic(), _FIRST_PAUSE_S
        while True:
            talk = _Talk(self._socket_path, deadline)
            try:
                head, body = talk.ask(parts, wire.Kind.ANSWER)
            except OSError as error:
                seen = max(seen, talk.heard)
                now = time.monotonic()
                is_over = now > min(seen + self._wait_s, deadline)
                if isinstance(error, PermissionError) or is_over or self._stopping.wait(pause_s):
                    raise _unreachable(self._socket_path, error, now - seen) from error
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                kind = answer_class(request, masked=self._masked)
                return wire.decode_answer(kind, head, body)


def ask_agent(
    socket_path: Path, ask: str, *, timeout_s: float = 10.0, **facts: object
) -> Mapping[str, Any]:
    """Ask an agent about itself, once.

    Args:
        socket_path: Its socket.
        ask: ``status``, ``stop`` or ``forget``.
        timeout_s: How long it may take.
        facts: The question's other fields.

    Raises:
        AgentUnreachable: Nobody answers there.
        RetexoError: The agent's own named failure.
    """
    talk = _Talk(socket_path, time.monotonic() + timeout_s)
    try:
        head, _ = talk.ask(wire.encode_control({"ask": ask, **facts}), wire.Kind.CONTROL)
    except OSError as error:
        raise _unreachable(socket_path, error, 0.0) from error
    return wire.decode_control(head)


class _Talk:
    """One connection: a question, signs of life, and what came of it.

    Attributes:
        heard: When the agent last sent anything, 0 if it never did.
    """

    def __init__(self, socket_path: Path, deadline: float) -> None:
        self._path = socket_path
        self._deadline = deadline
        self.heard = 0.0

    def ask(self, parts: wire.Parts, expected: wire.Kind) -> tuple[bytes, memoryview]:
        """Return head and body of the answer.

        Raises:
            OSError: The connection could not be made, broke, or fell silent.
            RetexoError: The failure that the agent reports.
        """
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as stream:
            stream.settimeout(SILENCE_S)
            stream.connect(str(self._path))
            refused = self._send(stream, parts)
            prefix = self._read_prefix(stream)
            while prefix.kind is wire.Kind.ALIVE:
                prefix = self._read_prefix(stream)
            head = bytes(self._read(stream, prefix.head_bytes))
            body = self._read(stream, prefix.body_bytes)
        if prefix.kind is wire.Kind.FAILURE:
            raise wire.failure_of(head)
        if refused is not None:
            raise refused
        if prefix.kind is not expected:
            raise RemoteProtocolError(f"the agent sent {prefix.kind.name}; expected a reply")
        return head, body

    @staticmethod
    def _send(stream: socket.socket, parts: wire.Parts) -> OSError | None:
        """Send all; an agent that closed early may have sent a reason, so that is read first."""
        try:
            for part in parts:
                stream.sendall(part)
        except (BrokenPipeError, ConnectionResetError) as error:
            return error
        return None

    def _read_prefix(self, stream: socket.socket) -> wire.Prefix:
        return wire.Prefix.parse(bytes(self._read(stream, wire.PREFIX_BYTES)))

    def _read(self, stream: socket.socket, size: int) -> memoryview:
        """Return so many bytes, read-only; weights are not copied again."""
        view, filled = memoryview(bytearray(size)), 0
        while filled < size:
            if time.monotonic() > self._deadline:
                raise TimeoutError("no answer within the deadline")
            count = stream.recv_into(view[filled:])
            if not count:
                raise ConnectionResetError("the connection was closed")
            filled += count
            self.heard = time.monotonic()
        return view.toreadonly()


def _unreachable(path: Path, error: OSError, away_s: float) -> AgentUnreachable:
    if isinstance(error, PermissionError):
        return AgentUnreachable(
            f"{path}: may not be used by this user; expected the user that the agent runs as, or "
            "root"
        )
    waited = f" for {away_s:.0f} s" if away_s >= 1 else ""
    return AgentUnreachable(
        f"{path}: no agent answers there{waited} ({error.strerror or error}); see "
        "`systemctl status retexo-agent`, or start it with `retexo agent run`"
    )
