"""Updates as whole numbers on a grid that all clients share: few bits a value, sums exact.

A block of 256 values has a step, a power of two. A value g becomes a whole number near g / step,
up or down at random so that its mean is g / step; the server multiplies by the step. Steps of a
round follow from the updates of the round before, so that every client has the same and sums of
whole numbers are sums of updates. In the first round each client chooses its own and sends them.

A coded update is a head (below), own steps (one signed byte a block, where they are own), and the
numbers: one byte each, or 4, 2 or 1 bits packed into bytes, the first in the highest; then deflated
where that is shorter.

Source: stochastic quantisation as QSGD (Alistarh et al., NeurIPS 2017, section 3.1), with steps
that are shared and not sent with every update.
"""

from __future__ import annotations

import hashlib
import math
import struct
import zlib
from typing import Final

import numpy as np

from retexo_fl.errors import RemoteProtocolError, TrainingDiverged
from retexo_fl.updates.codec import PlainUpdates, UpdateKey

#: Values that share a step.
BLOCK: Final = 256
#: Widths of a number.
BITS: Final = (8, 4, 2, 1)
#: The grid reaches so many times the root mean square of a block at least, twice that at most.
_REACH: Final = 3.6
#: A block counts for this share of the whole update's root mean square at least: what was zero in
#: one round need not be zero in the next.
_LEAST_SHARE: Final = 2.0**-6
_LEAST_EXPONENT, _MOST_EXPONENT = -100, 100
#: Form, bits of a number, bytes of a value, flags, number of values.
_HEAD: Final = struct.Struct("<BBBBI")
_FORM: Final = 1
_OWN_STEPS, _DEFLATED = 1, 2
_DTYPES: Final = {4: "float32", 8: "float64"}
#: More values than any model has that is trained by this.
_MOST_VALUES: Final = 2**31


class GridUpdates(PlainUpdates):
    """Sends updates in ``bits`` bits a value; see :class:`.UpdateCodec`."""

    def __init__(self, *, bits: int) -> None:
        assert bits in BITS
        self._bits = bits

    def measure(self, update: np.ndarray) -> np.ndarray:
        """Return the (blocks,) root mean squares."""
        blocks = -(-len(update) // BLOCK)
        padded = np.zeros(blocks * BLOCK)
        padded[: len(update)] = update
        counts = np.full(blocks, BLOCK)
        counts[-1:] = len(update) - BLOCK * (blocks - 1)
        found: np.ndarray = np.sqrt(np.square(padded).reshape(blocks, BLOCK).sum(axis=1) / counts)
        return found

    def steps(self, largest: np.ndarray) -> bytes:
        """Return the exponents of the steps, one signed byte a block."""
        least = _LEAST_SHARE * math.sqrt(float(np.mean(np.square(largest)))) if len(largest) else 0
        reach = np.maximum(largest, least) * (_REACH / _most(self._bits))
        with np.errstate(divide="ignore"):
            exponents = np.ceil(np.log2(reach))
        found: np.ndarray = np.clip(exponents, _LEAST_EXPONENT, _MOST_EXPONENT).astype(np.int8)
        return found.tobytes()

    def encode_update(self, update_sum: np.ndarray, key: UpdateKey, steps: bytes) -> np.ndarray:
        """See :class:`UpdateCodec`.

        Raises:
            TrainingDiverged: A value is not finite.
        """
        if not np.isfinite(update_sum).all():
            raise TrainingDiverged(
                f"client {key.client}: stage {key.stage}, round {key.round}: its update is not "
                "finite; lower learning-rate"
            )
        own = b"" if steps else self.steps(self.measure(update_sum))
        scaled = update_sum.astype(np.float64) / _values(steps or own, len(update_sum))
        drawn = _generator(key).random(len(update_sum))
        packed = _packed(_rounded(scaled, drawn, self._bits), self._bits)
        deflated = _deflated(packed)
        flags = (_OWN_STEPS if own else 0) | (_DEFLATED if len(deflated) < len(packed) else 0)
        item, count = update_sum.dtype.itemsize, len(update_sum)
        head = _HEAD.pack(_FORM, self._bits, item, flags, count)
        numbers = deflated if flags & _DEFLATED else packed
        return np.frombuffer(head + own + numbers, np.uint8)

    def decode_update(self, coded: np.ndarray, key: UpdateKey, steps: bytes) -> np.ndarray:
        """See :class:`UpdateCodec`."""
        del key
        content = coded.tobytes()
        if coded.dtype != np.uint8 or len(content) < _HEAD.size:
            raise RemoteProtocolError(f"a coded update has {len(content)} bytes; expected a head")
        form, bits, item, flags, count = _HEAD.unpack_from(content)
        if (form, bits) != (_FORM, self._bits) or item not in _DTYPES or count > _MOST_VALUES:
            raise RemoteProtocolError(
                f"a coded update has form {form}, {bits} bits, {item} bytes, {count} values; "
                f"expected form {_FORM}, {self._bits} bits, 4 or 8 bytes"
            )
        if bool(flags & _OWN_STEPS) == bool(steps) or flags & ~(_OWN_STEPS | _DEFLATED):
            raise RemoteProtocolError(f"a coded update has flags {flags}; expected its round's")
        blocks = -(-count // BLOCK)
        own = blocks if flags & _OWN_STEPS else 0
        exponents = steps or content[_HEAD.size : _HEAD.size + own]
        if len(exponents) != blocks:
            raise RemoteProtocolError(f"a coded update of {count} values lacks steps of its blocks")
        if own and np.abs(np.frombuffer(exponents, np.int8).astype(int)).max() > _MOST_EXPONENT:
            raise RemoteProtocolError(f"a coded update has a step above 2**{_MOST_EXPONENT}")
        numbers = _numbers(content[_HEAD.size + own :], count, self._bits, flags & _DEFLATED)
        decoded: np.ndarray = (numbers * _values(exponents, count)).astype(_DTYPES[item])
        return decoded


def _most(bits: int) -> int:
    """Return the largest number of so many bits."""
    return max(1, (1 << bits - 1) - 1)


def _values(exponents: bytes, count: int) -> np.ndarray:
    """Return the (count,) step of each value."""
    steps = np.ldexp(1.0, np.frombuffer(exponents, np.int8).astype(np.int32))
    each: np.ndarray = np.repeat(steps, BLOCK)[:count]
    return each


def _generator(key: UpdateKey) -> np.random.Generator:
    text = f"{key.seed}/{key.stage}/{key.round}/{key.client}/update".encode()
    digest = hashlib.blake2b(text, digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def _rounded(scaled: np.ndarray, drawn: np.ndarray, bits: int) -> np.ndarray:
    """Return whole numbers whose mean over ``drawn`` is ``scaled``, as far as they reach."""
    if bits == 1:
        # Down or up: -1 or 1.
        return np.where(drawn < (1.0 + scaled) / 2, 1, -1).astype(np.int8)
    most = _most(bits)
    found: np.ndarray = np.clip(np.floor(scaled + drawn), -most, most).astype(np.int8)
    return found


def _packed(numbers: np.ndarray, bits: int) -> bytes:
    if bits == 8:
        return numbers.tobytes()
    codes = ((numbers + 1) // 2 if bits == 1 else numbers + _most(bits)).astype(np.uint8)
    each = np.unpackbits(codes[:, None], axis=1)[:, 8 - bits :]
    return np.packbits(each.reshape(-1)).tobytes()


def _numbers(content: bytes, count: int, bits: int, is_deflated: int) -> np.ndarray:
    """Return (count,) numbers of what :func:`_packed` made.

    Raises:
        RemoteProtocolError: They are not so many, or too large.
    """
    expected = -(-count * bits // 8)
    packed = _inflated(content, expected) if is_deflated else content
    if len(packed) != expected:
        raise RemoteProtocolError(
            f"a coded update has {len(packed)} bytes of numbers; expected {expected}"
        )
    most = _most(bits)
    if bits == 8:
        numbers = np.frombuffer(packed, np.int8).astype(np.int64)
    else:
        each = np.unpackbits(np.frombuffer(packed, np.uint8), count=count * bits)
        weights = 1 << np.arange(bits - 1, -1, -1)
        codes = each.reshape(count, bits) @ weights
        numbers = codes * 2 - 1 if bits == 1 else codes - most
    if count and np.abs(numbers).max() > most:
        raise RemoteProtocolError(f"a coded update has numbers above {most} in magnitude")
    return numbers


def _deflated(content: bytes) -> bytes:
    # Huffman codes alone: numbers that are rounded at random repeat nothing.
    coder = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    return coder.compress(content) + coder.flush()


def _inflated(content: bytes, expected: int) -> bytes:
    decoder = zlib.decompressobj(-15)
    try:
        # One byte more than expected: an update that holds more is refused, and takes no memory.
        found = decoder.decompress(content, expected + 1)
    except zlib.error as error:
        raise RemoteProtocolError(f"a coded update is no deflated data ({error})") from error
    if not decoder.eof and len(found) <= expected:
        raise RemoteProtocolError("a coded update ends before its numbers do")
    return found
