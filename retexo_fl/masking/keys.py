"""Keys of an attempt: one X25519 key for each client, signed by the key that the roster names.

From each pair's shared secret follow the seeds of all masks between the two. A seed is
HMAC(secret, what it is for, label): one round's seeds say nothing of another's. A label says what
one masked sum is of: masks cancel only where all clients agree on every word of it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, Self

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from retexo_fl.errors import SecureAggregationRefused

KEY_BYTES: Final = 32
#: Of a P-256 signature: r, then s.
SIGNATURE_BYTES: Final = 64
_COUNTERS: Final = struct.Struct("<Q8sQ")
COUNTERS_BYTES: Final = _COUNTERS.size
#: What goes with a key: its owner's counters, and a signature of both.
SIGNED_BYTES: Final = COUNTERS_BYTES + SIGNATURE_BYTES


def derived(secret: bytes, what: bytes, *pieces: bytes) -> bytes:
    """Return 32 bytes that follow from a secret.

    Args:
        secret: The key.
        what: What they are for.
        pieces: Of lengths that follow from that.
    """
    return hmac.digest(secret, b"\0".join([what, b"".join(pieces)]), "sha256")


def number(value: int) -> bytes:
    """Return a whole number from 0 as 8 bytes."""
    return value.to_bytes(8, "little")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Which of a client's processes signs, and what its disk says that it did before.

    Others remember the highest: a disk that was put back says less.

    Attributes:
        starts: How often the client was started, this time included.
        process: 8 bytes that the process has drawn.
        questions: How many the client has answered, of all jobs.
    """

    starts: int
    process: bytes
    questions: int

    @property
    def content(self) -> bytes:
        """24 bytes."""
        return _COUNTERS.pack(self.starts, self.process, self.questions)

    @classmethod
    def of(cls, content: bytes) -> Self:
        """Read 24 bytes."""
        starts, process, questions = _COUNTERS.unpack(content)
        return cls(starts=starts, process=process, questions=questions)


def signed_text(job: str, attempt: int, client: int, public: bytes, counters: Counters) -> bytes:
    """Return what a client signs with the key of its certificate."""
    place = [job.encode(), number(attempt), number(client)]
    return b"\0".join([b"retexo masking key 2", *place, public, counters.content])


@dataclass(frozen=True, kw_only=True)
class PublicKeys:
    """The public keys of all clients of an attempt.

    Attributes:
        by_client: 32 bytes each, by client, ascending.
    """

    by_client: Mapping[int, bytes]

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that name these keys and say which client has which."""
        told = hashlib.sha256(b"retexo masking keys 1")
        for client, public in self.by_client.items():
            told.update(number(client) + public)
        return told.digest()

    @staticmethod
    @lru_cache(maxsize=4)
    def of(clients: tuple[int, ...], keys: bytes) -> PublicKeys:
        """Return the keys of clients, ascending, 32 bytes each; equal ones are one object."""
        pieces = (keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES))
        return PublicKeys(by_client=dict(zip(clients, pieces, strict=True)))


class SecretKeys:
    """A client's secrets of an attempt: an X25519 key, and what only itself derives from.

    Args:
        private: 32 bytes.
        own: 32 bytes.
    """

    def __init__(self, private: bytes, own: bytes) -> None:
        self.private, self.own = private, own
        self._key = X25519PrivateKey.from_private_bytes(private)
        self._shared: dict[bytes, bytes] = {}

    @classmethod
    def draw(cls) -> Self:
        """Draw new ones from the operating system."""
        return cls(os.urandom(KEY_BYTES), os.urandom(KEY_BYTES))

    @property
    def public(self) -> bytes:
        """The 32 bytes that others may see."""
        return self._key.public_key().public_bytes_raw()

    def shared(self, public: bytes) -> bytes:
        """Return the 32 bytes that only this client and the owner of a public key know.

        Raises:
            SecureAggregationRefused: It is no public key.
        """
        if public not in self._shared:
            try:
                agreed = self._key.exchange(X25519PublicKey.from_public_bytes(public))
            except ValueError as error:
                raise SecureAggregationRefused("a client's masking key is none") from error
            both = sorted((self.public, public))
            self._shared[public] = derived(agreed, b"retexo masking pair 1", *both)
        return self._shared[public]


# ---- what one sum is of --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Label:
    """Names a masked sum; :attr:`digest` binds all of it.

    Attributes:
        job: Name of the training.
        config: Digest of its configuration; empty where it has none.
        attempt: From 1.
        purpose: Type of the message, and what distinguishes several of that type.
        stage: Stage index.
        round: Of the stage.
        agreement: Digest of what the owners agreed on.
        cohort: Clients that are added up, ascending: each has masks with every other one.
        uses: What the sums may be of; to others all of the cohort add zeros.
        keys: Digest of the cohort's public keys.
        form: How numbers are coded: digest of widths and steps.
        weights: SHA-256 of the weights that clients compute with, and of the rows they compute on.
    """

    job: str
    config: bytes
    attempt: int
    purpose: str
    stage: int
    round: int
    agreement: bytes
    cohort: tuple[int, ...]
    uses: frozenset[str]
    keys: bytes
    form: bytes
    weights: bytes

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that bind all of it."""
        place = f"{self.purpose} {self.attempt}/{self.stage}/{self.round}"
        return bound(
            b"retexo masked sum 3",
            self.job.encode(),
            self.config,
            place.encode(),
            self.agreement,
            b"".join(map(number, self.cohort)),
            " ".join(sorted(self.uses)).encode(),
            self.keys,
            self.form,
            self.weights,
        )


def rows_of(config: bytes, agreement: bytes) -> bytes:
    """Return the 32 bytes that the names of all rows of a job begin with.

    So a peer that got another configuration, or whose owner agreed to something else, has rows
    of other names, which nobody takes: what a client computes on follows from its label.

    Args:
        config: Digest of the job's configuration.
        agreement: Digest of what the owners agreed on; empty in a simulation.
    """
    return bound(b"retexo masked rows 1", config, agreement)


def bound(what: bytes, *pieces: bytes) -> bytes:
    """Return 32 bytes that bind pieces of any length, each in its place."""
    told = hashlib.sha256(what)
    for piece in pieces:
        told.update(number(len(piece)) + piece)
    return told.digest()
