"""A client's end: it masks what it adds to the sums over its cohort.

For each stage, round and purpose a client masks one content only: of two under the same masks the
server could see the difference.
"""

from __future__ import annotations

from typing import Final, TypeVar

from cryptography.hazmat.primitives.poly1305 import Poly1305

from retexo_fl.answer_book import AnswerBook
from retexo_fl.errors import SecureAggregationRefused
from retexo_fl.masking.keys import Label, PublicKeys, SecretKeys, bound, derived
from retexo_fl.masking.long_number import LongNumber
from retexo_fl.masking.streams import Sums

#: Length of the seed that a mask is expanded from.
_SEED_BYTES: Final = 16

Maskable = TypeVar("Maskable", Sums, LongNumber)


class MaskHolder:
    """The secrets of one client in one attempt, and what was answered with them.

    Args:
        client: Its index.
        secrets: Its own.
        publics: Of all members of its cohort, checked; its own among them.

    Raises:
        SecureAggregationRefused: Its own is another one.
    """

    def __init__(self, client: int, secrets: SecretKeys, publics: PublicKeys) -> None:
        if publics.by_client.get(client) != secrets.public:
            raise SecureAggregationRefused(
                f"client {client}: the server names another masking key than the client's own"
            )
        self._client = client
        self._secrets = secrets
        self._publics = publics
        #: Ends with the keys: under others no content has the same digest.
        self._answers = AnswerBook()

    def hide(self, label: Label, numbers: Maskable) -> Maskable:
        """Return a client's numbers with all masks on.

        Args:
            label: What they are of: of this client's cohort, by its keys.
            numbers: Its own.

        Raises:
            SecureAggregationRefused: Another content or label was answered at this place.
        """
        assert label.cohort == tuple(self._publics.by_client)
        assert label.keys == self._publics.digest
        self._note(label, numbers)
        seeds = {
            other: derived(self._secrets.shared(public), b"mask", label.digest)[:_SEED_BYTES]
            for other, public in self._publics.by_client.items()
            if other != self._client
        }
        masked = numbers.copy()
        masked.add_masks(
            [seed for other, seed in seeds.items() if self._client < other],
            [seed for other, seed in seeds.items() if self._client > other],
        )
        return masked

    def _note(self, label: Label, numbers: Sums | LongNumber) -> None:
        """Refuse to use a mask for two contents."""
        # Under a key of this label alone, which nobody gets: two contents share a tag only by luck.
        tag = Poly1305(derived(self._secrets.own, b"note", label.digest))
        numbers.tell(tag.update)
        content = bound(b"retexo masked answer 1", label.digest, numbers.words, tag.finalize())
        place = label.attempt, label.stage, label.round, 0
        error = SecureAggregationRefused
        self._answers.enter(label.purpose, place, content, client=self._client, error=error)
