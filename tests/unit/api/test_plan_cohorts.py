"""What cohorts cost, and how large they have to be where nobody knows who works with the server."""

from __future__ import annotations

import pytest

from retexo_fl.api.plan_cohorts import cohort_facts, fewest_train_nodes, is_not_enough, size_for
from retexo_fl.masking.agreement import simulated

ALL = frozenset({"train", "validation", "test", "nodes"})
TEST = frozenset({"test", "nodes"})


def test_a_client_is_in_as_many_sums_as_its_whole_cohort_is_up() -> None:
    roles = dict.fromkeys(range(10), ALL)
    facts = cohort_facts(simulated(roles, seed=0), roles)
    assert facts["sizes"] == [5, 5]
    assert facts["share"]["0.95"] == pytest.approx(0.95**5)
    assert facts["share"]["0.8"] == pytest.approx(0.8**5)
    # A cohort of 4 and one of 5: 4 clients of 9 are in sums as often as the smaller is.
    roles = dict.fromkeys(range(9), ALL)
    facts = cohort_facts(simulated(roles, seed=0), roles)
    assert facts["sizes"] in ([4, 5], [5, 4])
    assert facts["share"]["0.9"] == pytest.approx((4 * 0.9**4 + 5 * 0.9**5) / 9)


@pytest.mark.parametrize(
    ("clients", "share", "size"),
    [
        *((3, 0.05, None), (3, 0.1, None), (5, 0.1, 4), (10, 0.2, 5)),
        *((100, 0.1, 13), (1000, 0.05, 14), (1000, 0.1, 18), (1000, 0.2, 25), (2708, 0.1, 19)),
    ],
)
def test_an_unknown_share_needs_larger_cohorts(
    clients: int, share: float, size: int | None
) -> None:
    assert size_for(clients, share) == size


def test_large_flaky_and_infiltrated_federations_are_warned() -> None:
    told = {}
    for clients in (3, 10, 100, 1000):
        roles = dict.fromkeys(range(clients), ALL)
        told[clients] = is_not_enough(cohort_facts(simulated(roles, seed=0), roles))
    assert told == {3: True, 10: False, 100: True, 1000: True}


def test_data_that_no_sum_is_of_is_counted() -> None:
    roles = dict(enumerate([TEST] * 5 + [ALL] * 2))
    assert cohort_facts(simulated(roles, seed=0), roles)["lost"] == {"train": 2, "validation": 2}


def test_the_smallest_sum_of_train_nodes_is_of_a_cohort_that_adds_up_some() -> None:
    agreement = simulated(dict.fromkeys(range(10), ALL), seed=0)
    counts = {client: {"train": client} for client in range(10)}
    first, second = (sum(cohort.members) for cohort in agreement.cohorts)
    assert fewest_train_nodes(agreement, counts) == min(first, second)
    none = simulated(dict.fromkeys(range(5), TEST), seed=0)
    assert fewest_train_nodes(none, {client: {"train": 0} for client in range(5)}) == 0
