"""The way to the server: its SuperLink answers, with a certificate that this machine trusts."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import Final

import httpx

from retexo_fl.doctor.finding import Finding, absent, bad, doubtful, good
from retexo_fl.doctor.machine import judge_clock
from retexo_fl.errors import ConfigurationError
from retexo_fl.proxies import http_client, variable_for, without_proxy
from retexo_fl.server_address import ServerAddress

_TIMEOUT_S: Final = 5.0
_HEALTH: Final = "/health"
#: What a port answers that uses TLS, to who does not, or closes the connection at.
_NOT_HTTP: Final = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)


def examine_superlink(address: str, root_certificates: Path | None) -> Iterator[Finding]:
    """Ask the SuperLink whether it is well, as Flower would: with its HTTP client, and its proxies.

    Args:
        address: ``HOST:PORT``, or a URL that says whether it uses TLS; empty if none was named.
        root_certificates: The server's CA; None for no TLS, or with ``https://`` for the CAs that
            this machine trusts.

    Raises:
        ConfigurationError: The address is none, or contradicts the certificates.
    """
    if not address:
        yield absent("superlink", "not checked", "name it: --superlink HOST:8000")
        return
    server = ServerAddress.parse(address, "superlink")
    if server.tls is False and root_certificates is not None:
        raise ConfigurationError(
            f"superlink: {address} is without TLS; expected https:// with root-certificates"
        )
    if root_certificates is None and not server.tls:
        yield doubtful("TLS", "not used", "name the server's CA: --root-certificates ca.crt")
        yield from _Question(server=server, scheme="http", verify=False).findings()
        return
    verify: ssl.SSLContext | bool = True
    if root_certificates is not None:
        # As Flower makes it.
        verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            verify.load_verify_locations(cafile=str(root_certificates))
        except (OSError, ssl.SSLError) as error:
            yield bad("TLS", f"{root_certificates}: {error}", "copy ca.crt from the server")
            return
    yield from _Question(server=server, scheme="https", verify=verify).findings()


@dataclass(slots=True, kw_only=True)
class _Question:
    """Whether a SuperLink is well.

    Attributes:
        server: Where it is.
        scheme: ``http`` or ``https``.
        verify: How its certificate is judged, as httpx takes it.
        proxy: Where the connection went, if not to the server.
    """

    server: ServerAddress
    scheme: str
    verify: ssl.SSLContext | bool
    proxy: str = ""

    def findings(self) -> Iterator[Finding]:
        """Ask, and judge the answer."""
        try:
            status, said = self._asked()
        except ConfigurationError as error:
            variable, _, sentence = str(error).partition(": ")
            seen, _, advice = sentence.partition("; ")
            yield bad("superlink", f"{self.server}: {variable} {seen}", advice)
        except httpx.InvalidURL as error:
            yield bad("superlink", f"{self.server}: {error}", "check the address")
        except httpx.HTTPError as error:
            yield self._reached(*self._failure(error))
        else:
            yield self._judge(status)
            yield from _clock(said)

    def _asked(self) -> tuple[int, str | None]:
        """Return the status of the answer, and the date in it.

        Raises:
            httpx.HTTPError: There is none.
            ConfigurationError: A proxy is named that cannot be used.
        """
        url = httpx.URL(f"{self.scheme}://{self.server}{_HEALTH}")

        def note(event: str, facts: dict[str, object]) -> None:
            if event.endswith("connect_tcp.started") and not self.proxy:
                there = facts["host"], facts["port"]
                if there != (url.raw_host.decode(), self.server.port):
                    self.proxy = f"{there[0]}:{there[1]}"

        with (
            http_client(verify=self.verify, timeout=_TIMEOUT_S, follow_redirects=True) as client,
            # Nothing is read of what it says.
            client.stream("GET", url, extensions={"trace": note}) as answer,
        ):
            return answer.status_code, answer.headers.get("date")

    def _failure(self, error: httpx.HTTPError) -> tuple[str, str]:
        """Return what happened, and what to do."""
        if isinstance(error, httpx.ProxyError):
            return f"it says {error}", "ask who runs it"
        cause = _cause(error)
        if isinstance(cause, ssl.SSLError):
            return self._tls_failure(cause)
        if self.scheme == "http" and isinstance(error, _NOT_HTTP) and self._speaks("https"):
            return _USES_TLS
        return _way_failure(error, cause)

    def _tls_failure(self, cause: ssl.SSLError) -> tuple[str, str]:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return cause.verify_message, _certificate_advice(cause)
        if self._speaks("http"):
            return (
                "this port does not use TLS",
                "start the SuperLink with its certificate; or connect without TLS (--insecure, "
                f"or http://{self.server})",
            )
        return str(cause.reason or cause), "does this port use TLS?"

    def _speaks(self, scheme: str) -> bool:
        """Return whether there is a server of the other scheme, whoever it is."""
        other = _Question(server=self.server, scheme=scheme, verify=False)
        try:
            other._asked()
        except httpx.HTTPError:
            return False
        return True

    def _judge(self, status: int) -> Finding:
        if status < HTTPStatus.BAD_REQUEST:
            through = f", through {self._proxy_named}" if self.proxy else ""
            return good("superlink", f"{self.server} answers{through}")
        if self.scheme == "http" and status == HTTPStatus.BAD_REQUEST and self._speaks("https"):
            return self._reached(*_USES_TLS)
        return self._reached(f"HTTP {status}", "is that a SuperLink of Flower 1.40 or later?")

    def _reached(self, seen: str, advice: str) -> Finding:
        """Return a failure, with the proxy on the way if there is one."""
        if not self.proxy:
            return bad("superlink", f"{self.server}: {seen}", advice)
        host = self.server.host
        return bad(
            "superlink",
            f"{self.server}: {seen}; it is reached through {self._proxy_named}",
            f"if {host} can be reached without it: {without_proxy(host)}; else {advice}",
        )

    @property
    def _proxy_named(self) -> str:
        named = variable_for(self.scheme)
        return f"the proxy {self.proxy}, which {named or 'this system'} names"


_USES_TLS: Final = (
    "this port uses TLS",
    "name its CA, --root-certificates ca.crt, in place of --insecure or http://",
)


def _way_failure(error: httpx.HTTPError, cause: BaseException) -> tuple[str, str]:
    if isinstance(cause, socket.gaierror):
        return "unknown host", "check the name, or use its address"
    if isinstance(cause, ConnectionRefusedError):
        return "nothing listens there", "on the server: systemctl status retexo-superlink"
    if isinstance(error, httpx.TimeoutException):
        return "no answer", "open the port in the server's firewall, and check the route"
    return str(error) or type(error).__name__, "check the address and the route to it"


def _cause(error: BaseException) -> BaseException:
    """Return what an error of httpx began with."""
    while (before := error.__cause__ or error.__context__) is not None:
        error = before
    return error


def _clock(said: str | None) -> Iterator[Finding]:
    if said is None:
        yield absent("clock", "not checked: the server sent no date")
        return
    try:
        server_unix_s = parsedate_to_datetime(said).timestamp()
    except (ValueError, OverflowError):
        yield absent("clock", "not checked: the server sent an unreadable date")
        return
    yield judge_clock(time.time() - server_unix_s)


def _certificate_advice(error: ssl.SSLCertVerificationError) -> str:
    if "expired" in error.verify_message or "not yet valid" in error.verify_message:
        return "check this machine's clock, then the certificate's dates"
    if "match" in error.verify_message:
        return "make the server's certificate again, with this name in it"
    return "use the ca.crt that signed the server's certificate"
