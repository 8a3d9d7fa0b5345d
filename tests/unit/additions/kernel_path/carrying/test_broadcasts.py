"""Rows that several peers need: each set of peers has its stream, and nobody else gets a row."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from retexo_fl.additions.kernel_path.carrying.broadcasts import alone, together


@given(
    st.dictionaries(
        st.integers(0, 30), st.lists(st.integers(-1, 25), min_size=1, max_size=25), min_size=1
    ),
    st.integers(1, 4),
)
def test_each_vector_has_one_stream_and_its_members_equal_rows(
    needed: dict[int, list[int]], least_rows: int
) -> None:
    rows = {
        peer: np.array(
            [*sorted({row for row in its if row >= 0}), *(row for row in its if row < 0)]
        )
        for peer, its in needed.items()
    }

    streams = together(rows, least_rows=least_rows)

    for peer, numbers in streams.numbers.items():
        assert len(numbers) == len(rows[peer])
        assert set(numbers.tolist()) == set(range(numbers.max() + 1))
    taken: dict[int, set[int]] = {peer: set() for peer in rows}
    for members in streams.members:
        assert len(members) > 1
        lists = [rows[p][streams.numbers[p] == stream] for p, stream in members.items()]
        assert len(lists[0]) >= least_rows
        for other in lists[1:]:
            np.testing.assert_array_equal(lists[0], other)
        for peer, stream in members.items():
            assert stream not in taken[peer]
            taken[peer].add(stream)
        everyone = {p for p, its in rows.items() if set(lists[0].tolist()) <= set(its.tolist())}
        assert set(members) <= everyone
        for row in lists[0]:
            assert {p for p, its in rows.items() if row in its} == set(members)
    for peer, numbers in streams.numbers.items():
        # What is in no common stream is in one of the peer's own.
        assert len(set(numbers.tolist()) - taken[peer]) <= 1


def test_without_broadcasts_every_peer_has_one_stream() -> None:
    streams = alone({3: 4, 5: 1})

    assert not streams.members
    assert (streams.numbers[3] == 0).all()
    assert len(streams.numbers[5]) == 1
