"""A client's end: it masks what it answers, and as an opener tells shares.

Of each place in a training one content is masked, and of each one set is opened: what would make a
second answer tell more than the first is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.poly1305 import Poly1305

from retexo_fl.errors import SecureAggregationRefused
from retexo_fl.masking.keys import PublicKeys, SecretKeys, derived, number, numbers
from retexo_fl.masking.label import Label, Place
from retexo_fl.masking.long_number import LongNumber
from retexo_fl.masking.shamir import NOISE_BYTES, SECRET_BYTES, SHARE_BYTES, split
from retexo_fl.masking.streams import Sums, key_stream
from retexo_fl.units import counted

#: A sum of fewer hides nobody: one of two clients knows the other's part.
LEAST_CLIENTS: Final = 3
#: A key seals one piece.
_NONCE: Final = bytes(12)
_TAG_BYTES: Final = 16

Maskable = TypeVar("Maskable", Sums, LongNumber)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """What a client sends in place of its numbers.

    Attributes:
        sums: Its numbers with all masks on.
        shares: By opener, the sealed shares of this sum's masks; empty where nothing is opened.
    """

    sums: Sums
    shares: Mapping[int, bytes]


@dataclass(frozen=True, slots=True)
class Noted:
    """The last place of a purpose, and a digest of what was answered there."""

    order: tuple[int, int, int]
    digest: bytes


@dataclass(slots=True, kw_only=True)
class MaskMemory:
    """What a client must remember of an attempt, beside its secrets.

    Attributes:
        answered: By purpose, the last place where it masked numbers, with label and content.
        opened: By purpose, the last place, whatever the trial, of which it told shares, with
            weights and who was included.
        asked: By purpose, the digest of whom was asked where nobody may be missing.
    """

    answered: dict[str, Noted] = field(default_factory=dict)
    opened: dict[str, Noted] = field(default_factory=dict)
    asked: dict[str, bytes] = field(default_factory=dict)

    def follow(self, other: MaskMemory) -> None:
        """Remember what another remembers, and nothing else."""
        self.answered, self.opened, self.asked = other.answered, other.opened, other.asked


class MaskHolder:
    """The secrets of one client in one attempt.

    Args:
        client: Its index.
        secrets: Its own.
        publics: Of all clients of the attempt, checked; its own among them.
        memory: What earlier processes of the attempt have answered; it is added to before an answer
            is returned, and has to be on disk before that leaves.
        least_clients: Fewer are not added up.
    """

    def __init__(
        self,
        client: int,
        secrets: SecretKeys,
        publics: PublicKeys,
        *,
        memory: MaskMemory,
        least_clients: int = LEAST_CLIENTS,
    ) -> None:
        if publics.by_client.get(client) != secrets.public:
            raise SecureAggregationRefused(
                f"client {client}: the server names another masking key than the client's own"
            )
        self._client = client
        self._secrets = secrets
        self._publics = publics
        self._memory = memory
        self._least = max(least_clients, LEAST_CLIENTS)

    def check(self, label: Label) -> None:
        """Check who is asked for what, and by which keys.

        Raises:
            SecureAggregationRefused: It is no sum that this client takes part in.
        """
        asked = label.asked
        if list(asked) != sorted({*asked}) or not {*asked} <= self._publics.by_client.keys():
            raise SecureAggregationRefused(
                f"{label.place.name}: clients {list(asked)[:9]} are asked; expected clients with "
                "masking keys, each once, ascending"
            )
        if self._client not in asked:
            raise SecureAggregationRefused(
                f"{label.place.name}: client {self._client} is not among those that are asked"
            )
        if len(asked) < self._least:
            raise SecureAggregationRefused(
                f"{label.place.name}: a sum of {counted(len(asked), 'client')}; expected "
                f"{self._least_told}"
            )
        if label.place.trial and not label.opens:
            raise SecureAggregationRefused(
                f"{label.place.name}: asked again, where nobody may be missing"
            )
        if label.keys != self._publics.digest:
            raise SecureAggregationRefused(f"{label.place.name}: other masking keys are named")

    def hide(self, label: Label, sums: Sums) -> Hidden:
        """Mask a client's numbers.

        Args:
            label: What they are of.
            sums: Its own numbers.

        Raises:
            SecureAggregationRefused: Too few clients are asked, or others than before where nobody
                may be missing; the label is of other keys; or another content or label was
                answered at this place.
        """
        self.check(label)
        own = [self._own_seed(label)] if label.opens else []
        masked, seeds = self._masked(label, sums, own)
        shares = self._sealed(label, [*own, *seeds.values()]) if label.opens else {}
        return Hidden(sums=masked, shares=shares)

    def hide_long(self, label: Label, number: LongNumber) -> LongNumber:
        """Mask one long number, of a sum that nobody may be missing from; as :meth:`hide`."""
        self.check(label)
        assert not label.opens
        return self._masked(label, number, [])[0]

    def open(self, label: Label, included: Sequence[int], shares: Mapping[int, bytes]) -> bytes:
        """Tell the shares that take the masks off the sum over some clients.

        Args:
            label: Of the sum.
            included: Whose numbers are in it, ascending.
            shares: By each of them, what it sealed for this client.

        Returns:
            By client that is included, in their order, the share of its own mask; then those of its
            pair masks with neighbours that are missing.

        Raises:
            SecureAggregationRefused: The set is none, or another one was opened, or shares were not
                sealed for this client and label.
        """
        self.check(label)
        self._check_set(label, included)
        told: list[bytes] = []
        for client in included:
            if client not in shares:
                raise SecureAggregationRefused(f"shares of client {client} are missing")
            told.extend(self._told(label, client, set(included), shares[client]))
        return b"".join(told)

    # ---- inside -------------------------------------------------------------------------------

    @property
    def _least_told(self) -> str:
        whose = " (least-clients in its agent.toml)" if self._least > LEAST_CLIENTS else ""
        return f"{self._least} at least{whose}"

    def _masked(
        self, label: Label, hidden: Maskable, own: Sequence[bytes]
    ) -> tuple[Maskable, dict[int, bytes]]:
        """Return numbers with all masks on, if this client may answer so, and the pairs' seeds."""
        self._note_answer(label, hidden)
        seeds: dict[int, bytes] = self._pair_seeds(label)
        masked = hidden.copy()
        masked.add_masks(
            [*own, *(seed for other, seed in seeds.items() if self._client < other)],
            [seed for other, seed in seeds.items() if self._client > other],
        )
        return masked, seeds

    def _note_answer(self, label: Label, hidden: Sums | LongNumber) -> None:
        """Refuse to use a mask for two contents, and to be added up among others than before."""
        if not label.opens:
            asked = hashlib.sha256(numbers(label.asked)).digest()
            if self._memory.asked.setdefault(label.place.purpose, asked) != asked:
                raise SecureAggregationRefused(
                    f"{label.place.name}: other clients are asked than before, where nobody may be "
                    "missing; the difference of two sums would tell one client's numbers"
                )
        # Under a key of this label alone, and told nobody: so two contents have one tag by luck.
        tag = Poly1305(derived(self._secrets.own, b"note", label.digest))
        hidden.tell(tag.update)
        content = hashlib.sha256(label.digest + hidden.form.words + tag.finalize()).digest()
        if not _note(self._memory.answered, label.place, content):
            raise SecureAggregationRefused(
                f"{label.place.name}: this or a later sum was answered for other weights, clients "
                "or numbers; a second answer would tell the server more than a sum"
            )

    def _check_set(self, label: Label, included: Sequence[int]) -> None:
        name = label.place.name
        if list(included) != sorted({*included}) or not {*included} <= {*label.asked}:
            raise SecureAggregationRefused(f"{name}: not a set of clients that were asked")
        if len(included) < self._least:
            raise SecureAggregationRefused(
                f"{name}: to open a sum of {counted(len(included), 'client')}; expected "
                f"{self._least_told}"
            )
        if self._client not in label.openers or not label.opens:
            raise SecureAggregationRefused(
                f"{name}: client {self._client} holds no shares of this sum"
            )
        content = hashlib.sha256(label.weights + numbers(included)).digest()
        if not _note(self._memory.opened, replace(label.place, trial=0), content):
            raise SecureAggregationRefused(
                f"{name}: a sum over other clients was opened; a second one would tell the "
                "difference"
            )

    def _pair_seeds(self, label: Label) -> dict[int, bytes]:
        return {other: self._pair_seed(label, other) for other in label.neighbours(self._client)}

    def _pair_seed(self, label: Label, other: int) -> bytes:
        shared = self._secrets.shared(self._publics.by_client[other])
        return derived(shared, b"mask", label.digest)[:SECRET_BYTES]

    def _own_seed(self, label: Label) -> bytes:
        return derived(self._secrets.own, b"mask", label.digest)[:SECRET_BYTES]

    def _sealed(self, label: Label, seeds: Sequence[bytes]) -> dict[int, bytes]:
        """Split seeds, and seal each opener's shares for it.

        All follows from secrets and label, so that a question that is asked again has one answer.
        """
        openers, size = label.openers, (label.threshold - 1) * NOISE_BYTES
        noise = key_stream(derived(self._secrets.own, b"shares", label.digest), size * len(seeds))
        by_seed = [
            split(seed, label.threshold, len(openers), noise[at * size : (at + 1) * size])
            for at, seed in enumerate(seeds)
        ]
        found: dict[int, bytes] = {}
        for at, opener in enumerate(openers):
            plain = b"".join(shares[at] for shares in by_seed)
            box = self._box(label, self._client, opener)
            found[opener] = box.encrypt(_NONCE, plain, label.digest)
        return found

    def _told(
        self, label: Label, client: int, included: set[int], sealed: bytes
    ) -> Iterator[bytes]:
        neighbours = label.neighbours(client)
        try:
            # A piece of another length has another tag.
            box = self._box(label, client, client)
            plain = box.decrypt(_NONCE, sealed, label.digest)
        except InvalidTag as error:
            raise SecureAggregationRefused(
                f"{label.place.name}: shares of client {client} were not sealed for this sum"
            ) from error
        yield plain[:SHARE_BYTES]
        for place, other in enumerate(neighbours, start=1):
            if other not in included:
                yield plain[place * SHARE_BYTES : (place + 1) * SHARE_BYTES]

    def _box(self, label: Label, owner: int, other: int) -> ChaCha20Poly1305:
        """Return what seals the owner's shares: for ``other``, or for this client if that is it."""
        partner = other if owner == self._client else owner
        secret = (
            self._secrets.own
            if partner == self._client
            else self._secrets.shared(self._publics.by_client[partner])
        )
        return ChaCha20Poly1305(derived(secret, b"seal", label.digest, number(owner)))


def _note(known: dict[str, Noted], place: Place, content: bytes) -> bool:
    """Note what is answered at a place; return whether it may be: nothing else was, nor later."""
    last = known.get(place.purpose)
    if last is not None and place.order <= last.order:
        return Noted(place.order, content) == last
    known[place.purpose] = Noted(place.order, content)
    return True


def sealed_bytes(neighbours: int) -> int:
    """Return the bytes of one opener's sealed shares of a client with so many neighbours."""
    return (1 + neighbours) * SHARE_BYTES + _TAG_BYTES


def told_shares(label: Label, included: Sequence[int]) -> list[tuple[int, int]]:
    """Return whose share follows whose in what an opener tells: (client, other) in order.

    ``(client, client)`` is a mask of its own, any other pair one with a client that is missing.
    """
    there = set(included)
    return [
        (client, other)
        for client in included
        for other in (client, *(o for o in label.neighbours(client) if o not in there))
    ]
