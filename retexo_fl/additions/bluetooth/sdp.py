"""The part of the Service Discovery Protocol that our record needs: question, answer, record.

No socket is touched here. What a device answers is not trusted: lengths, depth and sizes are
checked before anything is read.

Source: Bluetooth Core Specification 5.4, Vol 3, Part B, sections 2.3 (records), 3 (data elements)
and 4.7 (search and attributes in one).
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import quoteattr

from retexo_fl.additions.bluetooth import SERVICE_NAME, SERVICE_UUID
from retexo_fl.errors import RemoteProtocolError
from retexo_fl.units import counted

#: What a data element holds; a sequence is a tuple of them.
Element = int | bytes | bool | uuid.UUID | None | tuple["Element", ...]

#: No record of ours comes near; longer answers are refused.
MAX_ANSWER_BYTES: Final = 2**16
_BASE: Final = "0000-1000-8000-00805f9b34fb"
_RFCOMM: Final = uuid.UUID(f"00000003-{_BASE}")
_PROTOCOLS: Final = 0x0004
_DESCRIPTION: Final = 0x0101
_REQUEST, _RESPONSE, _ERROR = 0x06, 0x07, 0x01
_MAX_DEPTH: Final = 8
_MAX_CONTINUATION_BYTES: Final = 16
_MAX_CHANNEL: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One published record of our service.

    Attributes:
        channel: RFCOMM channel that takes streams, 1 to 30.
        adapter: Address of the only adapter at which it does; empty: at every one.
    """

    channel: int
    adapter: str


def record_xml(offer: Offer) -> str:
    """Return the record as BlueZ reads it."""
    return (
        '<?xml version="1.0" encoding="UTF-8"?><record>'
        f'<attribute id="0x0001"><sequence><uuid value="{SERVICE_UUID}"/></sequence></attribute>'
        '<attribute id="0x0004"><sequence>'
        '<sequence><uuid value="0x0100"/></sequence>'
        f'<sequence><uuid value="0x0003"/><uint8 value="0x{offer.channel:02x}"/></sequence>'
        "</sequence></attribute>"
        '<attribute id="0x0005"><sequence><uuid value="0x1002"/></sequence></attribute>'
        f'<attribute id="0x0100"><text value={quoteattr(SERVICE_NAME)}/></attribute>'
        f'<attribute id="0x0101"><text value={quoteattr(offer.adapter)}/></attribute>'
        "</record>"
    )


def question(transaction: int, continuation: bytes = b"") -> bytes:
    """Return a request for the protocols and the description of all records of our service."""
    wanted = b"\x1c" + uuid.UUID(SERVICE_UUID).bytes
    attributes = b"".join(b"\x09" + struct.pack(">H", at) for at in (_PROTOCOLS, _DESCRIPTION))
    parameters = (
        _sequence(wanted)
        + struct.pack(">H", 0xFFFF)
        + _sequence(attributes)
        + bytes([len(continuation)])
        + continuation
    )
    return struct.pack(">BHH", _REQUEST, transaction, len(parameters)) + parameters


def answer_parts(packet: bytes, transaction: int) -> tuple[bytes, bytes]:
    """Return the attributes of one answer, and how to ask for the rest (empty: this is all).

    Raises:
        RemoteProtocolError: It is not an answer to that question.
    """
    if len(packet) < 5:
        raise RemoteProtocolError(f"SDP: {counted(len(packet), 'byte')}; expected a header of 5")
    kind, number, length = struct.unpack(">BHH", packet[:5])
    body = packet[5:]
    if number != transaction or length != len(body):
        raise RemoteProtocolError("SDP: answer with another transaction number or length")
    if kind == _ERROR:
        raise RemoteProtocolError(f"SDP: the device answered with error 0x{body[:2].hex()}")
    if kind != _RESPONSE or len(body) < 3:
        raise RemoteProtocolError(f"SDP: answer of kind 0x{kind:02x}; expected 0x{_RESPONSE:02x}")
    end = 2 + int.from_bytes(body[:2])
    rest = body[end:]
    # The continuation's length, then that many bytes, then nothing.
    if not rest or rest[0] > _MAX_CONTINUATION_BYTES or len(rest) != 1 + rest[0]:
        raise RemoteProtocolError("SDP: the lengths within an answer contradict each other")
    return body[2:end], rest[1:]


def offers(attributes: bytes) -> tuple[Offer, ...]:
    """Return what the records in an answer offer; records of other forms are passed over.

    Raises:
        RemoteProtocolError: These are no attribute lists.
    """
    lists, end = _element(memoryview(attributes), 0)
    if end != len(attributes) or not isinstance(lists, tuple):
        raise RemoteProtocolError("SDP: expected one list of records")
    found = (_offer(record) for record in lists if isinstance(record, tuple))
    return tuple(offer for offer in found if offer is not None)


def _offer(record: tuple[Element, ...]) -> Offer | None:
    values = dict(zip(_numbers(record[::2]), record[1::2], strict=False))
    description = values.get(_DESCRIPTION, b"")
    channel = _channel(values.get(_PROTOCOLS))
    if channel is None or not isinstance(description, bytes):
        return None
    return Offer(channel=channel, adapter=description.decode("ascii", "replace"))


def _numbers(keys: tuple[Element, ...]) -> Iterator[int]:
    # A key that is no number is treated as an attribute that was not asked for.
    for key in keys:
        yield key if isinstance(key, int) else -1


def _channel(protocols: Element) -> int | None:
    """Return the channel in a protocol descriptor list."""
    for layer in protocols if isinstance(protocols, tuple) else ():
        match layer:
            case (uuid.UUID() as protocol, int() as number, *_) if protocol == _RFCOMM:
                return number if 1 <= number <= _MAX_CHANNEL else None
            case _:
                continue
    return None


def _sequence(body: bytes) -> bytes:
    return bytes([0x35, len(body)]) + body


def _element(data: memoryview, at: int, depth: int = 0) -> tuple[Element, int]:
    """Read the data element at ``at``; return it and where the next one begins."""
    start, end = _extent(data, at)
    kind, body = data[at] >> 3, bytes(data[start:end])
    match kind:
        case 0:
            return None, end
        case 1 | 2:
            return int.from_bytes(body, signed=kind == 2), end
        case 3:
            return _uuid(body), end
        case 4 | 8:
            return body, end
        case 5:
            return any(body), end
        case 6 | 7:
            return _elements(data, start, end, depth), end
        case _:
            raise RemoteProtocolError(f"SDP: data element of unknown type {kind}")


def _elements(data: memoryview, at: int, end: int, depth: int) -> tuple[Element, ...]:
    if depth >= _MAX_DEPTH:
        raise RemoteProtocolError(f"SDP: sequences nested deeper than {_MAX_DEPTH}")
    items = []
    while at < end:
        item, at = _element(data[:end], at, depth + 1)
        items.append(item)
    return tuple(items)


def _extent(data: memoryview, at: int) -> tuple[int, int]:
    """Return where the body of the data element at ``at`` begins and ends."""
    if at >= len(data):
        raise RemoteProtocolError("SDP: an answer ends within a data element")
    kind, size = data[at] >> 3, data[at] & 7
    start = at + 1
    if size < 5:
        length = 0 if kind == 0 else 1 << size
    else:
        start += 1 << (size - 5)
        length = int.from_bytes(data[at + 1 : start])
    if start + length > len(data):
        raise RemoteProtocolError("SDP: an answer ends within a data element")
    return start, start + length


def _uuid(body: bytes) -> uuid.UUID:
    if len(body) == 16:
        return uuid.UUID(bytes=body)
    if len(body) in (2, 4):
        return uuid.UUID(f"{int.from_bytes(body):08x}-{_BASE}")
    raise RemoteProtocolError(f"SDP: UUID of {counted(len(body), 'byte')}")
