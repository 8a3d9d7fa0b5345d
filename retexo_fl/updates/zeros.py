"""Updates without their zeros, to the bit: rows of a first layer whose features a client lacks.

Values are looked at in groups of eight. What is coded is a head (form, bytes of a value, number of
values), a bit for each group, the first in the highest, deflated, and the groups that are not all
zero, one after the other. A zero with a sign is none.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

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


def without_zeros(values: np.ndarray, spans: np.ndarray | None = None) -> np.ndarray:
    """Return (P,) float32 or float64 values coded, uint8; themselves where that is not shorter.

    Args:
        values: Of an update.
        spans: (n, 2) places from where and up to where values may be other than zero, ascending and
            apart; None for all.
    """
    size = values.dtype.itemsize
    full = len(values) // _GROUP * _GROUP
    # Eight bytes at a time, column by column: a sum over short rows takes ten times as long.
    words = values[:full].view("<u8").reshape(-1, _GROUP * size // 8)
    looked_at = None if spans is None else _groups_of(spans, len(words))
    if looked_at is not None:
        # What is never read of a large array takes no memory, and no time of the system.
        words = words[looked_at]
    found = words[:, 0].copy()
    for column in words.T[1:]:
        found |= column
    kept = found != 0
    places = np.flatnonzero(kept)
    if looked_at is not None:
        kept, places = np.zeros(full // _GROUP, bool), looked_at[places]
        kept[places] = True
    if len(places) == len(kept) or len(values) > _MOST_VALUES:
        return values
    rest = values[full:]
    packed = zlib.compress(np.packbits(kept).tobytes(), 1)
    groups = _whole_groups(values)[places]
    head = _HEAD.pack(_FORM, size, len(values), len(packed))
    if len(head) + len(packed) + groups.nbytes + rest.nbytes >= values.nbytes:
        return values
    content = b"".join((head, packed, groups.view(np.uint8).data, rest.view(np.uint8).data))
    return np.frombuffer(content, np.uint8)


def _whole_groups(values: np.ndarray) -> np.ndarray:
    """Return the whole groups of values, each as one item: faster to pick than rows of eight."""
    full = len(values) // _GROUP * _GROUP
    return values[:full].view(f"V{_GROUP * values.dtype.itemsize}")


def _groups_of(spans: np.ndarray, groups: int) -> np.ndarray:
    """Return the groups in which spans have a place, ascending."""
    first, end = spans[:, 0] // _GROUP, -(-spans[:, 1] // _GROUP)
    lengths = end - first
    before = np.cumsum(lengths) - lengths
    found = np.arange(lengths.sum()) + np.repeat(first - before, lengths)
    # Two spans may meet in a group.
    found = found[np.diff(found, prepend=-1) > 0]
    whole: np.ndarray = found[: np.searchsorted(found, groups)]
    return whole


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Groups:
    """An update without the groups of eight of its values that are all zero.

    Attributes:
        count: P.
        places: (k,) which groups it has, ascending.
        values: (8 k + P % 8,) theirs, and those behind the last whole group.
    """

    count: int
    places: np.ndarray
    values: np.ndarray

    @classmethod
    def read(cls, coded: np.ndarray) -> Self:
        """Read uint8 codes of :func:`without_zeros`.

        Raises:
            RemoteProtocolError: They cannot be decoded.
        """
        content = memoryview(coded.tobytes())
        dtype, count, packed_bytes = _read_head(content)
        kept = _read_bits(content[_HEAD.size : _HEAD.size + packed_bytes], count // _GROUP)
        places = np.flatnonzero(kept)
        body = content[_HEAD.size + packed_bytes :]
        expected = (len(places) * _GROUP + count % _GROUP) * dtype.itemsize
        if len(body) != expected:
            raise RemoteProtocolError(
                f"an update without zeros has {len(body)} bytes of values; expected {expected}"
            )
        return cls(count=count, places=places, values=np.frombuffer(body, dtype))

    @property
    def shape(self) -> tuple[int]:
        """Of the whole update."""
        return (self.count,)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its values."""
        return self.values.dtype

    def dense(self) -> np.ndarray:
        """Return the (P,) update."""
        found = np.zeros(self.count, self.dtype)
        _whole_groups(found)[self.places] = _whole_groups(self.values[: self._inner])
        found[self.count // _GROUP * _GROUP :] = self.values[self._inner :]
        return found

    def add_to(self, total: np.ndarray) -> None:
        """Add it to (P,) values; the same bits as adding the zeros too, where none is -0."""
        groups = _whole_groups(total)
        added = groups[self.places].view(total.dtype)
        added += self.values[: self._inner]
        groups[self.places] = _whole_groups(added)
        total[self.count // _GROUP * _GROUP :] += self.values[self._inner :]

    @property
    def _inner(self) -> int:
        """How many of its values are in whole groups."""
        return len(self.places) * _GROUP


def with_zeros(coded: np.ndarray) -> np.ndarray:
    """Return the values that :func:`without_zeros` was given.

    Raises:
        RemoteProtocolError: They cannot be decoded.
    """
    return coded if coded.dtype != np.uint8 else Groups.read(coded).dense()


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
