"""Masks: the key stream of ChaCha20, as numbers of a ring.

A Raspberry Pi 4 has no instructions for AES, and both ends of a pair need the same stream.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms

from retexo_fl.masking.ring import Numbers, Ring

#: Of a stream that are made at a time: they, and the numbers they are added to, stay in the cache.
_PIECE_BYTES: Final = 2**17
_ZEROS: Final = memoryview(bytes(_PIECE_BYTES))
_MASK: Final = b"retexo mask 1"
#: ChaCha20 writes whole words of an unaligned tail; room behind the last.
_ROOM: Final = 64
#: Sums of losses need no more, however many clients add theirs.
WIDE: Final = Ring(64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The form of a client's answer: numbers of up to three widths.

    Attributes:
        ring: Of the first numbers.
        narrow: How many of these there are.
        wide: How many numbers of 64 bits follow.
        counts: How many counts, then; sums of them stay within the ring ``counter``.
        counter: Of the counts.
        long: How many of the first wide ones are one whole number, the lowest word first, which is
            added with carries: sums of single words would show how often each overflowed.
    """

    ring: Ring
    narrow: int
    wide: int
    counts: int = 0
    counter: Ring = WIDE
    long: int = 0

    def zeros(self) -> Sums:
        """Return sums of nothing."""
        return Sums(
            form=self,
            narrow=np.zeros(self.narrow, self.ring.dtype),
            wide=np.zeros(self.wide, WIDE.dtype),
            counts=np.zeros(self.counts, self.counter.dtype),
        )

    def filled(self, narrow: np.ndarray, wide: np.ndarray, counts: np.ndarray) -> Sums:
        """Take as many whole numbers; those that are too large for their ring wrap around."""
        assert (len(narrow), len(wide), len(counts)) == (self.narrow, self.wide, self.counts)
        return Sums(
            form=self,
            narrow=self.ring.wrapped(narrow),
            wide=WIDE.wrapped(wide),
            counts=self.counter.wrapped(counts),
        )

    @property
    def words(self) -> bytes:
        """The form as bytes, for labels."""
        sizes = (self.ring.bits, self.narrow, self.wide, self.counter.bits, self.counts, self.long)
        return b"/".join(str(n).encode() for n in sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Numbers of a form, masked or not.

    Attributes:
        form: Of the arrays.
        narrow: (narrow,) of the form's ring.
        wide: (wide,) uint64.
        counts: (counts,) of the form's counter.
    """

    form: Form
    narrow: Numbers
    wide: Numbers
    counts: Numbers

    def add(self, other: Sums) -> None:
        """Add in place."""
        assert other.form == self.form
        if self.form.long:
            self._add_long(other.long)
        for (ring, numbers), (_, others) in zip(self._parts(), other._parts(), strict=True):
            ring.cut(np.add(numbers, others, out=numbers))

    def add_masks(self, added: Iterable[bytes], subtracted: Iterable[bytes] = ()) -> None:
        """Add the masks of some 16-byte seeds and subtract those of others, in place.

        Piece by piece, so that what is added to is read and written once for all of them.
        """
        streams: list[tuple[np.ufunc, Callable[..., object]]]
        streams = [(np.add, key_stream(_MASK, seed).update_into) for seed in added]
        streams += [(np.subtract, key_stream(_MASK, seed).update_into) for seed in subtracted]
        if words := self.form.long:
            self._add_long(sum(_long_mask(write, words, change) for change, write in streams))
        for pieces in self._pieces():
            size = sum(piece.nbytes for piece in pieces)
            room, zeros = bytearray(size + _ROOM), _ZEROS[:size]
            masks, begin = [], 0
            for piece in pieces:
                masks.append((piece, np.frombuffer(room, piece.dtype, len(piece), begin)))
                begin += piece.nbytes
            for change, write in streams:
                write(zeros, room)
                for piece, mask in masks:
                    change(piece, mask, out=piece)
        for ring, numbers in self._parts():
            ring.cut(numbers)

    @property
    def words(self) -> bytes:
        """Its form as bytes, for labels."""
        return self.form.words

    def signed(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the narrow ones, the wide ones and the counts as int64."""
        form = self.form
        counts = form.counter.signed(self.counts)
        return form.ring.signed(self.narrow), WIDE.signed(self.wide), counts

    def copy(self) -> Sums:
        """Return numbers of their own."""
        arrays = (self.narrow.copy(), self.wide.copy(), self.counts.copy())
        return Sums(form=self.form, narrow=arrays[0], wide=arrays[1], counts=arrays[2])

    def tell(self, update: Callable[[memoryview], object]) -> None:
        """Hand over all numbers as bytes, one array after the other."""
        for numbers in (self.wide, self.narrow, self.counts):
            if numbers.size:
                update(numbers.data.cast("B"))

    def _pieces(self) -> Iterator[list[Numbers]]:
        """Yield views of all numbers in their order, of so many bytes at a time."""
        found: list[Numbers] = []
        room = _PIECE_BYTES
        for _, numbers in self._parts():
            begin = 0
            while begin < len(numbers):
                if room < numbers.itemsize:
                    yield found
                    found, room = [], _PIECE_BYTES
                found.append(numbers[begin : begin + room // numbers.itemsize])
                begin += len(found[-1])
                room -= found[-1].nbytes
        if found:
            yield found

    def _parts(self) -> tuple[tuple[Ring, Numbers], ...]:
        """Return rings with their numbers, in the order in which a stream masks them."""
        form = self.form
        wide = self.wide[form.long :]
        return (WIDE, wide), (form.ring, self.narrow), (form.counter, self.counts)

    @property
    def long(self) -> int:
        """The whole number of the first wide ones, from 0."""
        return int.from_bytes(self.wide[: self.form.long].tobytes(), "little")

    def _add_long(self, number: int) -> None:
        """Add to that number in place."""
        words = self.form.long
        size = words * WIDE.dtype.itemsize
        total = (self.long + number) % (1 << 8 * size)
        self.wide[:words] = long_words(total, words)


def long_words(number: int, words: int) -> Numbers:
    """Return a whole number from 0 as so many words of 64 bits, the lowest first."""
    found: Numbers = np.frombuffer(
        number.to_bytes(words * WIDE.dtype.itemsize, "little"), WIDE.dtype
    )
    return found


def _long_mask(
    write: Callable[[memoryview, bytearray], object], words: int, change: np.ufunc
) -> int:
    """Return the first words of a stream as a number that is added."""
    size = words * WIDE.dtype.itemsize
    room = bytearray(size + _ROOM)
    write(_ZEROS[:size], room)
    number = int.from_bytes(room[:size], "little")
    return number if change is np.add else -number


def key_stream(what: bytes, seed: bytes) -> CipherContext:
    """Return what makes the next bytes of a seed's mask of as many zeros.

    A seed is used for one form only.
    """
    key = hashlib.sha256(what + seed).digest()
    return Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
