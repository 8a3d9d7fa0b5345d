"""How the rows of a basis are chosen, and what is said of it."""

from __future__ import annotations

import pytest

from retexo_fl.run_log.chosen_rows import ChosenRows


@pytest.mark.parametrize(
    ("own", "sums", "rows"),
    [(0.98, 1.0, "own"), (0.9899, 1.0, "own"), (0.9901, 1.0, "sums"), (1.0, 0.5, "sums")],
)
def test_own_rows_have_to_be_better_by_a_margin(own: float, sums: float, rows: str) -> None:
    found = ChosenRows.of(own, sums)
    assert (found.rows, found.own, found.sums) == (rows, own, sums)
    assert found.sentence == (
        f"basis-rows {rows}, by validation nodes: squared error {own:.4g} with own rows, "
        f"{sums:.4g} with sums (own has to be 1% lower)"
    )


def test_nothing_to_choose_by_leaves_sums() -> None:
    found = ChosenRows.of()
    assert found.rows == "sums"
    assert found.sentence == ("basis-rows sums: no client has enough validation nodes to choose by")
