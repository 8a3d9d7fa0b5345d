"""What an owner keeps beside its key: from it follow the digest of its part and its own numbers."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from retexo_fl.channels.identity import write_new
from retexo_fl.channels.roster import DRAW_BYTES, Promise
from retexo_fl.errors import IdentityError
from retexo_fl.masking.keys import derived

OWN_FILE: Final = "agreement-secret"
_BYTES: Final = 32


@dataclass(frozen=True, slots=True, repr=False)
class OwnerSecret:
    """32 bytes that nobody else knows.

    A client that gets a new key takes it along: another one makes another digest of the same part.
    """

    content: bytes

    @classmethod
    def beside(cls, key_path: Path) -> Self:
        """Read the secret in the folder of a key.

        Raises:
            IdentityError: It is not there, is damaged, or others may read it.
        """
        path = key_path.with_name(OWN_FILE)
        try:
            content, mode = path.read_bytes(), path.stat().st_mode & 0o777
        except OSError as error:
            raise IdentityError(
                f"{path}: {error.strerror}; expected what `retexo keys member` made there"
            ) from error
        if mode & 0o077:
            raise IdentityError(f"{path}: others may read it (mode {mode:04o}), expected 0600")
        if len(content) != _BYTES:
            raise IdentityError(f"{path}: {len(content)} bytes; expected {_BYTES}")
        return cls(content)

    @classmethod
    def beside_or_new(cls, key_path: Path) -> Self:
        """Read the secret in the folder of a key, or draw one there (mode 0600).

        Raises:
            IdentityError: As :meth:`beside`; or it cannot be written.
        """
        path = key_path.with_name(OWN_FILE)
        try:
            write_new(path, os.urandom(_BYTES), mode=0o600)
        except FileExistsError:
            pass
        except OSError as error:
            raise IdentityError(f"{path}: {error.strerror}") from error
        return cls.beside(key_path)

    def promise(self, brings: frozenset[str], part: bytes) -> Promise:
        """Commit to a number of one's own, drawn now, and to a part.

        Args:
            brings: Uses of which the part has enough.
            part: Digest of the part.
        """
        draw = os.urandom(DRAW_BYTES)
        return Promise(
            brings=brings,
            part=self.part(part),
            draw=draw,
            commitment=commitment_to(self.number(draw)),
        )

    def part(self, digest: bytes) -> bytes:
        """Return what others see of the digest of a part, 32 bytes."""
        return derived(self.content, b"retexo part 1", digest)

    def number(self, draw: bytes) -> bytes:
        """Return the number of a promise, 32 bytes."""
        return derived(self.content, b"retexo number of an owner 1", draw)


def commitment_to(number: bytes) -> bytes:
    """Return the commitment to an owner's number, 32 bytes: all publish it before any number."""
    return hashlib.sha256(b"retexo commitment 1\0" + number).digest()
