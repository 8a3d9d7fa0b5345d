"""The agent's socket, asked by those who do not keep to the protocol."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.agent import remote, socket_server, wire
from retexo_fl.agent.remote import RemoteClient, ask_agent
from retexo_fl.agent.service import Outcome
from retexo_fl.agent.socket_server import SocketServer
from retexo_fl.client.api import (
    MESSAGE_VERSION,
    HelloAnswer,
    HelloRequest,
    Request,
    Ticket,
    TrainRequest,
)
from retexo_fl.errors import (
    AgentUnreachable,
    ClientFailed,
    ConfigurationError,
    ExchangeIncomplete,
    RemoteProtocolError,
    StaleAttempt,
)

TICKET = Ticket(job="job-0123456789ab", attempt=1)
HELLO = HelloRequest(ticket=TICKET)
ANSWER = HelloAnswer(
    version=3,
    client=1,
    num_clients=2,
    partitioning="p",
    nodes=4,
    train=3,
    validation=2,
    test=1,
    features=5,
    classes=6,
    vectors_out=7,
    vectors_in=8,
)


async def friendly(request: wire.Request) -> Outcome:
    return Outcome(parts=wire.encode_answer(ANSWER))


async def control(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"heard": asked["ask"]}


def talk(
    path: Path,
    call: Callable[[], Any],
    answer: Callable[[wire.Request], Awaitable[Outcome]] = friendly,
    *,
    patience_s: float = 20.0,
) -> Any:
    """Run a server, and ``call`` beside it."""

    async def run() -> Any:
        server = SocketServer(path, answer, control, patience_s=patience_s)
        await server.start()
        try:
            return await asyncio.to_thread(call)
        finally:
            # asyncio loses a connection that it accepts in the moment in which its server closes.
            await asyncio.sleep(0.05)
            server.close()
            server.remove()

    return asyncio.run(run())


def raw(path: Path, data: bytes) -> Callable[[], tuple[wire.Prefix, bytes]]:
    """Return what sends bytes and reads one message."""

    def call() -> tuple[wire.Prefix, bytes]:
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as stream:
            stream.settimeout(20)
            stream.connect(str(path))
            stream.sendall(data)
            file = stream.makefile("rb")
            prefix = wire.Prefix.parse(file.read(wire.PREFIX_BYTES))
            head = file.read(prefix.head_bytes)
            assert file.read() == b""
            return prefix, head

    return call


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "agent.sock"


def test_questions_are_answered(path: Path) -> None:
    assert talk(path, lambda: RemoteClient(path, {}).ask(HELLO)) == ANSWER
    assert talk(path, lambda: ask_agent(path, "status"))["heard"] == "status"
    assert not path.exists()


def test_only_its_owner_may_enter(path: Path) -> None:
    def modes() -> list[int]:
        return [stat.S_IMODE(item.stat().st_mode) for item in (path, path.parent)]

    assert talk(path, modes) == [0o600, 0o700]


@pytest.mark.parametrize("error", [StaleAttempt("old"), ExchangeIncomplete("gone")])
def test_named_errors_come_out_at_the_other_end(path: Path, error: Exception) -> None:
    async def answer(request: wire.Request) -> Outcome:
        raise error

    with pytest.raises(type(error), match=str(error)):
        talk(path, lambda: RemoteClient(path, {}).ask(HELLO), answer)


def test_a_bug_is_a_failure_of_this_client_not_of_the_socket(path: Path) -> None:
    async def answer(request: wire.Request) -> Outcome:
        raise KeyError("surprise")

    with pytest.raises(ClientFailed, match="KeyError .*agent.* bug"):
        talk(path, lambda: RemoteClient(path, {}).ask(HELLO), answer)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "begins with"),
        (wire.ALIVE[:8] + b"\xff" * 12, "expected at most"),
        (wire.ALIVE, "got ALIVE; expected a request"),
        (b"".join(wire.encode_answer(ANSWER)), "got ANSWER; expected a request"),
    ],
)
def test_what_is_no_question_is_refused_by_name(path: Path, data: bytes, expected: str) -> None:
    prefix, head = talk(path, raw(path, data))
    assert prefix.kind is wire.Kind.FAILURE
    told = wire.failure_of(head)
    assert isinstance(told, RemoteProtocolError)
    assert expected in str(told)


def test_another_version_is_told_both(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = b"".join(wire.encode_request(HelloRequest(ticket=TICKET), {}))
    monkeypatch.setattr(wire, "MESSAGE_VERSION", MESSAGE_VERSION + 1)
    _, head = talk(path, raw(path, asked))
    assert f"version {MESSAGE_VERSION} came" in str(wire.failure_of(head))
    assert f"expected version {MESSAGE_VERSION + 1}" in str(wire.failure_of(head))


@pytest.mark.parametrize("data", [b"", wire.ALIVE[:7]])
def test_a_connection_that_says_nothing_is_closed(path: Path, data: bytes) -> None:
    _, head = talk(path, raw(path, data), patience_s=0.2)
    assert "request within 0.2 s" in str(wire.failure_of(head))


def test_no_more_connections_than_are_allowed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_server, "_MOST_CONNECTIONS", 2)

    def crowd() -> None:
        held = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(2)]
        for stream in held:
            stream.connect(str(path))
        with pytest.raises(AgentUnreachable, match=r"agent\.sock: 2 requests"):
            RemoteClient(path, {}).ask(HELLO)
        for stream in held:
            stream.close()

    talk(path, crowd)


def test_whoever_computes_for_long_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's patience with silence is shorter than the answer takes."""
    monkeypatch.setattr(socket_server, "_ALIVE_EVERY_S", 0.05)
    monkeypatch.setattr(remote, "SILENCE_S", 2.0)

    async def answer(request: wire.Request) -> Outcome:
        await asyncio.sleep(2.5)
        return await friendly(request)

    assert (
        talk(
            path,
            lambda: RemoteClient(path, {}, wait_s=0.0).ask(HELLO),
            answer,
        )
        == ANSWER
    )


def test_an_agent_that_falls_silent_is_given_up(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "SILENCE_S", 0.1)

    async def answer(request: wire.Request) -> Outcome:
        await asyncio.sleep(3.0)
        return await friendly(request)

    with pytest.raises(AgentUnreachable, match="no agent answers there"):
        talk(
            path,
            lambda: RemoteClient(path, {}, wait_s=0.2).ask(HELLO),
            answer,
        )


def test_an_agent_that_stops_answers_nothing_and_is_asked_again(path: Path) -> None:
    asked: list[str] = []

    async def answer(request: wire.Request) -> Outcome:
        asked.append(request.message)
        if len(asked) == 1:
            raise asyncio.CancelledError
        return await friendly(request)

    assert talk(path, lambda: RemoteClient(path, {}).ask(HELLO), answer) == ANSWER
    assert asked == ["hello", "hello"]


def test_an_answer_takes_no_longer_than_the_run_allows(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_server, "_ALIVE_EVERY_S", 0.05)

    async def answer(request: wire.Request) -> Outcome:
        await asyncio.sleep(3.0)
        return await friendly(request)

    client = RemoteClient(path, {"message-timeout-s": 0.3})
    with pytest.raises(AgentUnreachable, match=r"agent\.sock: .*no answer"):
        talk(path, lambda: client.ask(HELLO), answer)


def test_large_weights_pass(path: Path) -> None:
    weights = np.arange(3_000_000, dtype=np.float32)
    seen: list[Request[Any]] = []

    async def answer(request: wire.Request) -> Outcome:
        seen.append(request.asked)
        raise StaleAttempt("enough")

    asked = TrainRequest(ticket=TICKET, weights=weights)
    with pytest.raises(StaleAttempt):
        talk(path, lambda: RemoteClient(path, {}).ask(asked), answer)
    (found,) = seen
    assert isinstance(found, TrainRequest)
    np.testing.assert_array_equal(found.weights, weights)


def test_a_dead_socket_is_replaced_and_a_live_one_is_not(path: Path) -> None:
    path.parent.mkdir()
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as dead:
        dead.bind(str(path))
    assert talk(path, lambda: RemoteClient(path, {}).ask(HELLO)) == ANSWER

    def second() -> None:
        with pytest.raises(ConfigurationError, match="another agent answers at"):
            talk(path, lambda: None)

    talk(path, second)


def test_something_else_in_the_sockets_place_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("mine")
    with pytest.raises(ConfigurationError, match=r"socket: .*agent\.sock .*\(Address already"):
        talk(path, lambda: None)
    assert path.read_text() == "mine"


def test_control_is_checked_for_its_version_too(path: Path) -> None:
    parts = wire.encode_control({"ask": "status"})
    data = b"".join(parts)
    head = json.loads(data[wire.PREFIX_BYTES :])
    text = json.dumps({**head, "package": "9.9.9"}).encode()
    _, told = talk(path, raw(path, data[:8] + len(text).to_bytes(4, "little") + data[12:20] + text))
    assert "came from retexo-fl 9.9.9" in str(wire.failure_of(told))
