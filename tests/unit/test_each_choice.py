"""By day a test's cases have each value between them; the others are left to the night."""

from __future__ import annotations

from itertools import product

import pytest

from tests.support.each_choice import each_choice


def test_cases_of_a_product_are_as_many_as_the_longest_of_its_parameters() -> None:
    cases = [{"layers": n, "model": model} for n, model in product((1, 2, 3), ("gcn", "gat"))]
    kept = [cases[at] for at in sorted(each_choice(cases))]
    assert len(kept) == 3
    assert {case["layers"] for case in kept} == {1, 2, 3}
    assert {case["model"] for case in kept} == {"gcn", "gat"}


def test_entries_of_a_mapping_are_values_and_an_empty_one_is_a_value_too() -> None:
    cases: list[dict[str, object]] = [
        {"keys": {"model": "gcn"}},
        {"keys": {"model": "gcn", "rounds": 2}},
        {"keys": {"rounds": 2, "seed": [1]}},
        {"keys": {}},
    ]
    assert each_choice(cases) == {1, 2, 3}


def test_all_cases_of_one_parameter_are_kept_and_so_is_a_single_one() -> None:
    assert each_choice([{"n": n} for n in range(4)]) == {0, 1, 2, 3}
    assert each_choice([{"n": 0}]) == {0}
    assert each_choice([]) == set()


@pytest.mark.each_choice
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_what_is_not_kept_is_slow(request: pytest.FixtureRequest, layers: int, model: str) -> None:
    del layers, model
    name = request.function.__name__
    family = [item for item in request.session.items if item.name.startswith(name)]
    of_night = sum(item.get_closest_marker("slow") is not None for item in family)
    assert of_night <= 3
    assert len(family) - of_night <= 3
