"""The doctor asks a real server on this machine."""

from __future__ import annotations

import socket
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from retexo_fl.doctor.finding import Finding, Verdict
from retexo_fl.doctor.superlink import examine_superlink
from retexo_fl.errors import ConfigurationError
from tests.support.web import status, web_proxy, web_server, write_certificate


def _address(url: str) -> str:
    return url.partition("://")[2]


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


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


# ---- proxies ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "has_tls"),
    [("HTTP_PROXY", False), ("all_proxy", False), ("HTTPS_PROXY", True), ("ALL_PROXY", True)],
)
def test_proxy_on_the_way_is_asked_as_flower_asks_it(
    variable: str, has_tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = write_certificate(tmp_path / "ca.pem") if has_tls else None
    with web_server(certificate) as server, web_proxy() as proxy:
        server.serve("/health", b"")
        monkeypatch.setenv(variable, proxy.url)
        found = _by_thing(_address(server.url), certificate)["superlink"]
    assert found.verdict is Verdict.GOOD
    assert proxy.asked == [_address(server.url)]
    assert f"the proxy {_address(proxy.url)}, which {variable} names" in found.seen


@pytest.mark.parametrize("has_tls", [False, True])
def test_proxy_that_refuses_is_named_with_the_way_around(
    has_tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = write_certificate(tmp_path / "ca.pem") if has_tls else None
    with web_server(certificate) as server, web_proxy(b"403 Forbidden") as proxy:
        server.serve("/health", b"")
        address = _address(server.url)
        monkeypatch.setenv("ALL_PROXY", proxy.url)
        found = _by_thing(address, certificate)["superlink"]
        assert found.verdict is Verdict.BAD
        assert found.seen.startswith(f"{address}: ")
        assert "403" in found.seen
        assert f"{_address(proxy.url)}, which ALL_PROXY names" in found.seen
        assert "if 127.0.0.1 can be reached without it: NO_PROXY=127.0.0.1;" in found.advice
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        assert _by_thing(address, certificate)["superlink"].verdict is Verdict.GOOD


def test_proxy_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with web_server() as server:
        server.serve("/health", b"")
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        found = _by_thing(_address(server.url), None)["superlink"]
    assert "nothing listens there; it is reached through the proxy 127.0.0.1:9" in found.seen
    assert "NO_PROXY=127.0.0.1" in found.advice


def test_proxy_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1080")
    found = _by_thing("vm:8000", None)["superlink"]
    assert found.seen.startswith("vm:8000: ALL_PROXY names socks5://127.0.0.1:1080")
    assert "NO_PROXY='*'" in found.advice


# ---- addresses, and ports that speak otherwise --------------------------------------------------


def test_port_that_uses_tls_says_so_to_who_does_not(tmp_path: Path) -> None:
    with web_server(write_certificate(tmp_path / "ca.pem")) as server:
        found = _by_thing(_address(server.url), None)["superlink"]
    assert found.seen == f"{_address(server.url)}: this port uses TLS"
    assert "--root-certificates" in found.advice


def test_port_without_tls_says_so_to_who_uses_it(tmp_path: Path) -> None:
    certificate = write_certificate(tmp_path / "ca.pem")
    with web_server() as server:
        server.serve("/health", b"")
        found = _by_thing(_address(server.url), certificate)["superlink"]
    assert found.seen.endswith("this port does not use TLS")
    assert "--insecure" in found.advice


def test_url_says_whether_there_is_tls(tmp_path: Path) -> None:
    certificate = write_certificate(tmp_path / "ca.pem")
    with web_server(certificate) as server:
        server.serve("/health", b"")
        found = _by_thing(server.url, certificate)["superlink"]
        assert found.verdict is Verdict.GOOD
        # Without its CA, by those that this machine trusts.
        found = _by_thing(f"{server.url}/", None)["superlink"]
        assert "self-signed certificate" in found.seen
    with web_server() as server:
        server.serve("/health", b"")
        for scheme in ("http", "grpc"):
            address = f"{scheme}://{_address(server.url)}"
            assert _by_thing(address, None)["superlink"].verdict is Verdict.GOOD
    with pytest.raises(ConfigurationError, match="http://127.0.0.1:9 is without TLS"):
        _by_thing("http://127.0.0.1:9", certificate)


def test_ipv6_address_in_brackets_is_asked() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        address = f"[::1]:{taken.getsockname()[1]}"
    found = _by_thing(address, None)["superlink"]
    assert found.seen == f"{address}: nothing listens there"
