"""Which Ray cluster a simulation runs on, and what it says where none is."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack, suppress

import pytest

from retexo_fl.errors import ConfigurationError
from retexo_fl.simulation import ray_cluster
from retexo_fl.simulation.ray_cluster import check_answers, ray_address_of


@pytest.mark.parametrize(
    ("given", "variable", "engine", "address"),
    [
        (None, None, "flower", ""),
        (None, "", "flower", ""),
        (None, "local", "flower", ""),
        (None, "[::1]:6379", "flower", "[::1]:6379"),
        ("head:6379", "other:6379", "flower", "head:6379"),
        # Of the machine, for whatever else runs there.
        (None, "other:6379", "inline", ""),
        (None, "auto", "inline", ""),
    ],
)
def test_the_address_is_that_of_the_call_or_the_environment(
    monkeypatch: pytest.MonkeyPatch,
    given: str | None,
    variable: str | None,
    engine: str,
    address: str,
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if variable is not None:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    assert ray_address_of(given, engine) == address


@pytest.mark.parametrize(
    ("given", "variable", "engine", "words"),
    [
        ("head:6379", "", "inline", "ray-address: got engine inline; expected engine flower"),
        ("head:6379", "", "deployment", "ray-address: got engine deployment; expected"),
        ("ray://head:10001", "", "flower", "ray-address: got 'ray://head:10001'; expected"),
        ("", "", "flower", "ray-address: got ''; expected HOST:PORT"),
        (None, "auto", "flower", "RAY_ADDRESS: got 'auto'; expected HOST:PORT"),
    ],
)
def test_another_form_or_engine_is_refused(
    monkeypatch: pytest.MonkeyPatch, given: str | None, variable: str, engine: str, words: str
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", variable)
    with pytest.raises(ConfigurationError, match=words):
        ray_address_of(given, engine)


def test_where_nothing_answers_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(ConfigurationError, match=f"nothing answers at {address} .*refused"):
        check_answers(address)


@pytest.mark.parametrize("greeting", [b"", b"SSH-2.0-OpenSSH_9.6\r\n"])
def test_what_answers_but_is_no_ray_is_said_within_a_bound(
    monkeypatch: pytest.MonkeyPatch, greeting: bytes
) -> None:
    monkeypatch.setattr(ray_cluster, "_PATIENCE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with ExitStack() as held, suppress(OSError):
                while True:
                    stream = held.enter_context(server.accept()[0])
                    stream.sendall(greeting)

        serving = threading.Thread(target=serve)
        serving.start()
        began = time.monotonic()
        with pytest.raises(ConfigurationError, match="is no Ray cluster; expected the HOST:PORT"):
            check_answers(f"127.0.0.1:{server.getsockname()[1]}")
        assert time.monotonic() - began < 5
        server.shutdown(socket.SHUT_RDWR)
        serving.join(10)
