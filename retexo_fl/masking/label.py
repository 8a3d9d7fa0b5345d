"""What one masked sum is of: masks cancel only where all clients agree on every word of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

from retexo_fl.masking.keys import number


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

    @property
    def place(self) -> str:
        """Text that no other sum of the training has."""
        return f"{self.purpose} {self.attempt}/{self.stage}/{self.round}"

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that bind all of it."""
        return bound(
            b"retexo masked sum 3",
            self.job.encode(),
            self.config,
            self.place.encode(),
            self.agreement,
            b"".join(map(number, self.cohort)),
            " ".join(sorted(self.uses)).encode(),
            self.keys,
            self.form,
            self.weights,
        )


def rows_of(config: bytes, agreement: bytes) -> bytes:
    """Return the 32 bytes that the names of all rows of a job begin with.

    So a peer that was told another configuration, or whose owner agreed to something else, has rows
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
