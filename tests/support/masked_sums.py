"""Clients that mask numbers, and a server that adds them up, without a network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from retexo_fl.masking.holder import MaskHolder
from retexo_fl.masking.keys import Label, PublicKeys, SecretKeys
from retexo_fl.masking.ring import Ring
from retexo_fl.masking.streams import WIDE, Form, Sums


class MaskedClients:
    """All clients of a cohort in an attempt."""

    def __init__(self, count: int) -> None:
        self.secrets = [SecretKeys.draw() for _ in range(count)]
        self.publics = PublicKeys(by_client={c: s.public for c, s in enumerate(self.secrets)})
        self.holders = [
            MaskHolder(client, secrets, self.publics) for client, secrets in enumerate(self.secrets)
        ]

    def label(
        self, *, round_number: int = 1, weights: bytes = b"w" * 32, form: bytes = b"form"
    ) -> Label:
        """Return the label of a round."""
        return Label(
            job="job",
            config=b"c" * 32,
            attempt=1,
            purpose="train",
            stage=0,
            round=round_number,
            agreement=b"a" * 32,
            cohort=tuple(self.publics.by_client),
            uses=frozenset({"train", "test"}),
            keys=self.publics.digest,
            form=form,
            weights=weights,
        )

    def hide(self, label: Label, numbers: Sequence[Sums]) -> dict[int, Sums]:
        """Return what each client sends."""
        return {
            client: self.holders[client].hide(label, numbers[client]) for client in label.cohort
        }


def added(sent: dict[int, Sums]) -> Sums:
    """Return the sum over clients."""
    total = next(iter(sent.values())).form.zeros()
    for sums in sent.values():
        total.add(sums)
    return total


def sums_of(
    ring: Ring,
    narrow: np.ndarray,
    wide: np.ndarray,
    counts: np.ndarray | None = None,
    counter: Ring = WIDE,
    *,
    long: int = 0,
) -> Sums:
    """Return numbers in the form that has room for just these."""
    counts = np.zeros(0, np.int64) if counts is None else counts
    sizes = {"narrow": len(narrow), "wide": len(wide), "counts": len(counts), "long": long}
    return Form(ring=ring, counter=counter, **sizes).filled(narrow, wide, counts)


def random_numbers(
    clients: int, *, bits: int = 12, narrow: int = 50, wide: int = 4, most: int = 127
) -> list[Sums]:
    """Return numbers of so many clients, drawn by a fixed seed."""
    drawn = np.random.default_rng(1)
    return [
        sums_of(
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
        np.sum([narrow for narrow, *_ in signed], axis=0).tolist(),
        np.sum([wide for _, wide, _ in signed], axis=0).tolist(),
    )


def lists(total: Sums) -> tuple[list[int], list[int]]:
    """Return sums as lists."""
    narrow, wide, _ = total.signed()
    return narrow.tolist(), wide.tolist()
