"""Files over HTTP, from a real server that does everything a server can do wrong."""

from __future__ import annotations

import gzip
import hashlib
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from retexo_fl.downloads.fetch import fetch
from retexo_fl.downloads.remote_file import Limits, RemoteFile
from retexo_fl.errors import DatasetError
from tests.support.web import (
    WebServer,
    closed_port,
    dripping,
    part_of,
    stalled,
    status,
    web_server,
    whole,
    write_certificate,
)

CONTENT = bytes(range(256)) * 1000
#: No time that a busy machine takes is too long; retries follow at once.
QUICK = Limits(connect_s=60.0, silence_s=60.0, total_s=200.0, pause_s=0.0)


@pytest.fixture(name="server")
def _server() -> Iterator[WebServer]:
    with web_server() as server:
        yield server


def remote(url: str, content: bytes = CONTENT, *, size_bytes: int | None = None) -> RemoteFile:
    digest = hashlib.sha256(content).hexdigest()
    return RemoteFile(name="file", url=url, sha256=digest, size_bytes=size_bytes)


def refused(file: RemoteFile, limits: Limits = QUICK) -> str:
    with pytest.raises(DatasetError) as caught:
        fetch(file, lambda size, announced: None, limits)
    told = str(caught.value)
    assert told.startswith(file.url)
    assert "\n" not in told
    return told.removeprefix(f"{file.url}: ")


def test_a_file_comes_whole_and_its_progress_is_told(server: WebServer) -> None:
    file = remote(server.serve("/a", CONTENT), size_bytes=len(CONTENT))
    told: list[tuple[int, int | None]] = []
    assert fetch(file, lambda size, announced: told.append((size, announced)), QUICK) == CONTENT
    assert told[-1] == (len(CONTENT), len(CONTENT))
    assert [size for size, _ in told] == sorted(size for size, _ in told)
    assert server.asked == ["/a"]


def test_a_length_need_not_be_announced(server: WebServer) -> None:
    told: list[int | None] = []
    file = remote(server.serve("/a", part_of(CONTENT, None)))
    assert fetch(file, lambda _, announced: told.append(announced), QUICK) == CONTENT
    assert set(told) == {None}


def test_an_altered_byte_is_found(server: WebServer) -> None:
    altered = CONTENT[:-1] + b"!"
    file = remote(server.serve("/a", altered), size_bytes=len(CONTENT))
    found, expected = (hashlib.sha256(one).hexdigest() for one in (altered, CONTENT))
    assert refused(file) == f"got 256000 bytes with SHA-256 {found}; expected {expected}"
    assert server.asked == ["/a"]


def test_a_shorter_file_is_found(server: WebServer) -> None:
    file = remote(server.serve("/a", part_of(CONTENT[:1000], None)), size_bytes=len(CONTENT))
    assert refused(file).startswith("got 1000 bytes with SHA-256 ")


def test_a_larger_file_is_cut_off(server: WebServer) -> None:
    announcing = remote(server.serve("/a", CONTENT), size_bytes=1000)
    assert refused(announcing) == "is larger than 1000 bytes; expected no more"
    silent = remote(server.serve("/b", part_of(CONTENT, None)), size_bytes=1000)
    assert refused(silent) == "is larger than 1000 bytes; expected no more"
    unknown = remote(server.serve("/c", CONTENT))
    limits = Limits(most_bytes=len(CONTENT) - 1)
    assert refused(unknown, limits) == "is larger than 255999 bytes; expected no more"
    assert fetch(unknown, lambda *_: None, Limits(most_bytes=len(CONTENT))) == CONTENT


def test_a_connection_that_breaks_is_tried_twice_more(server: WebServer) -> None:
    file = remote(server.serve("/a", part_of(CONTENT[:1000], len(CONTENT))))
    told = refused(file)
    assert told.startswith("broke off after 1000 bytes (peer closed connection")
    assert server.asked == ["/a"] * 3


def test_the_third_attempt_may_succeed(server: WebServer) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        first = [status(503), part_of(CONTENT[:10], len(CONTENT))]
        (first[len(server.asked) - 1] if len(server.asked) < 3 else whole(CONTENT))(handler)

    sizes: list[int] = []
    file = remote(server.serve("/a", answer))
    assert fetch(file, lambda size, _: sizes.append(size), QUICK) == CONTENT
    assert sizes[0] == 10
    assert sizes[-1] == len(CONTENT)


@pytest.mark.parametrize(
    ("code", "expected", "attempts"),
    [
        (404, "answers 404 Not Found; expected the file", 1),
        (403, "answers 403 Forbidden; expected the file", 1),
        (204, "answers 204 No Content; expected the file", 1),
        (599, "answers 599; expected the file", 1),
        (302, "answers 302 Found; expected the file", 1),
        (503, "answers 503 Service Unavailable", 3),
    ],
)
def test_a_status_is_told(server: WebServer, code: int, expected: str, attempts: int) -> None:
    file = remote(server.serve("/a", status(code)))
    assert refused(file) == expected
    assert server.asked == ["/a"] * attempts


def test_redirects_are_followed_but_not_for_ever(server: WebServer) -> None:
    server.serve("/c", CONTENT)
    server.serve("/b", status(307, Location="/c"))
    assert fetch(remote(server.serve("/a", status(301, Location="/b"))), lambda *_: None, QUICK)
    assert server.asked == ["/a", "/b", "/c"]
    loop = remote(server.serve("/loop", status(302, Location="/loop")))
    assert refused(loop) == "is redirected more than 5 times"
    assert server.asked.count("/loop") == 6


@pytest.mark.parametrize("target", ["ftp://host/file", "file:///etc/passwd"])
def test_redirects_to_another_protocol_are_refused_at_once(server: WebServer, target: str) -> None:
    told = refused(remote(server.serve("/a", status(302, Location=target))))
    assert told.startswith("leads to no address")
    assert server.asked == ["/a"]


@pytest.mark.parametrize("target", ["http://[", "://"])
def test_redirects_to_no_address_are_refused(server: WebServer, target: str) -> None:
    assert refused(remote(server.serve("/a", status(302, Location=target))))


def test_silence_has_an_end(server: WebServer) -> None:
    until = threading.Event()
    file = remote(server.serve("/a", stalled(b"some", until)))
    try:
        assert refused(file, replace(QUICK, silence_s=0.2)) == "no answer within 0.2 s"
    finally:
        until.set()
    assert server.asked == ["/a"] * 3


def test_a_drip_has_an_end(server: WebServer) -> None:
    until = threading.Event()
    file = remote(server.serve("/a", dripping(CONTENT, until, 0.02)))
    try:
        assert refused(file, replace(QUICK, total_s=0.3)) == "not there after 0.3 s"
    finally:
        until.set()


def test_nobody_listens() -> None:
    told = refused(remote(f"http://127.0.0.1:{closed_port()}/a"))
    assert told == "cannot be reached ([Errno 111] Connection refused)"


def test_retries_wait_and_stop_at_the_deadline() -> None:
    file = remote(f"http://127.0.0.1:{closed_port()}/a")
    begun = time.monotonic()
    refused(file, Limits(pause_s=0.1))
    assert time.monotonic() - begun >= 0.3
    # A pause that would end after the deadline is not made: it is longer than a test may take.
    refused(file, Limits(pause_s=6000.0, total_s=3000.0))


def test_answers_that_are_no_http_are_refused(server: WebServer) -> None:
    def nonsense(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"\x00\x01nonsense\r\n\r\n")
        handler.close_connection = True

    assert refused(remote(server.serve("/a", nonsense))).startswith("cannot be reached (")


def test_content_codings_are_not_undone(server: WebServer) -> None:
    packed = gzip.compress(b"x" * 10_000_000)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        assert handler.headers["Accept-Encoding"] == "identity"
        handler.send_response(200)
        handler.send_header("Content-Encoding", "gzip")
        handler.send_header("Content-Length", str(len(packed)))
        handler.end_headers()
        handler.wfile.write(packed)

    file = remote(server.serve("/a", answer))
    assert refused(file).startswith(f"got {len(packed)} bytes with SHA-256 ")


def test_a_file_without_a_digest_is_never_fetched(server: WebServer) -> None:
    with pytest.raises(AssertionError, match="no pinned SHA-256"):
        fetch(RemoteFile(name="file", url=server.serve("/a", CONTENT)), lambda *_: None, QUICK)
    assert server.asked == []


def test_https_needs_a_certificate_that_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = write_certificate(tmp_path / "certificate.pem")
    with web_server(certificate) as server:
        file = remote(server.serve("/a", CONTENT))
        told = refused(file)
        assert told.startswith("cannot be reached ([SSL: CERTIFICATE_VERIFY_FAILED]")
        assert server.asked == []
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert fetch(file, lambda *_: None, QUICK) == CONTENT


def test_redirects_do_not_leave_https(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: WebServer
) -> None:
    certificate = write_certificate(tmp_path / "certificate.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    plain = server.serve("/a", CONTENT)
    with web_server(certificate) as secure:
        file = remote(secure.serve("/a", status(302, Location=plain)))
        assert refused(file) == "is redirected from https to http"
    assert server.asked == []
