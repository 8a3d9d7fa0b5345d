"""What other clients and devices send: frames, links, parcels, notices and grants, SDP answers."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from retexo_fl.additions.bluetooth.sdp import answer_parts, offers
from retexo_fl.additions.kernel_path.carrying.control import Book, Grant, Notice, Way
from retexo_fl.exchange import decode_block, encode_block, to_csr
from retexo_fl.exchange.block_frames import NOTHING, check_frame, sound_prefix
from retexo_fl.exchange.frames import HEADER_BYTES, split_frames
from retexo_fl.exchange.parcels import Parcel, ParcelKind, ParcelStream
from retexo_fl.exchange.row_coding import (
    LEVELS,
    RowsShape,
    decode_rows,
    encode_few_bits,
    encode_rows,
    parse_coding,
)
from tests.fuzz.target import Target
from tests.unit.additions.bluetooth.test_sdp import BLUEZ
from tests.unit.exchange.blocks import header_of
from tests.unit.exchange.link.links import End, block_header, frames_of

_ROWS, _WIDTH = 5, 7


def peer_targets() -> list[Target]:
    """Return the parsers of what does not come through the server."""
    return [*_frame_targets(), *_link_targets(), *_small_targets()]


# ---- frames -------------------------------------------------------------------------------------


def _vectors() -> list[np.ndarray]:
    """Blocks of one shape, for which different codings are shortest."""
    rng = np.random.default_rng(0)
    full = rng.standard_normal((_ROWS, _WIDTH)).astype(np.float32)
    ones = (rng.random((_ROWS, _WIDTH)) < 0.3).astype(np.float32)
    scaled = ones * rng.random((_ROWS, 1)).astype(np.float32)
    return [full, ones, scaled, np.where(full > 0.4, full, 0).astype(np.float32), 0 * full]


_HEADER = header_of(_vectors()[0])


def _blocks() -> list[bytes]:
    frames = [
        encode_block(_HEADER, to_csr(rows) if sparse else rows, codec=codec, max_frame_bytes=256)
        for rows in _vectors()
        for codec, sparse in (("dense", False), ("lossless", False), ("lossless", True))
    ]
    return list(dict.fromkeys(b"".join(block.frames) for block in frames))


def _repaired_frames(data: bytes) -> bytes:
    """Have each frame's size and checksum fit what stands there."""
    made = bytearray(data)
    place = seed = 0
    while place + HEADER_BYTES <= len(made):
        (size,) = struct.unpack_from("<I", made, place + 16)
        end = min(place + HEADER_BYTES + size, len(made))
        struct.pack_into("<I", made, place + 16, end - place - HEADER_BYTES)
        payload = made[place + HEADER_BYTES : end]
        is_hello = made[place + 5] == 1
        before = zlib.crc32(made[place : place + 20], 0 if is_hello else seed)
        checksum = zlib.crc32(payload, before)
        struct.pack_into("<I", made, place + 20, checksum)
        seed = zlib.crc32(payload) if is_hello else seed
        place = end
    return bytes(made)


def _read_unknown(data: bytes) -> None:
    key = _HEADER.key
    sound_prefix(key, data)
    progress = NOTHING
    for frame in split_frames(data):
        progress = check_frame(frame.data, progress, key)


def _read_rows(data: bytes) -> None:
    if len(data) < 3:
        return
    dtype = "float64" if data[2] % 2 else "float32"
    shape = RowsShape(num_rows=_ROWS, width=_WIDTH, dtype=dtype, max_frame_bytes=2**20)
    decode_rows(parse_coding(data[0], data[1]), data[3:], shape)


def _rows() -> list[bytes]:
    made = []
    for rows in _vectors():
        for dtype in (np.float32, np.float64):
            coding, payload = encode_rows(rows.astype(dtype))
            head = bytes((coding.positions, coding.values, dtype is np.float64))
            made.append(head + payload)
            for bits in LEVELS:
                coding, payload = encode_few_bits(rows.astype(dtype), bits, max_dense_bytes=2**20)
                head = bytes((coding.positions, coding.values, dtype is np.float64))
                made.append(head + payload)
    return made


def _frame_targets() -> list[Target]:
    blocks = _blocks()
    frames = Target(
        name="block",
        group="frames",
        seeds=blocks,
        read=lambda data: decode_block(_HEADER, data),
        repaired=_repaired_frames,
        cases=150_000,
    )
    return [
        frames,
        replace(frames, name="unknown-block", read=_read_unknown, cases=150_000),
        Target(name="rows", group="frames", seeds=_rows(), read=_read_rows, cases=200_000),
    ]


# ---- links --------------------------------------------------------------------------------------


def _owed() -> dict[str, End]:
    ends = {"one": End(client=0, peer=1), "two": End(client=1, peer=0)}
    for layer, rows in ((0, 4), (1, 30)):
        for end in ends.values():
            header = block_header(end.client, end.peer, layer=layer, rows=rows)
            end.owed[header.key] = frames_of(header)
    return ends


def _talks() -> list[bytes]:
    """Return all that each end of a link sends, and what a late one asks and is refused."""
    ends = _owed()
    one, two = ends["one"], ends["two"]
    one.connect()
    two.connect()
    said = {"one": b"", "two": b""}
    while True:
        there, back = one.pull(2**16), two.pull(2**16)
        if not there and not back:
            break
        said["one"], said["two"] = said["one"] + there, said["two"] + back
        if there:
            two.give(there)
        if back:
            one.give(back)
    assert len(two.whole) == 2
    return list(said.values())


class _Listener:
    """An end that has a block to send as well, new for each input."""

    def __init__(self, owed: Sequence[tuple[End, bytes]]) -> None:
        self._owed = owed

    def read(self, data: bytes) -> None:
        """Take what the peer says, and answer."""
        for end, _ in self._owed:
            fresh = End(client=end.client, peer=end.peer, owed=end.owed)
            fresh.connect()
            for piece in (data[: len(data) // 2], data[len(data) // 2 :]):
                fresh.pull(2**16)
                fresh.give(piece)


def _link_targets() -> list[Target]:
    ends = _owed()
    talks = _talks()
    return [
        Target(
            name=f"link-{name}",
            group="links",
            seeds=[talk],
            read=_Listener([(end, talk)]).read,
            cases=20_000,
        )
        for name, end, talk in (
            ("listens", ends["two"], talks[0]),
            ("connects", ends["one"], talks[1]),
        )
    ]


# ---- small ones ---------------------------------------------------------------------------------


_OPENED = Parcel(kind=ParcelKind.OPEN, stream=bytes(range(8)), sequence=0, data=b"first")


def _read_parcel(data: bytes) -> None:
    stream = ParcelStream(_OPENED.stream, opens=False)
    stream.receive(_OPENED)
    stream.receive(Parcel.parse(data))


def _parcels() -> list[bytes]:
    going_on = [
        Parcel(kind=kind, stream=_OPENED.stream, sequence=1, data=b"data").to_bytes()
        for kind in (ParcelKind.DATA, ParcelKind.CLOSE)
    ]
    return [_OPENED.to_bytes(), *going_on]


def _numbers(data: bytes) -> np.ndarray:
    """Return the (1, k) float64 block that bytes are, of 16 numbers or more."""
    padded = data[: len(data) // 8 * 8].ljust(16 * 8, b"\0")
    return np.frombuffer(padded, dtype="<f8")[None]


def _read_grant(data: bytes) -> None:
    block = _numbers(data)
    Grant.read(block[:, : 16 + (block.shape[1] - 16) // 3 * 3], 1)


def _small_targets() -> list[Target]:
    notice = Notice(
        exponent=9, packet_cells=22, stored=40, digest=b"d" * 16, streams=np.array([0, 1, 1, 0])
    )
    book = Book(secret=bytes(range(16)), places=(3, 4, 2**16 - 1))
    grant = Grant(way=Way.DATAGRAMS, streams=((2**40 + 5, 1), (7, 2)), book=book)
    return [
        Target(name="parcel", group="links", seeds=_parcels(), read=_read_parcel, cases=100_000),
        Target(
            name="notice",
            group="links",
            seeds=[notice.numbers().tobytes()],
            read=lambda data: Notice.read(_numbers(data), 1),
            cases=33_300,
        ),
        Target(
            name="grant",
            group="links",
            seeds=[grant.numbers(2).tobytes()],
            read=_read_grant,
            cases=33_300,
        ),
        Target(
            name="sdp-answer",
            group="links",
            seeds=[BLUEZ],
            read=lambda data: offers(answer_parts(data, 1)[0]),
            cases=33_300,
        ),
        Target(
            name="sdp-records",
            group="links",
            seeds=[answer_parts(BLUEZ, 1)[0]],
            read=offers,
            cases=66_600,
        ),
    ]
