"""Updates without their zeros, to the bit: rows of a first layer whose features a client lacks.

Values are looked at in groups of eight. What is coded is a head (form, bytes of a value, number of
values), a bit for each group, the first in the highest, deflated, and the groups that are not all
zero, one after the other. A zero with a sign is none.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from retexo_fl.errors import RemoteProtocolError

_GROUP: Final = 8
#: Form, bytes of a value, number of values, bytes of the deflated bits.
_HEAD: Final = struct.Struct("<BBQI")
#: What the codes of :mod:`.grid` begin with is another.
_FORM: Final = 2
_DTYPES: Final[Mapping[int, np.dtype[np.floating[Any]]]] = {4: np.dtype("<f4"), 8: np.dtype("<f8")}
#: Longer updates keep their zeros, so that nobody can have a receiver make room for more.
_MOST_VALUES: Final = 2**28


def without_zeros(values: np.ndarray) -> np.ndarray:
    """Return (P,) float32 or float64 values coded, uint8; themselves where that is not shorter."""
    size = values.dtype.itemsize
    full = len(values) // _GROUP * _GROUP
    bits = values.view(f"<u{size}")
    kept = bits[:full].reshape(-1, _GROUP).any(axis=1)
    if kept.all() or len(values) > _MOST_VALUES:
        return values
    rest = values[full:]
    packed = zlib.compress(np.packbits(kept).tobytes(), 1)
    groups = values[:full].reshape(-1, _GROUP)[kept]
    head = _HEAD.pack(_FORM, size, len(values), len(packed))
    if len(head) + len(packed) + groups.nbytes + rest.nbytes >= values.nbytes:
        return values
    content = b"".join((head, packed, groups.tobytes(), rest.tobytes()))
    return np.frombuffer(content, np.uint8)


def with_zeros(coded: np.ndarray) -> np.ndarray:
    """Return the values that :func:`without_zeros` was given.

    Raises:
        RemoteProtocolError: They cannot be decoded.
    """
    if coded.dtype != np.uint8:
        return coded
    content = memoryview(coded.tobytes())
    dtype, count, packed_bytes = _read_head(content)
    groups = count // _GROUP
    kept = _read_bits(content[_HEAD.size : _HEAD.size + packed_bytes], groups)
    body = content[_HEAD.size + packed_bytes :]
    expected = (int(kept.sum()) * _GROUP + count % _GROUP) * dtype.itemsize
    if len(body) != expected:
        raise RemoteProtocolError(
            f"an update without zeros has {len(body)} bytes of values; expected {expected}"
        )
    found = np.frombuffer(body, dtype)
    values = np.zeros(count, dtype)
    full = groups * _GROUP
    inner = len(found) - count % _GROUP
    values[:full].reshape(-1, _GROUP)[kept] = found[:inner].reshape(-1, _GROUP)
    values[full:] = found[inner:]
    return values


def bytes_with_zeros(coded: bytes) -> int:
    """Return the bytes of the values before they were coded; of other codes, their own."""
    if len(coded) < _HEAD.size or coded[0] != _FORM:
        return len(coded)
    _, size, count, _ = _HEAD.unpack_from(coded)
    return int(size * count) if size in _DTYPES and count <= _MOST_VALUES else len(coded)


def _read_head(content: memoryview) -> tuple[np.dtype[np.floating[Any]], int, int]:
    if len(content) < _HEAD.size:
        raise RemoteProtocolError(f"an update is {len(content)} bytes; expected {_HEAD.size} more")
    form, size, count, packed_bytes = _HEAD.unpack_from(content)
    if form != _FORM or size not in _DTYPES or count > _MOST_VALUES:
        raise RemoteProtocolError(
            f"an update begins with form {form}, {size} bytes a value, {count} values; expected "
            f"form {_FORM}, 4 or 8, and at most {_MOST_VALUES}"
        )
    return _DTYPES[size], count, packed_bytes


def _read_bits(packed: memoryview, groups: int) -> np.ndarray:
    """Return (groups,) truth values; no more is inflated than they take."""
    expected = -(-groups // 8)
    inflating = zlib.decompressobj()
    try:
        content = inflating.decompress(packed, expected + 1)
    except zlib.error as error:
        raise RemoteProtocolError(f"an update without zeros: {error}") from error
    if len(content) != expected or not inflating.eof or inflating.unused_data:
        raise RemoteProtocolError(
            f"an update without zeros has {len(content)} bytes of bits; expected {expected}"
        )
    return np.unpackbits(np.frombuffer(content, np.uint8), count=groups).astype(bool)
