"""Arrays as whole numbers on a grid: few bits a value; on a shared grid, sums are exact.

A block of 256 values has a step, a power of two. A value v becomes a whole number near v / step,
up or down at random so that its mean is v / step; who decodes multiplies by the step. Steps are
shared, known to both ends, or the sender's own, and then sent along.

What is coded is a head (below), own steps (one signed byte a block, where they are own), and the
numbers: one byte each, or 4, 2 or 1 bits packed into bytes, the first in the highest; then deflated
where that is shorter.

Source: stochastic quantisation as QSGD (Alistarh et al., NeurIPS 2017, section 3.1), with steps
that may be shared.
"""

from __future__ import annotations

import hashlib
import math
import struct
import threading
import zlib
from collections import deque
from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.packing import pack, packed_bytes, unpack

#: Values that share a step.
BLOCK: Final = 256
#: Blocks that are looked at in one go.
_PIECE_BLOCKS: Final = 256
#: Widths of a number.
BITS: Final = (8, 4, 2, 1)
#: The grid reaches so many times the root mean square of a block at least, twice that at most.
_REACH: Final = 3.6
#: The same of a grid with bits to spare: four times the most that the one value of a block, where
#: the others are zero, exceeds its root mean square.
_WIDE_REACH: Final = 64.0
#: So what was zero in one round may be 256 times the root mean square of all in the next.
_WIDE_LEAST_SHARE: Final = 4.0
#: Steps to the nearest of which values are rounded with little error, in root mean squares of a
#: block; by bits. The best for values of a normal distribution (Max, IRE Trans. Inf. Theory 1960).
_NEAREST: Final = {8: 0.031, 4: 0.34, 2: 1.22, 1: 0.8}
#: A block counts for this share of the whole update's root mean square at least: what was zero in
#: one round need not be zero in the next.
_LEAST_SHARE: Final = 2.0**-6
_LEAST_EXPONENT, _MOST_EXPONENT = -100, 100
#: The exponent of blocks of which nothing is read.
LEFT_OUT: Final = _MOST_EXPONENT
#: Form, bits of a number, bytes of a value, flags, number of values.
_HEAD: Final = struct.Struct("<BBBBI")
_FORM: Final = 1
_OWN_STEPS, _DEFLATED = 1, 2
_DTYPES: Final = {4: "float32", 8: "float64"}
#: More values than any model has that is trained by this.
_MOST_VALUES: Final = 2**31
#: What was coded last in this process, and its codes, if not too large: a server in the same
#: process reads it when all clients have answered.
_LAST: Final[deque[tuple[bytes, np.ndarray]]] = deque(maxlen=128)
_LARGEST_KEPT: Final = 2**15
#: What a generator has before its first number.
_ZEROS: Final = np.zeros(4, np.uint64)


class SteppedGrid:
    """Whole numbers up to ``most``, times the step of a block: what all grids have in common.

    Attributes:
        most: The largest number.
    """

    #: What steps reach, in root mean squares; and what share of the whole's a block counts for.
    _reach: ClassVar[float] = _REACH
    _least_share: ClassVar[float] = _LEAST_SHARE

    def __init__(self, most: int) -> None:
        self.most = most

    def reach(self, steps: bytes) -> np.ndarray:
        """Return the (blocks,) largest values that steps reach."""
        found: np.ndarray = np.ldexp(
            float(self.most), np.frombuffer(steps, np.int8).astype(np.int32)
        )
        return found

    def values(self, numbers: np.ndarray, steps: bytes) -> np.ndarray:
        """Return the (P,) float64 values of numbers, or of sums of them."""
        return _in_steps(numbers, steps)

    def steps(self, largest: np.ndarray) -> bytes:
        """Return steps, as exponents of 2, one signed byte a block.

        Args:
            largest: (blocks,) root mean squares that they are for; see :func:`block_rms`.
        """
        least = (
            self._least_share * math.sqrt(float(np.mean(np.square(largest)))) if len(largest) else 0
        )
        return _exponents(np.maximum(largest, least) * self._reach / self.most, np.ceil)

    def without(self, steps: bytes, blocks: np.ndarray) -> bytes:
        """Return steps so long in some blocks that all numbers there are 0.

        Args:
            steps: Exponents, one signed byte a block.
            blocks: (k,) which.
        """
        found = np.frombuffer(steps, np.int8).copy()
        found[blocks] = LEFT_OUT
        return found.tobytes()


class WideGrid(SteppedGrid):
    """Rounds to the nearest number, of which there are so many that it hardly matters."""

    _reach = _WIDE_REACH
    _least_share = _WIDE_LEAST_SHARE

    def numbers(self, values: np.ndarray, key: str, steps: bytes) -> tuple[np.ndarray, int]:
        """Return the (P,) int32 numbers of values on shared steps, and how many were cut.

        Steps are powers of two, so that scaling rounds nothing, in float32 neither.

        Args:
            values: (P,) float32 or float64, finite.
            key: Nothing is drawn.
            steps: Shared ones.
        """
        del key
        found, cut = np.empty(len(values), np.int32), 0
        parts = np.ldexp(1.0, -np.frombuffer(steps, np.int8).astype(np.int32)).astype(values.dtype)
        room = np.empty((min(_PIECE_BLOCKS, len(parts)), BLOCK), values.dtype)
        for blocks, table in _pieces(values):
            with np.errstate(over="ignore", under="ignore"):
                scaled = np.multiply(table, parts[blocks, None], out=room[: len(table)])
            if max(float(scaled.max()), -float(scaled.min())) > self.most:
                # In float64: the largest number need not be one of float32.
                exact = scaled.astype(np.float64)
                cut += int((np.abs(exact) > self.most).sum())
                rounded = np.rint(np.clip(exact, -self.most, self.most))
            else:
                rounded = np.rint(scaled, out=scaled)
            into = found[blocks.start * BLOCK : blocks.stop * BLOCK]
            into[:] = rounded.reshape(-1)[: len(into)]
        return found, cut


class Grid(SteppedGrid):
    """Codes arrays of finite values in ``bits`` bits a value, rounded at random."""

    def __init__(self, bits: int) -> None:
        assert bits in BITS
        super().__init__(max(1, (1 << bits - 1) - 1))
        self._bits = bits

    def numbers(self, values: np.ndarray, key: str, steps: bytes) -> tuple[np.ndarray, int]:
        """Return the (P,) int8 numbers of values on shared steps, and how many were cut.

        Args:
            values: (P,) float32 or float64, finite.
            key: What the drawn numbers follow from.
            steps: Shared ones.
        """
        scaled = _in_steps(values, steps, sign=-1)
        cut = int((np.abs(scaled) > self.most).sum())
        codes = self._codes(scaled, _drawn(key, len(values)))
        return self._numbers(codes).astype(np.int8), cut

    def without(self, steps: bytes, blocks: np.ndarray) -> bytes:
        """See :class:`SteppedGrid`; in one bit, where 0 is no number, they stay as they are."""
        return steps if self._bits == 1 else super().without(steps, blocks)

    def encode(self, values: np.ndarray, key: str, steps: bytes = b"") -> np.ndarray:
        """Return what is coded, uint8: values that are, on average, what they were.

        Args:
            values: (P,) float32 or float64, finite.
            key: What the drawn numbers follow from.
            steps: Shared ones; the array's own if empty.

        Raises:
            RemoteProtocolError: Shared steps are not as many as blocks.
        """
        blocks = -(-len(values) // BLOCK)
        if steps and len(steps) != blocks:
            raise RemoteProtocolError(
                f"got {len(steps)} steps for {len(values)} values; expected {blocks}"
            )
        own = b"" if steps else self._reaching_all(values)
        return self._coded(values, steps, own, _drawn(key, len(values)))

    def encode_nearest(self, values: np.ndarray, *, remembers: bool = False) -> np.ndarray:
        """Return what is coded, uint8: values rounded to the nearest.

        Args:
            values: (P,) float32 or float64, finite.
            remembers: The error will be part of what is coded next. It is then made small on the
                whole, smaller than the values whatever the bits, at the cost of the largest ones.
        """
        if remembers:
            own = _exponents(block_rms(values) * _NEAREST[self._bits], np.rint)
        else:
            own = self._reaching_all(values)
        return self._coded(values, b"", own, 0.5)

    def _reaching_all(self, values: np.ndarray) -> bytes:
        """Return steps with which no value is cut."""
        largest = np.maximum.reduceat(np.abs(values), np.arange(0, len(values), BLOCK))
        return _exponents(largest.astype(np.float64) / self.most, np.ceil)

    def _coded(
        self, values: np.ndarray, steps: bytes, own: bytes, drawn: np.ndarray | float
    ) -> np.ndarray:
        codes = self._codes(_in_steps(values, steps or own, sign=-1), drawn)
        packed = pack(codes[None], self._bits).tobytes()
        # Huffman codes alone: numbers that are rounded at random repeat nothing.
        # A window that holds all of it gives the same bytes, as room for all of its numbers does,
        # and smaller ones are made sooner.
        window = 12 if len(packed) <= 2**12 else 15
        room = next((level for level in (7, 8) if len(packed) < 2 ** (level + 6) - 1), 9)
        coder = zlib.compressobj(9, zlib.DEFLATED, -window, room, zlib.Z_HUFFMAN_ONLY)
        deflated = coder.compress(packed) + coder.flush()
        flags = (_OWN_STEPS if own else 0) | (_DEFLATED if len(deflated) < len(packed) else 0)
        head = _HEAD.pack(_FORM, self._bits, values.dtype.itemsize, flags, len(values))
        content = head + own + (deflated if flags & _DEFLATED else packed)
        if len(codes) <= _LARGEST_KEPT:
            _LAST.append((content, codes))
        return np.frombuffer(content, np.uint8)

    def decode(self, coded: np.ndarray, steps: bytes = b"") -> np.ndarray:
        """Return the (P,) values that :meth:`encode` was given, as far as the grid holds them.

        Raises:
            RemoteProtocolError: It did not make this.
        """
        content = coded.tobytes()
        if coded.dtype != np.uint8 or len(content) < _HEAD.size:
            raise RemoteProtocolError(f"a coded array has {len(content)} bytes; expected a head")
        form, bits, item, flags, count = _HEAD.unpack_from(content)
        if (form, bits) != (_FORM, self._bits) or item not in _DTYPES or count > _MOST_VALUES:
            raise RemoteProtocolError(
                f"a coded array has form {form}, {bits} bits, {item} bytes, {count} values; "
                f"expected form {_FORM}, {self._bits} bits, 4 or 8 bytes"
            )
        if bool(flags & _OWN_STEPS) == bool(steps) or flags & ~(_OWN_STEPS | _DEFLATED):
            raise RemoteProtocolError(
                f"a coded array has flags {flags}; expected {'shared' if steps else 'own'} steps"
            )
        blocks = -(-count // BLOCK)
        own = blocks if flags & _OWN_STEPS else 0
        exponents = steps or content[_HEAD.size : _HEAD.size + own]
        if len(exponents) != blocks:
            raise RemoteProtocolError(f"a coded array of {count} values lacks steps of its blocks")
        if own and np.abs(np.frombuffer(exponents, np.int8).astype(int)).max() > _MOST_EXPONENT:
            raise RemoteProtocolError(f"a coded array has a step above 2**{_MOST_EXPONENT}")
        codes = next((codes for last, codes in reversed(tuple(_LAST)) if last == content), None)
        if codes is None:
            codes = self._unpacked(content[_HEAD.size + own :], count, flags & _DEFLATED)
        decoded: np.ndarray = _in_steps(self._numbers(codes), exponents).astype(_DTYPES[item])
        return decoded

    def _codes(self, scaled: np.ndarray, drawn: np.ndarray | float) -> np.ndarray:
        """Return the (P,) uint8 codes of ``scaled``, rounded up or down as ``drawn`` says.

        What is beyond the largest number becomes that. ``scaled`` is overwritten.
        """
        if self._bits == 1:
            # Down or up: -1 or 1.
            ups: np.ndarray = drawn < (1.0 + scaled) / 2
            return ups.view(np.uint8)
        scaled += drawn
        np.floor(scaled, out=scaled)
        np.minimum(scaled, self.most, out=scaled)
        np.maximum(scaled, -self.most, out=scaled)
        scaled += self.most
        codes: np.ndarray = scaled.astype(np.uint8)
        return codes

    def _numbers(self, codes: np.ndarray) -> np.ndarray:
        """Return the (P,) int16 whole numbers of codes."""
        wide: np.ndarray = codes.astype(np.int16)
        return wide * 2 - 1 if self._bits == 1 else wide - self.most

    def _unpacked(self, content: bytes, count: int, is_deflated: int) -> np.ndarray:
        """Return the (count,) codes that were packed.

        Raises:
            RemoteProtocolError: They are not so many, or too large.
        """
        expected = packed_bytes(count, self._bits)
        packed = _inflated(content, expected) if is_deflated else content
        if len(packed) != expected:
            raise RemoteProtocolError(
                f"a coded array has {len(packed)} bytes of numbers; expected {expected}"
            )
        codes: np.ndarray = unpack(np.frombuffer(packed, np.uint8)[None], count, self._bits)[0]
        if count and codes.max() > 2 * self.most:
            raise RemoteProtocolError(f"a coded array has numbers above {self.most} in magnitude")
        return codes


def block_rms(values: np.ndarray) -> np.ndarray:
    """Return the (blocks,) root mean squares of (P,) values."""
    found = np.empty(-(-len(values) // BLOCK))
    wide = np.empty((min(_PIECE_BLOCKS, len(found)), BLOCK))
    for blocks, table in _pieces(values):
        squares = np.square(table, out=wide[: len(table)], dtype=np.float64)
        found[blocks] = squares.sum(axis=1)
    counts = np.full(len(found), BLOCK)
    counts[-1:] = len(values) - BLOCK * (len(found) - 1)
    found /= counts
    np.sqrt(found, out=found)
    return found


def _pieces(values: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield some blocks at a time, which the cache holds: their places, and the (n, 256) values.

    Behind the last value there are zeros.
    """
    whole = len(values) // BLOCK
    for begin in range(0, whole, _PIECE_BLOCKS):
        blocks = slice(begin, min(begin + _PIECE_BLOCKS, whole))
        yield blocks, values[blocks.start * BLOCK : blocks.stop * BLOCK].reshape(-1, BLOCK)
    if rest := len(values) % BLOCK:
        last = np.zeros((1, BLOCK), values.dtype)
        last[0, :rest] = values[-rest:]
        yield slice(whole, whole + 1), last


def _exponents(steps: np.ndarray, rounding: np.ufunc) -> bytes:
    """Return the exponents of the powers of 2 next to steps, as far as a signed byte holds them."""
    with np.errstate(divide="ignore"):
        exponents = rounding(np.log2(steps))
    found: np.ndarray = np.clip(exponents, _LEAST_EXPONENT, _MOST_EXPONENT).astype(np.int8)
    return found.tobytes()


def _in_steps(values: np.ndarray, exponents: bytes, *, sign: int = 1) -> np.ndarray:
    """Return (P,) values in float64 times the steps of their blocks; or, by -1, in these steps."""
    # The inverse of a power of two is exact, too.
    factors = np.ldexp(1.0, sign * np.frombuffer(exponents, np.int8).astype(np.int32))
    found: np.ndarray = values.astype(np.float64)
    whole = len(found) // BLOCK
    table = found[: whole * BLOCK].reshape(-1, BLOCK)
    table *= factors[:whole, None]
    if whole < len(factors):
        found[whole * BLOCK :] *= factors[whole]
    return found


class _GeneratorOfThread(threading.local):
    """A generator that is made once: that takes longer than what a small update draws."""

    def __init__(self) -> None:
        self.philox = np.random.Philox(0)
        self.generator = np.random.Generator(self.philox)


_GENERATOR: Final = _GeneratorOfThread()


def _drawn(key: str, count: int) -> np.ndarray:
    """Return what ``Generator(Philox(key=...)).random(count)`` does."""
    digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
    _GENERATOR.philox.state = {
        "bit_generator": "Philox",
        "state": {"counter": _ZEROS, "key": np.frombuffer(digest, "<u8").astype(np.uint64)},
        "buffer": _ZEROS,
        "buffer_pos": len(_ZEROS),
        "has_uint32": 0,
        "uinteger": 0,
    }
    return _GENERATOR.generator.random(count)


def _inflated(content: bytes, expected: int) -> bytes:
    decoder = zlib.decompressobj(-15)
    try:
        # One byte more than expected: one that holds more is refused, and takes no memory.
        found = decoder.decompress(content, expected + 1)
    except zlib.error as error:
        raise RemoteProtocolError(f"a coded array is no deflated data ({error})") from error
    if not decoder.eof and len(found) <= expected:
        raise RemoteProtocolError("a coded array ends before its numbers do")
    return found
