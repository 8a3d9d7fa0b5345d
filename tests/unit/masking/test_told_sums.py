"""The algebra by which histories of questions are judged: it finds what a known attack tells."""

from __future__ import annotations

from itertools import combinations

import pytest

from tests.support.told_sums import Told, fewest, rows_of


def _answers(
    label: str, answered: tuple[int, ...], asked: tuple[int, ...], **inputs: str
) -> list[Told]:
    """Return answers under one label, with a mask for each pair of those asked."""
    found = []
    for client in answered:
        pairs = [pair for pair in combinations(asked, 2) if client in pair]
        masks = {f"{label} {pair}".encode(): 1 if pair[0] == client else -1 for pair in pairs}
        variable = client, inputs.get(f"c{client}", "")
        found.append(Told(added={"train": client != 9}, variable=variable, masks=masks))
    return found


ALL = (0, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("answers", "honest", "read"),
    [
        (_answers("a", ALL, ALL), ALL, None),
        # Only of some: masks are left.
        (_answers("a", ALL, ALL) + _answers("b", (1, 2, 3, 4), ALL), ALL, None),
        (_answers("a", ALL, ALL) + _answers("b", (1, 2, 3, 4), (1, 2, 3, 4)), ALL, (0,)),
        (_answers("a", ALL, ALL) + _answers("b", (2, 3, 4), (2, 3, 4)), ALL, (0, 1)),
        # Each two differ by more: only all three together tell one.
        (
            [
                *_answers("a", (0, 1, 2), (0, 1, 2)),
                *_answers("b", (0, 3, 4), (0, 3, 4)),
                *_answers("c", (1, 2, 3, 4), (1, 2, 3, 4)),
            ],
            ALL,
            (0,),
        ),
        # One has other inputs in one of two sums.
        (_answers("a", ALL, ALL) + _answers("b", ALL, ALL, c3="x"), ALL, (3,)),
        # What those tell who work with the server is known.
        (_answers("a", (0, 1, 2), (0, 1, 2)), (0, 1), (0, 1)),
        # One of three adds zeros.
        (_answers("a", (0, 1, 9), (0, 1, 9)), (0, 1, 9), (0, 1)),
        (_answers("a", (3,), (3,)), ALL, (3,)),
    ],
)
def test_the_fewest_contributors_of_all_combinations(
    answers: list[Told], honest: tuple[int, ...], read: tuple[int, ...] | None
) -> None:
    assert fewest(rows_of(answers, "train"), honest, 3) == read
    assert fewest(rows_of(answers, "test"), honest, 3) is None
