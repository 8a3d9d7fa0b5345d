"""TLS 1.3 over any stream of bytes, sans-IO: both ends show the certificate that the roster holds.

The roster's certificates are the only trust anchors. The accepting end takes any of them and learns
from the digest which client it is; the connecting end takes that of the client it connects to.
There is no session resumption: every link proves both ends anew.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Mapping
from typing import Final, cast

from retexo_fl.channels.identity import Identity
from retexo_fl.channels.roster import Member, Roster
from retexo_fl.errors import ChannelClosed, IdentityError, PeerRefused
from retexo_fl.exchange.frames import Buffer
from retexo_fl.exchange.link.reasons import Reason, refused

#: A TLS record carries at most this much.
_RECORD_BYTES: Final = 16_384
_BUFFER_BYTES: Final = 2**18
#: OpenSSL's numbers for what a clock makes of a certificate.
_TIMES: Final = {9: "is not valid yet", 10: "has expired"}
#: Words of OpenSSL for alerts by which a peer refuses the certificate that it was shown.
_CERTIFICATE_ALERTS: Final = (
    "UNKNOWN_CA",
    "BAD_CERTIFICATE",
    "CERTIFICATE_UNKNOWN",
    "CERTIFICATE_REQUIRED",
    "UNSUPPORTED_CERTIFICATE",
    "ACCESS_DENIED",
)


class SecureStream:
    """One end of a TLS connection: bytes of the wire in and out, bytes of the link in and out.

    Call :meth:`handshake` after each :meth:`receive_data` until it returns the peer's client index,
    and send what :meth:`data_to_send` returns every time.

    Args:
        context: See :func:`accepting_context` and :func:`connecting_context`.
        is_accepting: Whether the other end opened the connection.
        clients: Client index by the digest of its certificate: who may be at the other end.
    """

    def __init__(
        self, context: ssl.SSLContext, *, is_accepting: bool, clients: Mapping[bytes, int]
    ) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=is_accepting)
        self._buffer = bytearray(_BUFFER_BYTES)
        self._clients = clients
        self._peer: int | None = None
        #: Of the certificate that the other end has shown, once it has.
        self.peer_digest = b""
        self._error: ssl.SSLError | None = None

    def receive_data(self, data: Buffer) -> None:
        """Give bytes of the wire, or ``b""`` when the other end has closed it."""
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def data_to_send(self) -> bytes:
        """Return the bytes for the wire."""
        return self._outgoing.read()

    def handshake(self) -> int | None:
        """Continue the handshake; return the client at the other end once it is done.

        Raises:
            PeerRefused: It is not in the roster, or refuses this end.
            ChannelClosed: It left during the handshake.
        """
        if self._peer is not None:
            return self._peer
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLError as error:
            raise _named(error) from error
        shown = self._tls.getpeercert(binary_form=True)
        self.peer_digest = hashlib.sha256(shown or b"").digest()
        peer = self._clients.get(self.peer_digest)
        if peer is None:
            raise refused(Reason.CERTIFICATE, "its certificate is not in the roster")
        self._peer = peer
        return peer

    def read(self) -> memoryview | None:
        """Return bytes of the link, none at its end, or None when more of the wire is needed.

        They are in a buffer that the next call overwrites.

        Raises:
            PeerRefused: The peer refuses this end's certificate, which TLS 1.3 reports only now.
            ChannelClosed: The wire ended without a goodbye, or was altered.
        """
        if self._error is not None:
            raise _named(self._error) from self._error
        end, view = 0, memoryview(self._buffer)
        try:
            while end + _RECORD_BYTES <= len(view):
                # With a buffer it returns how many bytes it wrote there.
                count = cast("int", self._tls.read(_RECORD_BYTES, view[end:]))
                if not count:
                    break
                end += count
        except ssl.SSLWantReadError:
            return view[:end] if end else None
        except ssl.SSLZeroReturnError:
            return view[:end]
        except ssl.SSLError as error:
            self._error = error
            # What came before it is sound; the error comes at the next call.
            if not end:
                raise _named(error) from error
        return view[:end]

    def write(self, data: Buffer) -> None:
        """Take bytes of the link; fetch them with :meth:`data_to_send`.

        Raises:
            ChannelClosed: The connection has ended.
        """
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            raise _named(error) from error

    def close(self) -> None:
        """Say goodbye; fetch it with :meth:`data_to_send`."""
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            # The other end has not said goodbye yet, or never will: do not wait for it.
            return


def accepting_context(identity: Identity, roster: Roster) -> ssl.SSLContext:
    """Return the context of an end that takes connections from any client of a roster.

    Raises:
        IdentityError: Key or certificate cannot be used, or one of the roster.
    """
    context = _context(ssl.PROTOCOL_TLS_SERVER, identity)
    context.num_tickets = 0
    anchors = [member.certificate_pem for member in roster.members.values()]
    if anchors:
        _trust(context, "\n".join(anchors))
    return context


def connecting_context(identity: Identity, member: Member) -> ssl.SSLContext:
    """Return the context of an end that connects to one client.

    Raises:
        IdentityError: Key or certificate cannot be used, or the member's.
    """
    context = _context(ssl.PROTOCOL_TLS_CLIENT, identity)
    _trust(context, member.certificate_pem)
    return context


def _trust(context: ssl.SSLContext, anchors_pem: str) -> None:
    try:
        context.load_verify_locations(cadata=anchors_pem)
    except ssl.SSLError as error:
        problem = f"TLS cannot use a certificate ({error.reason})"
        raise IdentityError(f"roster: {problem}") from error


def _context(protocol: int, identity: Identity) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # What Python turns on by itself from 3.13: the same rules whatever the version.
    context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_cert_chain(identity.certificate_path, identity.key_path)
    except (OSError, ssl.SSLError) as error:
        raise IdentityError(f"{identity.certificate_path}: {error.strerror or error}") from error
    return context


def _named(error: ssl.SSLError) -> PeerRefused | ChannelClosed:
    """Say what an error of OpenSSL means here."""
    word = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        when = _TIMES.get(error.verify_code)
        problem = f"{when}; compare the clocks" if when else f"is unknown ({error.verify_message})"
        return refused(Reason.CERTIFICATE, f"its certificate {problem}")
    if any(alert in word for alert in _CERTIFICATE_ALERTS) and "ALERT" in word:
        return refused(Reason.CERTIFICATE, "the peer does not know our certificate")
    if word == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return refused(Reason.CERTIFICATE, "it sent no certificate")
    if isinstance(error, ssl.SSLEOFError) or word == "UNEXPECTED_EOF_WHILE_READING":
        return ChannelClosed("the connection ended without a TLS close")
    return ChannelClosed(f"TLS: {word.replace('_', ' ').lower() or error}")
