"""Clients that mask numbers, and a server that adds them up, without a network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from retexo_fl.masking.holder import Hidden, MaskHolder, MaskMemory
from retexo_fl.masking.keys import PublicKeys, SecretKeys
from retexo_fl.masking.label import Label, Place
from retexo_fl.masking.ring import Ring
from retexo_fl.masking.streams import Sums
from retexo_fl.masking.unmasking import unmask


class MaskedClients:
    """All clients of an attempt."""

    def __init__(self, count: int, *, least_clients: int = 3) -> None:
        self.secrets = [SecretKeys.draw() for _ in range(count)]
        self.publics = PublicKeys(by_client={c: s.public for c, s in enumerate(self.secrets)})
        self.memories = [MaskMemory() for _ in range(count)]
        self.holders = [
            MaskHolder(
                client,
                secrets,
                self.publics,
                memory=memory,
                least_clients=least_clients,
            )
            for client, (secrets, memory) in enumerate(
                zip(self.secrets, self.memories, strict=True)
            )
        ]

    def label(
        self,
        *,
        asked: Iterable[int] | None = None,
        opens: bool = True,
        round_number: int = 1,
        trial: int = 0,
        weights: bytes = b"w" * 32,
        form: bytes = b"form",
    ) -> Label:
        """Return the label of a round."""
        place = Place(attempt=1, purpose="train", stage=0, round=round_number, trial=trial)
        known = range(len(self.holders)) if asked is None else asked
        return Label(
            job="job",
            place=place,
            keys=self.publics.digest,
            asked=tuple(known),
            form=form,
            weights=weights,
            opens=opens,
        )

    def hide(self, label: Label, numbers: Sequence[Sums]) -> dict[int, Hidden]:
        """Return what each client that is asked sends."""
        return {client: self.holders[client].hide(label, numbers[client]) for client in label.asked}

    def opened(
        self,
        label: Label,
        sent: dict[int, Hidden],
        included: Sequence[int],
        openers: Iterable[int] | None = None,
    ) -> Sums:
        """Return the sum over the included clients, with what openers tell."""
        total = added(sent, included)
        told = {
            opener: self.holders[opener].open(
                label, included, {c: sent[c].shares[opener] for c in included}
            )
            for opener in (label.openers if openers is None else openers)
        }
        unmask(label, total, included, told)
        return total


def added(sent: dict[int, Hidden], included: Iterable[int]) -> Sums:
    """Return the masked sum over clients."""
    chosen = [sent[client].sums for client in included]
    total = chosen[0].form.zeros()
    for sums in chosen:
        total.add(sums)
    return total


def random_numbers(
    clients: int, *, bits: int = 12, narrow: int = 50, wide: int = 4, most: int = 127
) -> list[Sums]:
    """Return numbers of so many clients, drawn by a fixed seed."""
    drawn = np.random.default_rng(1)
    return [
        Sums.of(
            Ring(bits),
            drawn.integers(-most, most + 1, narrow),
            drawn.integers(-(2**40), 2**40, wide),
        )
        for _ in range(clients)
    ]


def plain_sum(numbers: Sequence[Sums], included: Iterable[int]) -> tuple[list[int], list[int]]:
    """Return the sums over clients without masks."""
    signed = [numbers[client].signed() for client in included]
    return (
        np.sum([narrow for narrow, _ in signed], axis=0).tolist(),
        np.sum([wide for _, wide in signed], axis=0).tolist(),
    )


def lists(total: Sums) -> tuple[list[int], list[int]]:
    """Return sums as lists."""
    narrow, wide = total.signed()
    return narrow.tolist(), wide.tolist()
