"""Masks: the key stream of ChaCha20, as numbers of a ring.

A Raspberry Pi 4 has no instructions for AES, and both ends of a pair need the same stream.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from retexo_fl.masking.ring import Numbers, Ring

_ZEROS: Final = bytes(2**20)
#: ChaCha20 writes whole words of an unaligned tail; room behind the last.
_ROOM: Final = 64
#: Counts and sums of losses need no more, however many clients add theirs.
WIDE: Final = Ring(64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The form of a client's answer: numbers of two widths.

    Attributes:
        ring: Of the first numbers.
        narrow: How many of these there are.
        wide: How many numbers of 64 bits follow.
    """

    ring: Ring
    narrow: int
    wide: int

    def zeros(self) -> Sums:
        """Return sums of nothing."""
        return Sums(
            form=self,
            narrow=np.zeros(self.narrow, self.ring.dtype),
            wide=np.zeros(self.wide, WIDE.dtype),
        )

    @property
    def words(self) -> bytes:
        """The form as bytes, for labels."""
        return b"/".join(str(n).encode() for n in (self.ring.bits, self.narrow, self.wide))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Numbers of a form, masked or not.

    Attributes:
        form: Of both arrays.
        narrow: (narrow,) of the form's ring.
        wide: (wide,) uint64.
    """

    form: Form
    narrow: Numbers
    wide: Numbers

    @classmethod
    def of(cls, ring: Ring, narrow: np.ndarray, wide: np.ndarray) -> Sums:
        """Take (n,) and (m,) int64 numbers; those that are too large for the ring wrap around."""
        form = Form(ring=ring, narrow=len(narrow), wide=len(wide))
        return cls(form=form, narrow=ring.wrapped(narrow), wide=WIDE.wrapped(wide))

    def add(self, other: Sums) -> None:
        """Add in place."""
        assert other.form == self.form
        self.form.ring.add(self.narrow, other.narrow)
        WIDE.add(self.wide, other.wide)

    def add_mask(self, seed: bytes) -> None:
        """Add the mask of a 16-byte seed in place."""
        narrow, wide = _mask(seed, self.form)
        self.form.ring.add(self.narrow, narrow)
        WIDE.add(self.wide, wide)

    def subtract_mask(self, seed: bytes) -> None:
        """Subtract the mask of a 16-byte seed in place."""
        narrow, wide = _mask(seed, self.form)
        self.form.ring.subtract(self.narrow, narrow)
        WIDE.subtract(self.wide, wide)

    def signed(self) -> tuple[np.ndarray, np.ndarray]:
        """Return both as int64."""
        return self.form.ring.signed(self.narrow), WIDE.signed(self.wide)


def key_stream(key: bytes, size: int) -> bytes:
    """Return so many bytes that follow from 32."""
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None)
    return cipher.encryptor().update(bytes(size))


def _mask(seed: bytes, form: Form) -> tuple[Numbers, Numbers]:
    """Return the numbers that a seed stands for; a seed is used for one form only."""
    dtype = form.ring.dtype
    begin = form.wide * WIDE.dtype.itemsize
    total = begin + form.narrow * dtype.itemsize
    key = hashlib.sha256(b"retexo mask 1" + seed).digest()
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None)
    encryptor, stream = cipher.encryptor(), bytearray(total + _ROOM)
    view = memoryview(stream)
    for at in range(0, total, len(_ZEROS)):
        piece = memoryview(_ZEROS)[: min(len(_ZEROS), total - at)]
        encryptor.update_into(piece, view[at:])
    wide = np.frombuffer(stream, WIDE.dtype, form.wide)
    return np.frombuffer(stream, dtype, form.narrow, begin), wide
