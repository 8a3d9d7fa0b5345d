"""The prototype of the protocol, written before it and apart from it, gives the same sums."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, count
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from retexo_fl.masking.label import Label
from retexo_fl.masking.ring import Ring
from retexo_fl.masking.streams import Sums
from tests.support.data import prototype
from tests.support.masked_sums import MaskedClients, added, lists

SIZE = 40
#: Fewer cannot open a sum of four, and so on: more than two thirds.
THRESHOLD = {4: 3, 5: 4, 6: 5, 70: 11}


@pytest.fixture(scope="module")
def oracle() -> ModuleType:
    return prototype("masked_sums")


class Prototype:
    """The prototype's clients after its first messages."""

    def __init__(self, oracle: ModuleType, count: int) -> None:
        self.oracle = oracle
        self.clients = [oracle.Client(index) for index in range(count)]
        publics = {client.index: client.public for client in self.clients}
        self.openers = [*range(min(15, count))]
        for client in self.clients:
            client.meet(publics, self.openers, THRESHOLD[count], 64, 3)

    def total(
        self,
        numbers: Sequence[tuple[np.ndarray, np.ndarray]],
        included: Sequence[int],
        openers: Sequence[int] = (),
    ) -> tuple[list[int], list[int]]:
        """Return the sums over the included clients, of one round; none are opened if all send."""
        asked = range(len(numbers))
        label = self.oracle.Label(b"job", 1, 0, 1, self.clients[0].digest, asked, b"w", 0)
        sent: dict[int, Any] = {
            client: self.clients[client].masked(label, *numbers[client], bool(openers))
            for client in asked
        }
        total = [np.zeros(SIZE, np.uint32), np.zeros(self.oracle.TAIL, np.uint64)]
        for client in included:
            for place, array in enumerate(sent[client][0]):
                total[place] += array
        if openers:
            told = {
                opener: self.clients[opener].open(
                    label, included, {client: sent[client][1][opener] for client in included}
                )
                for opener in openers
            }
            places = {opener: at for at, opener in enumerate(self.openers, start=1)}
            self.oracle.unmask(total, told, places, len(openers))
        return total[0].view(np.int32).tolist(), total[1].view(np.int64).tolist()


def numbers_of(count: int, tail: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return each client's (SIZE,) and (tail,) whole numbers, as large as both ends take."""
    drawn = np.random.default_rng(count)
    most = (2**31 - 1) // count
    return [
        (drawn.integers(-most, most + 1, SIZE), drawn.integers(-(2**50), 2**50, tail))
        for _ in range(count)
    ]


@pytest.mark.parametrize("count", [4, 5, 6])
def test_sums_are_the_prototypes_whoever_is_missing_and_opens(
    oracle: ModuleType, count: int
) -> None:
    numbers = numbers_of(count, oracle.TAIL)
    for missing in range(count - THRESHOLD[count] + 1):
        for gone in combinations(range(count), missing):
            included = [client for client in range(count) if client not in gone]
            for openers in combinations(included, THRESHOLD[count]):
                expected = Prototype(oracle, count).total(numbers, included, openers)
                assert opened(numbers, included, openers) == expected
                assert expected == plain(numbers, included)


def test_sums_of_clients_on_a_ring_are_the_prototypes(oracle: ModuleType) -> None:
    numbers = numbers_of(70, oracle.TAIL)
    included = [client for client in range(70) if client % 9]
    theirs = Prototype(oracle, 70)
    expected = theirs.total(numbers, included, [o for o in theirs.openers if o % 9][:11])
    assert opened(numbers, included) == expected == plain(numbers, included)


def test_without_shares_sums_are_the_prototypes(oracle: ModuleType) -> None:
    numbers = numbers_of(5, oracle.TAIL)
    clients = MaskedClients(5)
    total = added(clients.hide(clients.label(opens=False), sums_of(numbers)), range(5))
    assert lists(total) == Prototype(oracle, 5).total(numbers, range(5)) == plain(numbers, range(5))


def sums_of(numbers: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[Sums]:
    return [Sums.of(Ring(32), update, tail) for update, tail in numbers]


def opened(
    numbers: Sequence[tuple[np.ndarray, np.ndarray]],
    included: Sequence[int],
    openers: Sequence[int] | None = None,
) -> tuple[list[int], list[int]]:
    """Return what the product makes of the same numbers, and of the same drop-outs."""
    clients = MaskedClients(len(numbers))
    # Who opens follows from keys that are drawn: of a round whose openers are there.
    labels = (clients.label(round_number=number) for number in count(1))
    label = next(found for found in labels if len(_there(found, included)) >= found.threshold)
    there = _there(label, included)
    total = clients.opened(label, clients.hide(label, sums_of(numbers)), included, openers or there)
    return lists(total)


def _there(label: Label, included: Sequence[int]) -> list[int]:
    return [opener for opener in label.openers if opener in included]


def plain(
    numbers: Sequence[tuple[np.ndarray, np.ndarray]], included: Sequence[int]
) -> tuple[list[int], list[int]]:
    updates, tails = zip(*[numbers[client] for client in included], strict=True)
    return np.sum(updates, axis=0).tolist(), np.sum(tails, axis=0).tolist()
