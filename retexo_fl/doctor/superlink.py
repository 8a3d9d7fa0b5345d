"""The way to the server: its SuperLink answers, with a certificate that this machine trusts."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final

from retexo_fl.agent.settings import host_and_port
from retexo_fl.doctor.finding import Finding, absent, bad, doubtful, good
from retexo_fl.doctor.machine import judge_clock

_TIMEOUT_S: Final = 5.0
_HEALTH: Final = "/health"


def examine_superlink(address: str, root_certificates: Path | None) -> Iterator[Finding]:
    """Ask the SuperLink whether it is well, as a SuperNode would reach it.

    Args:
        address: ``HOST:PORT``; empty if none was named.
        root_certificates: The server's CA; None to go without TLS.

    Raises:
        ConfigurationError: The address is none.
    """
    if not address:
        yield absent("superlink", "not checked", "name it: --superlink HOST:8000")
        return
    host, port = host_and_port(address, "superlink")
    if root_certificates is None:
        yield doubtful("TLS", "not used", "name the server's CA: --root-certificates ca.crt")
        yield from _ask(http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S), address)
        return
    try:
        context = ssl.create_default_context(cafile=str(root_certificates))
    except (OSError, ssl.SSLError) as error:
        yield bad("TLS", f"{root_certificates}: {error}", "copy ca.crt from the server")
        return
    connection = http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=context)
    yield from _ask(connection, address)


def _ask(connection: http.client.HTTPConnection, address: str) -> Iterator[Finding]:
    try:
        connection.request("GET", _HEALTH)
        answer = connection.getresponse()
        answer.read(1024)
    except ssl.SSLCertVerificationError as error:
        yield bad("superlink", f"{address}: {error.verify_message}", _certificate_advice(error))
    except ssl.SSLError as error:
        yield bad("superlink", f"{address}: {error.reason or error}", "does this port use TLS?")
    except socket.gaierror:
        yield bad("superlink", f"{address}: unknown host", "check the name, or use its address")
    except (ConnectionRefusedError, TimeoutError) as error:
        yield bad("superlink", f"{address}: {_plain(error)}", _unreachable_advice(error))
    except (OSError, UnicodeError, http.client.HTTPException) as error:
        yield bad("superlink", f"{address}: {error}", "check the address and the route to it")
    else:
        yield _judge(answer, address)
        yield from _clock(answer)
    finally:
        connection.close()


def _judge(answer: http.client.HTTPResponse, address: str) -> Finding:
    if answer.status >= http.client.BAD_REQUEST:
        advice = "is that a SuperLink of Flower 1.40 or later?"
        return bad("superlink", f"{address}: HTTP {answer.status}", advice)
    return good("superlink", f"{address} answers")


def _clock(answer: http.client.HTTPResponse) -> Iterator[Finding]:
    said = answer.headers.get("date")
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


def _plain(error: OSError) -> str:
    return "nothing listens there" if isinstance(error, ConnectionRefusedError) else "no answer"


def _unreachable_advice(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "on the server: systemctl status retexo-superlink"
    return "open the port in the server's firewall, and check the route"
