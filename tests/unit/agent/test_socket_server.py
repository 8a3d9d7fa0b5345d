"""The agent's socket, asked by those who do not keep to the protocol."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import stat
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
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
    PluginFailed,
    RemoteProtocolError,
    RetexoError,
    StaleAttempt,
)
from retexo_fl.plugins import load_plugin

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


def welcome(announced: wire.Announcement) -> None:
    """Expect whatever comes."""


async def control(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"heard": asked["ask"]}


def talk(
    path: Path,
    call: Callable[[], Any],
    answer: Callable[[wire.Request], Awaitable[Outcome]] = friendly,
    *,
    expect: Callable[[wire.Announcement], None] = welcome,
    most_bytes: int = 2**26,
    patience_s: float = 20.0,
) -> Any:
    """Run a server, and ``call`` beside it."""

    async def run() -> Any:
        server = SocketServer(
            path, answer, control, expect=expect, most_bytes=most_bytes, patience_s=patience_s
        )
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


def test_what_a_plugin_was_given_stays_in_the_log(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spilling.py").write_text("def loss(row):\n    raise ValueError(row)\n")
    monkeypatch.syspath_prepend(tmp_path)
    spill: Any = load_plugin("loss", "spilling:loss")

    async def answer(request: wire.Request) -> Outcome:
        spill("a row of the owner's")
        raise AssertionError

    with pytest.raises(PluginFailed, match=r"'spilling:loss': ValueError \(spilling.py:2, in loss"):
        talk(path, lambda: RemoteClient(path, {}).ask(HELLO), answer)


def test_an_agent_that_is_there_for_long_may_go_for_a_while(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its absence counts from when it was last heard, not from when it was asked."""
    monkeypatch.setattr(socket_server, "_ALIVE_EVERY_S", 0.05)
    asked: list[str] = []

    async def answer(request: wire.Request) -> Outcome:
        asked.append(request.message)
        if len(asked) == 1:
            await asyncio.sleep(0.6)
            raise asyncio.CancelledError
        return await friendly(request)

    assert talk(path, lambda: RemoteClient(path, {}, wait_s=0.4).ask(HELLO), answer) == ANSWER
    assert len(asked) == 2


@pytest.mark.parametrize("kind", [wire.Kind.CONTROL, wire.Kind.REQUEST])
def test_another_kind_of_reply_is_refused(path: Path, kind: wire.Kind) -> None:
    async def answer(request: wire.Request) -> Outcome:
        (parts,) = wire.encode_answer(ANSWER)
        return Outcome(parts=[bytes(parts[:5]) + bytes([kind]) + bytes(parts[6:])])

    with pytest.raises(RemoteProtocolError, match=f"sent {kind.name}; expected a reply"):
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
        held[0].connect(str(path))
        assert RemoteClient(path, {}).ask(HELLO) == ANSWER
        held[1].connect(str(path))
        with pytest.raises(AgentUnreachable, match=r"agent\.sock: 2 requests"):
            RemoteClient(path, {}).ask(HELLO)
        for stream in held:
            stream.close()
        # Who has gone makes room, once the agent has seen it.
        for _ in range(1000):
            with suppress(AgentUnreachable):
                assert RemoteClient(path, {}).ask(HELLO) == ANSWER
                break
            time.sleep(0.01)
        else:
            pytest.fail("nobody is let in any more")

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

    client, begun_s = RemoteClient(path, {"message-timeout-s": 0.3}), time.monotonic()
    with pytest.raises(AgentUnreachable, match=r"agent\.sock: .*no answer"):
        talk(path, lambda: client.ask(HELLO), answer)
    # Though an agent may be away for two minutes.
    assert time.monotonic() - begun_s < 60


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


def weights_of(kilobytes: int) -> TrainRequest:
    return TrainRequest(ticket=TICKET, weights=np.zeros(kilobytes * 250, np.float32))


def test_a_question_is_judged_by_its_head_before_its_body_is_read(path: Path) -> None:
    judged: list[str] = []

    def expect(announced: wire.Announcement) -> None:
        judged.append(f"{announced.message} of {announced.ticket.job}")
        raise StaleAttempt("not here")

    parts = wire.encode_request(weights_of(8), {})
    prefix = wire.Prefix.parse(bytes(parts[0][: wire.PREFIX_BYTES]))
    assert prefix.body_bytes == 8000
    # None of the body comes, now or later.
    _, head = talk(path, raw(path, bytes(parts[0])), expect=expect)
    assert str(wire.failure_of(head)) == "not here"
    assert judged == [f"train_layer of {TICKET.job}"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"array": None}, "followed by 8000 bytes; expected none"),
        ({"array": {"dtype": "float32", "length": 1999}}, "array of 1999 <f4 in 8000 bytes"),
        ({"values": {}}, "'job' is missing"),
        ({"config": {"a": []}}, "config: expected true, false, numbers and texts only"),
    ],
)
def test_a_body_that_no_head_describes_is_not_read(
    path: Path, change: dict[str, Any], expected: str
) -> None:
    data = bytes(wire.encode_request(weights_of(8), {})[0])
    told = json.dumps({**json.loads(data[wire.PREFIX_BYTES :]), **change}).encode()
    prefix = data[:8] + len(told).to_bytes(4, "little") + data[12 : wire.PREFIX_BYTES]
    _, head = talk(path, raw(path, prefix + told))
    assert expected in str(wire.failure_of(head))


def test_bodies_share_the_memory_that_there_is(path: Path) -> None:
    """What never fits is refused; what does not fit now waits until another is answered."""
    open_at_once: list[int] = []
    count = 0

    async def answer(request: wire.Request) -> Outcome:
        nonlocal count
        count += 1
        open_at_once.append(count)
        await asyncio.sleep(0.05)
        count -= 1
        raise StaleAttempt("taken")

    def ask(kilobytes: int) -> RetexoError:
        with pytest.raises(RetexoError) as caught:
            RemoteClient(path, {}).ask(weights_of(kilobytes))
        return caught.value

    def crowd() -> list[str]:
        with ThreadPoolExecutor() as pool:
            return [str(error) for error in pool.map(ask, [400, 400, 1000, 1001, 400, 100])]

    told = talk(path, crowd, answer, most_bytes=1_000_000)
    assert told[:3] + told[4:] == ["taken"] * 5
    assert told[3] == (
        "a message of 1.0 MB; expected at most 1.0 MB (most-memory-mib in this client's "
        "agent.toml, less what the process itself takes)"
    )
    assert 1 < max(open_at_once) <= 3


def test_whoever_finds_no_memory_in_time_is_told_so(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_server, "_ALIVE_EVERY_S", 0.05)
    released = threading.Event()

    async def answer(request: wire.Request) -> Outcome:
        while not released.is_set():
            await asyncio.sleep(0.01)
        raise StaleAttempt("taken")

    def crowd() -> None:
        first = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        first.connect(str(path))
        first.sendall(b"".join(wire.encode_request(weights_of(600), {})))
        # Its caller is gone, the question is not.
        assert first.recv(1)
        first.close()
        with pytest.raises(AgentUnreachable, match=r"600 kB are being answered.*retry later"):
            # Where it is not refused it waits, but not for ever.
            RemoteClient(path, {"message-timeout-s": 5.0}).ask(weights_of(500))
        # The owner's questions are short.
        assert ask_agent(path, "status")["heard"] == "status"
        released.set()
        with pytest.raises(StaleAttempt):
            RemoteClient(path, {}).ask(weights_of(500))

    talk(path, crowd, answer, most_bytes=1_000_000, patience_s=1.0)


def test_a_refused_body_is_let_go_before_its_caller_hears_of_it(path: Path) -> None:
    """Errors and the futures that carry them hold each other: that is for no collector to end."""
    held: list[weakref.ref[Any]] = []
    outcomes: dict[str, Outcome] = {}

    async def answer(request: wire.Request) -> Outcome:
        assert isinstance(request.asked, TrainRequest)
        held.append(weakref.ref(request.asked.weights))
        task = asyncio.ensure_future(refuse(request))
        return await asyncio.shield(task)

    async def refuse(request: wire.Request) -> Outcome:
        try:
            return outcomes[request.message]
        except KeyError as error:
            raise StaleAttempt("late") from error

    def ask() -> None:
        with pytest.raises(StaleAttempt, match="late"):
            RemoteClient(path, {}).ask(weights_of(100))
        assert [one() is None for one in held] == [True]

    gc.disable()
    try:
        talk(path, ask, answer)
    finally:
        gc.enable()


def test_a_question_about_the_agent_has_no_body(path: Path) -> None:
    data = b"".join(wire.encode_control({"ask": "status"}))
    data = data[:12] + (9).to_bytes(8, "little") + data[20:]
    _, head = talk(path, raw(path, data))
    assert "followed by 9 bytes; expected none" in str(wire.failure_of(head))


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
