"""A web server of this machine whose answers a test decides."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

#: Answers a request; what it writes is what the client gets.
Answer = Callable[[BaseHTTPRequestHandler], None]


class WebServer:
    """Serves answers by path, and notes what was asked for."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers: dict[str, Answer] = {}
        self.asked: list[str] = []

    def serve(self, path: str, answer: Answer | bytes) -> str:
        """Decide the answer to a path, and return its address."""
        self.answers[path] = whole(answer) if isinstance(answer, bytes) else answer
        return self.url + path


@contextmanager
def web_server(certificate: Path | None = None) -> Iterator[WebServer]:
    """Run a server until the end of the body; by HTTPS with a file of certificate and key."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.asked.append(self.path)
            # A client that has gone is nothing to tell.
            with suppress(OSError):
                server.answers.get(self.path, status(404))(self)

        def log_message(self, format: str, *arguments: object) -> None:
            """Print nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        http.socket = context.wrap_socket(http.socket, server_side=True)
    scheme = "http" if certificate is None else "https"
    server = WebServer(f"{scheme}://127.0.0.1:{http.server_address[1]}")
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


@contextmanager
def web_proxy(verdict: bytes = b"") -> Iterator[WebServer]:
    """Run a proxy of this machine, which notes whom it was to reach; with a verdict it refuses."""
    listening = socket.create_server(("127.0.0.1", 0))
    proxy = WebServer(f"http://127.0.0.1:{listening.getsockname()[1]}")

    def serve() -> None:
        with suppress(OSError):
            while True:
                near, _ = listening.accept()
                threading.Thread(target=pass_on, args=(near,), daemon=True).start()

    def pass_on(near: socket.socket) -> None:
        with near, suppress(OSError):
            head = near.recv(65_536)
            method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
            place = urlsplit(target if "://" in target else f"//{target}")
            proxy.asked.append(place.netloc)
            if verdict:
                near.sendall(b"HTTP/1.1 " + verdict + b"\r\nContent-Length: 0\r\n\r\n")
                return
            with socket.create_connection((place.hostname, place.port)) as far:
                if method == "CONNECT":
                    near.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                else:
                    far.sendall(head.replace(target.encode(), place.path.encode(), 1))
                back = threading.Thread(target=_copy, args=(far, near), daemon=True)
                back.start()
                _copy(near, far)
                back.join(10)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        # Closing alone does not wake who accepts.
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(10)


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while content := source.recv(65_536):
            sink.sendall(content)
        sink.shutdown(socket.SHUT_WR)


def whole(content: bytes) -> Answer:
    """Send all of it."""
    return part_of(content, len(content))


def part_of(content: bytes, announced: int | None) -> Answer:
    """Send it under another announced length (None: none), and close."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        if announced is not None:
            handler.send_header("Content-Length", str(announced))
        handler.end_headers()
        handler.wfile.write(content)
        handler.close_connection = True

    return answer


def status(code: int, **headers: str) -> Answer:
    """Send a status without content."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


def stalled(content: bytes, until: threading.Event) -> Answer:
    """Send some bytes of more, and nothing further before an event."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content) + 1))
        handler.end_headers()
        handler.wfile.write(content)
        handler.wfile.flush()
        until.wait(30)

    return answer


def dripping(content: bytes, pause: threading.Event, pause_s: float) -> Answer:
    """Send byte after byte with a pause before each."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        for byte in content:
            pause.wait(pause_s)
            handler.wfile.write(bytes([byte]))
            handler.wfile.flush()

    return answer


def write_certificate(path: Path) -> Path:
    """Write a certificate for 127.0.0.1, signed by itself, with its key, and return its path."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(
        issuer_name=name,
        subject_name=name,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - timedelta(days=1),
        not_valid_after=now + timedelta(days=1),
    )
    address = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
    builder = builder.add_extension(address, critical=False)
    certificate = builder.sign(key, hashes.SHA256())
    path.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return path


def closed_port() -> int:
    """Return a port of this machine where nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
