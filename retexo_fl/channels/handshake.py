"""TLS on a fresh stream: who is at its other end, within a bounded time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from retexo_fl.channels.secure_stream import SecureStream
from retexo_fl.channels.streams import ByteStream
from retexo_fl.errors import ChannelClosed, RetexoError
from retexo_fl.exchange.link.reasons import Reason, refused

_PIECE_BYTES = 2**14
#: A handshake of two certificates has about 3 kB; more is no handshake.
_MAX_BYTES = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class Proved:
    """A stream whose other end has proved who it is.

    Attributes:
        client: Who it is.
        stream: Carries TLS.
        secure: Its handshake is done.
        sent_bytes: Of the handshake; ``received_bytes`` likewise.
    """

    client: int
    stream: ByteStream
    secure: SecureStream
    sent_bytes: int
    received_bytes: int


async def prove(
    stream: ByteStream, secure: SecureStream, *, within_s: float, heard: bytes = b""
) -> Proved:
    """Do the handshake; the other end has said what was ``heard`` already.

    Raises:
        PeerRefused: It is not in the roster, or was too slow.
        ChannelClosed: The stream broke.
    """
    try:
        async with asyncio.timeout(within_s):
            return await _prove(stream, secure, heard)
    except TimeoutError as error:
        raise refused(Reason.SLOW, f"no handshake within {within_s:g} s") from error


async def first_words(stream: ByteStream, *, within_s: float) -> bytes:
    """Return what the other end says first.

    Raises:
        PeerRefused: It says nothing in time.
        ChannelClosed: The stream broke.
    """
    try:
        async with asyncio.timeout(within_s):
            return await stream.read(_PIECE_BYTES)
    except TimeoutError as error:
        raise refused(Reason.SLOW, f"no handshake within {within_s:g} s") from error


async def _prove(stream: ByteStream, secure: SecureStream, heard: bytes) -> Proved:
    if heard:
        secure.receive_data(heard)
    sent_bytes, received_bytes = 0, len(heard)
    while True:
        try:
            client = secure.handshake()
        except RetexoError:
            # OpenSSL has written an alert with the reason for the other end.
            with suppress(ChannelClosed):
                await stream.write(secure.data_to_send())
            raise
        wire = secure.data_to_send()
        await stream.write(wire)
        sent_bytes += len(wire)
        if client is not None:
            return Proved(
                client=client,
                stream=stream,
                secure=secure,
                sent_bytes=sent_bytes,
                received_bytes=received_bytes,
            )
        data = await stream.read(_PIECE_BYTES)
        received_bytes += len(data)
        if received_bytes > _MAX_BYTES:
            raise refused(Reason.OVERSIZE, f"a handshake of over {_MAX_BYTES} bytes")
        secure.receive_data(data)
