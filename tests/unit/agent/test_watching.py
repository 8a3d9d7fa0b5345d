"""The pages of those who watch an agent: bounded in every way, and no load on its loop."""

from __future__ import annotations

import asyncio
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.agent import watching
from retexo_fl.agent.watching import Watching
from retexo_fl.errors import ChannelUnavailable
from tests.support.loopback import free_ports

FIGURES = b"# TYPE one gauge\none 1.0\n"


@asynccontextmanager
async def served(place: str, **changes: Any) -> AsyncIterator[Watching]:
    """Serve at a place."""
    made: dict[str, Any] = {"why_not_ready": lambda: "", "metrics": lambda: FIGURES, **changes}
    watched, ready = Watching(place=place, **made), asyncio.Event()
    task = asyncio.create_task(watched.run(ready))
    try:
        await asyncio.wait_for(ready.wait(), 10)
        yield watched
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def opened(place: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if "/" in place:
        return await asyncio.open_unix_connection(place)
    host, _, port = place.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def said(place: str, request: bytes) -> bytes:
    """Return all that is answered to bytes; nothing where the connection is cut off."""
    reader, writer = await opened(place)
    answer = b""
    with suppress(ConnectionError):
        writer.write(request)
        answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    return answer


def get(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def on_a_port(test: Callable[[str], Awaitable[None]]) -> None:
    asyncio.run(test(f"127.0.0.1:{free_ports(1)[0]}"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("request_bytes", "first", "last"),
    [
        (get("/health"), b"HTTP/1.1 200 OK", b"ok\n"),
        (get("/ready"), b"HTTP/1.1 200 OK", b"ok\n"),
        (get("/metrics"), b"HTTP/1.1 200 OK", FIGURES),
        (get("/metrics?name[]=x"), b"HTTP/1.1 200 OK", FIGURES),
        (get("/metrics", "HEAD"), b"HTTP/1.1 200 OK", b""),
        (get("/"), b"HTTP/1.1 404 Not Found", b"expected /health, /ready or /metrics\n"),
        (get("/metrics", "POST"), b"HTTP/1.1 405 Method Not Allowed", b"expected GET\n"),
        (b"hello\r\n\r\n", b"HTTP/1.1 400 Bad Request", b"expected HTTP/1.1\n"),
        (
            b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\n\r\n",
            b"HTTP/1.1 431 Request Header Fields Too Large",
            b"too long\n",
        ),
    ],
)
def test_what_is_asked_and_answered(request_bytes: bytes, first: bytes, last: bytes) -> None:
    async def ask(place: str) -> None:
        async with served(place):
            answer = await said(place, request_bytes)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.split(b"\r\n")[0] == first
        assert body == last

    on_a_port(ask)


def test_who_is_not_ready_says_why() -> None:
    async def ask(place: str) -> None:
        async with served(place, why_not_ready=lambda: "starting"):
            answer = await said(place, get("/ready"))
            assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
            assert answer.endswith(b"\r\n\r\nstarting\n")
            assert (await said(place, get("/health"))).startswith(b"HTTP/1.1 200 OK\r\n")

    on_a_port(ask)


def test_a_socket_is_its_owners_alone_and_goes_with_the_agent(tmp_path: Path) -> None:
    place = tmp_path / "run" / "metrics.sock"

    async def ask() -> None:
        # One that a killed agent left is replaced.
        for _ in range(2):
            async with served(str(place)):
                assert stat.S_IMODE(place.stat().st_mode) == 0o600
                assert (await said(str(place), get("/metrics"))).endswith(FIGURES)
        assert not place.exists()

    asyncio.run(ask())


def test_a_place_that_is_taken_is_named() -> None:
    async def ask(place: str) -> None:
        async with served(place):
            with pytest.raises(ChannelUnavailable, match=f"metrics: {place}: Address already in"):
                await Watching(place=place, why_not_ready=lambda: "", metrics=lambda: b"").run(
                    asyncio.Event()
                )

    on_a_port(ask)


def test_those_who_say_nothing_or_read_nothing_are_cut_off_and_hold_up_nobody() -> None:
    """Their answers fill every buffer; the loop turns meanwhile, and others have theirs."""
    large = b"x" * 20_000_000

    async def ask(place: str) -> None:
        async with served(place, metrics=lambda: large, patience_s=1.0):
            idle = [await opened(place) for _ in range(3)]
            deaf = [await opened(place) for _ in range(3)]
            for _, writer in deaf:
                writer.write(get("/metrics"))
            async with asyncio.timeout(20):
                for _ in range(50):
                    await asyncio.sleep(0.001)
            assert (await said(place, get("/health"))).endswith(b"ok\n")
            await asyncio.sleep(1.5)
            for reader, writer in idle:
                with suppress(ConnectionError):
                    assert await asyncio.wait_for(reader.read(), 5) == b""
                writer.close()
            for reader, writer in deaf:
                got = 0
                with suppress(ConnectionError):
                    while piece := await asyncio.wait_for(reader.read(2**20), 5):
                        got += len(piece)
                assert got < len(large)
                writer.close()

    on_a_port(ask)


def test_more_than_a_few_at_a_time_are_cut_off() -> None:
    async def ask(place: str) -> None:
        async with served(place):
            held = [await opened(place) for _ in range(watching._MOST_CONNECTIONS)]
            await asyncio.sleep(0.1)
            assert await said(place, get("/health")) == b""
            for _, writer in held:
                writer.close()
            await asyncio.sleep(0.1)
            assert (await said(place, get("/health"))).endswith(b"ok\n")

    on_a_port(ask)


@pytest.mark.parametrize("page", ["/metrics", "/ready"])
def test_what_costs_something_is_made_once_a_second_at_most(page: str) -> None:
    made = []

    def metrics() -> bytes:
        made.append("/metrics")
        return FIGURES

    def why_not_ready() -> str:
        made.append("/ready")
        return ""

    async def ask(place: str) -> None:
        async with served(place, metrics=metrics, why_not_ready=why_not_ready):
            for _ in range(20):
                await said(place, get(page))

    begun = time.monotonic()
    on_a_port(ask)
    assert {*made} == {page}
    assert len(made) <= 2 + time.monotonic() - begun
