"""The doctor asks a real server on this machine."""

from __future__ import annotations

import socket
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from retexo_fl.doctor.finding import Finding, Verdict
from retexo_fl.doctor.superlink import examine_superlink
from retexo_fl.errors import ConfigurationError
from tests.support.web import status, web_server, write_certificate


def _address(url: str) -> str:
    return url.partition("://")[2]


def _by_thing(address: str, root: Path | None) -> dict[str, Finding]:
    return {item.thing: item for item in examine_superlink(address, root)}


def test_superlink_that_answers_is_good(tmp_path: Path) -> None:
    certificate = write_certificate(tmp_path / "ca.pem")
    with web_server(certificate) as server:
        server.serve("/health", b"")
        found = _by_thing(_address(server.url), certificate)
    assert found["superlink"].verdict is Verdict.GOOD
    assert found["clock"].verdict is Verdict.GOOD


def test_superlink_without_tls_is_doubtful() -> None:
    with web_server() as server:
        server.serve("/health", b"")
        found = _by_thing(_address(server.url), None)
    assert found["TLS"].verdict is Verdict.DOUBTFUL
    assert found["superlink"].verdict is Verdict.GOOD


def test_another_ca_is_named(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = write_certificate(tmp_path / "other" / "ca.pem")
    with web_server(write_certificate(tmp_path / "ca.pem")) as server:
        found = _by_thing(_address(server.url), other)
    assert found["superlink"].verdict is Verdict.BAD
    assert "ca.crt" in found["superlink"].advice


def test_plain_server_behind_tls_is_named(tmp_path: Path) -> None:
    with web_server() as server:
        found = _by_thing(_address(server.url), write_certificate(tmp_path / "ca.pem"))
    assert found["superlink"].verdict is Verdict.BAD
    assert "TLS" in found["superlink"].advice


def test_another_server_is_named() -> None:
    with web_server() as server:
        found = _by_thing(_address(server.url), None)
    assert found["superlink"].verdict is Verdict.BAD
    assert "404" in found["superlink"].seen


def test_wrong_clock_is_named() -> None:
    def long_ago(request: BaseHTTPRequestHandler) -> None:
        request.send_response_only(200)
        request.send_header("Date", "Sun, 01 Mar 2026 10:00:00 GMT")
        request.send_header("Content-Length", "0")
        request.end_headers()

    with web_server() as server:
        server.serve("/health", long_ago)
        found = _by_thing(_address(server.url), None)
    assert found["clock"].verdict is Verdict.BAD
    assert "ahead" in found["clock"].seen


def test_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    found = _by_thing(address, None)
    assert found["superlink"].verdict is Verdict.BAD
    assert "nothing listens" in found["superlink"].seen


def test_missing_ca_is_named(tmp_path: Path) -> None:
    found = _by_thing("127.0.0.1:9", tmp_path / "ca.crt")
    assert found["TLS"].verdict is Verdict.BAD
    assert "superlink" not in found


def test_address_is_checked() -> None:
    with pytest.raises(ConfigurationError, match="HOST:PORT"):
        list(examine_superlink("vm", None))


def test_server_error_is_no_health() -> None:
    with web_server() as server:
        server.serve("/health", status(503))
        found = _by_thing(_address(server.url), None)
    assert "503" in found["superlink"].seen
