"""What one masked sum is of: masks cancel only where all clients agree on every word of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from retexo_fl.masking.keys import derived, number, numbers

#: Clients that each client shares masks with, where there are more than one more than that.
NEIGHBOURS: Final = 64
#: Clients that hold shares at most.
MOST_OPENERS: Final = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where in a training a sum is asked for; a client answers each place once.

    Attributes:
        attempt: From 1.
        purpose: Type of the message, and what distinguishes several of that type.
        stage: Stage index.
        round: Of the stage.
        trial: 0, then 1 and so on where a round is asked again.
    """

    attempt: int
    purpose: str
    stage: int
    round: int
    trial: int = 0

    @property
    def order(self) -> tuple[int, int, int]:
        """Places of a purpose follow each other in this order."""
        return self.stage, self.round, self.trial

    @property
    def name(self) -> str:
        """Text that no other place has."""
        return f"{self.purpose} {self.attempt}/{self.stage}/{self.round}/{self.trial}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """Names a masked sum; :attr:`digest` binds all of it.

    Attributes:
        job: Name of the training.
        place: Where in it.
        keys: Digest of all clients' public keys.
        asked: Clients that are asked, ascending.
        form: How numbers are coded: digest of widths and steps.
        weights: SHA-256 of the weights that clients compute with, and of the rows they compute on.
        opens: Whether some of the asked may be missing: shares are sent along.
    """

    job: str
    place: Place
    keys: bytes
    asked: tuple[int, ...]
    form: bytes
    weights: bytes
    opens: bool = False
    _digest: list[bytes] = field(init=False, default_factory=list, compare=False, repr=False)

    @property
    def digest(self) -> bytes:
        """32 bytes that bind all of it."""
        return self._digests()[1]

    def neighbours(self, client: int) -> list[int]:
        """Return the clients with whom a client shares masks, ascending.

        All that are asked; or those next to it on a ring whose order follows from the label.

        Source: Bell et al., Secure single-server aggregation with (poly)logarithmic overhead,
        CCS 2020.
        """
        if len(self.asked) <= NEIGHBOURS + 1:
            return [other for other in self.asked if other != client]
        order, count = self._by_rank(b"ring"), len(self.asked)
        at = order.index(client)
        steps = range(1, NEIGHBOURS // 2 + 1)
        return sorted(order[(at + way * step) % count] for step in steps for way in (-1, 1))

    @property
    def openers(self) -> tuple[int, ...]:
        """Clients that hold shares, ascending: up to 15, by the label."""
        if len(self.asked) <= MOST_OPENERS:
            return self.asked
        return tuple(sorted(self._by_rank(b"openers")[:MOST_OPENERS]))

    @property
    def threshold(self) -> int:
        """How many openers' shares tell a mask: more than two thirds of them."""
        return least_openers(len(self.asked))

    def _digests(self) -> list[bytes]:
        """Return 32 bytes that bind all but form and weights, then those that bind all."""
        if not self._digest:
            told = hashlib.sha256(b"retexo masked sum 1" + bytes([self.opens]))
            pieces = (self.job.encode(), self.place.name.encode(), self.keys, numbers(self.asked))
            for piece in pieces:
                told.update(number(len(piece)) + piece)
            self._digest.append(told.digest())
            for piece in (self.form, self.weights):
                told.update(number(len(piece)) + piece)
            self._digest.append(told.digest())
        return self._digest

    def _by_rank(self, what: bytes) -> Sequence[int]:
        # The server knows this order without what clients compute with.
        return _ranked(self._digests()[0], what, self.asked)


def least_openers(asked: int) -> int:
    """Return how many openers must tell shares of a sum that so many clients are asked for."""
    return min(asked, MOST_OPENERS) * 2 // 3 + 1


@lru_cache(maxsize=8)
def _ranked(known: bytes, what: bytes, clients: tuple[int, ...]) -> tuple[int, ...]:
    """Return clients in an order that follows from the digest; all of a process share it."""
    return tuple(sorted(clients, key=lambda client: derived(known, what, number(client))))
