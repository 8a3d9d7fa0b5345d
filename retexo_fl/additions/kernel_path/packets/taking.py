"""The machine code that takes packets into a receiver's tables."""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np
from numba import types

from retexo_fl.additions.kernel_path.packets.compiled import compiled, kernel_part
from retexo_fl.additions.kernel_path.packets.judging import (
    GOOD,
    PASSED,
    judge_frame,
    judge_place,
    judge_stream,
)
from retexo_fl.additions.kernel_path.packets.layout import (
    ACK_WANTED,
    BLOCK_PACKETS,
    BLOCK_WORDS,
    CELL_BYTES,
    CELL_VALUES,
    COUNTER_NAMES,
    FORM_AT,
    HEADER,
    HEADER_BYTES,
    REGION,
    SKIP,
    STREAM,
    USER_ACK,
    PacketKind,
)
from retexo_fl.additions.kernel_path.packets.packet_kernels import HEADER_WORDS, covered_sum
from retexo_fl.exchange.fixed_point import SIGNED

_DATA_NEW: Final = COUNTER_NAMES.index("data_new")
_DATA_DUPLICATE: Final = COUNTER_NAMES.index("data_duplicate")
_BAD_CHECKSUM: Final = COUNTER_NAMES.index("bad_checksum")
_ACKS_SENT: Final = COUNTER_NAMES.index("acks_sent")
_PINGS: Final = COUNTER_NAMES.index("pings")
_EVENTS: Final = COUNTER_NAMES.index("events")
_USER_ACKS: Final = COUNTER_NAMES.index("user_acks")

_DATA, _ACK, _PING = (int(kind) for kind in PacketKind)
_ONE: Final = np.uint64(1)
_NOTHING: Final = np.uint64(SKIP)
_PLACE: Final = np.uint64(2**FORM_AT - 1)
#: What is left of a shift, as the program in the kernel does; those that are granted are below.
_SHIFT: Final = 31
_WITHOUT_KIND_AND_FLAGS: Final = np.uint64(0x00FF00FFFFFFFFFF)


@kernel_part
def _slot(stream: Any, slots: Any, row: Any, num_cells: Any) -> Any:
    """Return where a vector's accumulator begins, -1 if it has none; and the vector's form."""
    slot = np.int64(stream.slot_base) + row
    if slot >= len(slots) or slots[slot] == _NOTHING:
        return np.int64(-1), np.int64(0)
    place = np.int64(slots[slot] & _PLACE)
    form = np.int64(slots[slot] >> np.uint64(FORM_AT))
    return (place if place < num_cells else np.int64(-1)), form


@kernel_part
def _add(target: Any, source: Any, form: Any) -> None:
    """Add values of int32, or numbers of a byte, shifted and signed as their form says."""
    if form == 0:
        for column in range(len(target)):
            target[column] += source[column]
        return
    sign, shift = np.int32(form & SIGNED), np.int32(form & _SHIFT)
    for column in range(len(target)):
        number = np.int32(source[column])
        number -= (number & sign) << np.int32(1)
        target[column] += number << shift


@kernel_part
def _accumulate(acc: Any, slots: Any, stream: Any, header: Any, payload: Any) -> None:
    """Add a packet's values, vector by vector."""
    num_cells, row_cells = len(acc) // CELL_VALUES, np.int64(stream.row_cells)
    row, offset = np.int64(header.first), np.int64(header.offset)
    done, cells = np.int64(0), np.int64(header.cells)
    while done < cells:
        run = min(row_cells - offset, cells - done)
        start, form = _slot(stream, slots, row, num_cells)
        if start >= 0:
            start += offset
            kept = min(run, max(num_cells - start, 0)) * CELL_VALUES
            target = acc[start * CELL_VALUES : start * CELL_VALUES + kept]
            source = payload[done * CELL_VALUES : done * CELL_VALUES + kept]
            _add(target, source, form if stream.in_bytes else 0)
        done += run
        row, offset = row + 1, np.int64(0)


@kernel_part
def _take_data(  # noqa: PLR0913, PLR0917
    acc: Any,
    seen: Any,
    slots: Any,
    stream: Any,
    region: Any,
    header: Any,
    payload: Any,
    payload_bytes: Any,
    counters: Any,
) -> Any:
    block = np.int64(stream.seen_base) + np.int64(header.seq) // BLOCK_PACKETS
    word = np.int64(header.seq) % BLOCK_PACKETS // 64
    bit = _ONE << np.uint64(header.seq % 64)
    if seen[block, word] & bit:
        stream.duplicates += np.uint32(1)
        return _DATA_DUPLICATE
    seen[block, word] |= bit
    if stream.in_bytes:
        _accumulate(acc, slots, stream, header, payload_bytes)
    else:
        _accumulate(acc, slots, stream, header, payload)
    stream.done += np.uint32(1)
    region.done += _ONE
    if region.done == region.expected:
        region.complete = np.uint32(1)
        counters[_EVENTS] += _ONE
    return _DATA_NEW


@kernel_part
def _reply_header(words: Any, kind: Any, reply: Any) -> None:
    """Copy a packet's header for its answer: another kind, no flags."""
    for word in range(HEADER_WORDS):
        reply[word] = words[word]
    reply[0] = (words[0] & _WITHOUT_KIND_AND_FLAGS) | (np.uint64(kind) << np.uint64(40))


@kernel_part
def _acknowledge(seen: Any, stream: Any, header: Any, words: Any, reply: Any) -> Any:
    _reply_header(words, _ACK, reply)
    block = np.int64(header.seq) // BLOCK_PACKETS
    reply[5] = np.uint64(block * BLOCK_PACKETS) | (_ONE << np.uint64(48))
    for word in range(BLOCK_WORDS):
        reply[HEADER_WORDS + word] = seen[np.int64(stream.seen_base) + block, word]
    reply[3] = covered_sum(reply, HEADER_WORDS + BLOCK_WORDS)
    return HEADER_BYTES + CELL_BYTES


@compiled(
    (
        types.int32[::1],
        types.uint64[:, ::1],
        types.uint64[::1],
        numba.from_dtype(STREAM)[::1],
        numba.from_dtype(REGION)[::1],
        types.Array(numba.from_dtype(HEADER), 1, "A"),
        types.uint64[:, ::1],
        types.int32[:, ::1],
        types.uint8[:, ::1],
        types.int64[::1],
        types.uint64[::1],
        types.uint64[:, ::1],
        types.int64[::1],
        types.int64,
        types.boolean,
        types.boolean,
    )
)
def take(  # noqa: PLR0913, PLR0917 - one call for a batch, all of it arrays and numbers
    acc: Any,
    seen: Any,
    slots: Any,
    streams: Any,
    regions: Any,
    headers: Any,
    words: Any,
    values: Any,
    numbers: Any,
    lengths: Any,
    counters: Any,
    replies: Any,
    reply_lengths: Any,
    max_cells: Any,
    answers_user_acks: Any,
    takes_data: Any,
) -> None:
    """Do with each packet what the XDP program does; see ``take_packets``."""
    for index in range(len(lengths)):
        reply_lengths[index] = 0
        header, packet = headers[index], words[index]
        verdict = judge_frame(header, lengths[index], packet.nbytes, max_cells)
        if verdict == GOOD and not takes_data and header.kind != _PING:
            verdict = PASSED
        if verdict == GOOD:
            verdict = judge_stream(header, streams, regions, seen)
        if verdict != GOOD:
            counters[verdict] += _ONE
            continue
        stream = streams[header.stream]
        verdict = judge_place(header, stream)
        if verdict == GOOD and header.checksum != covered_sum(packet, lengths[index] // 8):
            verdict = _BAD_CHECKSUM
        if verdict != GOOD:
            counters[verdict] += _ONE
            continue
        region = regions[stream.region]
        is_acknowledged = False
        if header.kind == _DATA:
            payload = values[index, HEADER_BYTES // 4 :]
            in_bytes = numbers[index, HEADER_BYTES:]
            verdict = _take_data(
                acc, seen, slots, stream, region, header, payload, in_bytes, counters
            )
            is_acknowledged = (header.flags & ACK_WANTED) != 0
        else:
            is_acknowledged = answers_user_acks or (header.flags & USER_ACK) == 0
            verdict = _USER_ACKS if header.flags & USER_ACK else _PINGS
        if is_acknowledged:
            reply_lengths[index] = _acknowledge(seen, stream, header, packet, replies[index])
            counters[_ACKS_SENT] += _ONE
        counters[verdict] += _ONE
