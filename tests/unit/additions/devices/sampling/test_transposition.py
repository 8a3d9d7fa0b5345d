from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from retexo_fl.additions.devices.sampling.transposition import edges_by_source


@given(columns=st.lists(st.integers(0, 6), max_size=40))
def test_edges_of_each_source_are_ascending(columns: list[int]) -> None:
    indptr, order = edges_by_source(np.array(columns, dtype=np.int32), 7)
    assert indptr.dtype == order.dtype == np.int32
    assert len(indptr) == 8
    assert [order[indptr[s] : indptr[s + 1]].tolist() for s in range(7)] == [
        [edge for edge, column in enumerate(columns) if column == source] for source in range(7)
    ]
