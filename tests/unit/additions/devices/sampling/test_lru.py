from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retexo_fl.additions.devices.sampling.lru import MISSED, LruOrder
from retexo_fl.errors import ConfigurationError

NUM_IDS = 12


class ReferenceTable:
    """What the order has to equal: a dictionary in order of use, and the table's content."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.used: OrderedDict[int, None] = OrderedDict()

    def ask(self, ids: list[int]) -> list[bool]:
        return [self._one(node) for node in ids]

    def _one(self, node: int) -> bool:
        hit = node in self.used
        if hit:
            self.used.move_to_end(node)
        elif self._capacity:
            if len(self.used) == self._capacity:
                self.used.popitem(last=False)
            self.used[node] = None
        return hit


batches = st.lists(st.lists(st.integers(0, NUM_IDS - 1), max_size=20), max_size=12)


@settings(max_examples=200, deadline=None)
@given(capacity=st.integers(0, NUM_IDS), asked=batches)
def test_order_equals_a_dictionary_in_order_of_use(capacity: int, asked: list[list[int]]) -> None:
    order, reference = LruOrder(NUM_IDS, capacity), ReferenceTable(capacity)
    table = np.full(capacity, -1)
    for ids in asked:
        found = order.ask(np.array(ids, np.int64))
        assert (found.sources != MISSED).tolist() == reference.ask(ids)
        rows = rows_of(found.sources, table, ids)
        assert rows == ids
        assert len(set(found.written.tolist())) == len(found.written)
        table[found.written] = np.array(rows, np.int64)[found.writers]
        assert order.kept().tolist() == list(reversed(reference.used))
        assert sorted(table[table >= 0].tolist()) == sorted(reference.used)


def rows_of(sources: np.ndarray, table: np.ndarray, ids: list[int]) -> list[int]:
    """Bring "rows", which are the ids themselves, from where the answer says they are."""
    rows: list[int] = []
    for source, node in zip(sources.tolist(), ids, strict=True):
        if source == MISSED:
            rows.append(node)
        elif source > MISSED:
            rows.append(int(table[source]))
        else:
            rows.append(rows[-2 - source])
    return rows


def test_capacity_beyond_all_ids_is_that_of_all() -> None:
    assert LruOrder(5, 100).capacity == 5


def test_negative_capacity_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^feature cache: got -1 rows; expected 0 to"):
        LruOrder(5, -1)
