"""Cohorts over time: whatever is agreed on in whatever order, no sums together tell of a few."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from retexo_fl.errors import AgreementError
from retexo_fl.masking.agreement import Cohort
from retexo_fl.masking.past_cohorts import Brought, PastCohort, PastCohorts

ALL = frozenset({"train", "validation", "test", "nodes"})
NO_TRAIN = ALL - {"train"}
SEED = bytes(range(32))


def _brought(client: int, version: int = 0, uses: frozenset[str] = ALL) -> Brought:
    part = bytes([client, version]) + bytes(30)
    return Brought(key=bytes([client]) * 32, part=part, uses=uses)


def _clients(*numbers: int, **changed: int) -> dict[int, Brought]:
    """Return clients with their first parts; ``c3=1`` has part 1 of client 3."""
    return {n: _brought(n, changed.get(f"c{n}", 0)) for n in numbers}


def _versions(cohorts: Sequence[Cohort], clients: Mapping[int, Brought]) -> list[PastCohort]:
    return [
        PastCohort(members={n: clients[n] for n in cohort.members}, uses=cohort.uses)
        for cohort in cohorts
    ]


def _next(
    *steps: Mapping[int, Brought], tolerated: int = 0, released: frozenset[int] = frozenset()
) -> list[tuple[int, ...]]:
    """Agree on one step after the other; return the members of the last cohorts."""
    past: list[PastCohort] = []
    drawn: tuple[Cohort, ...] = ()
    for clients in steps:
        known = PastCohorts(
            past,
            least=3,
            tolerated=tolerated,
            released=frozenset((n, _brought(n).part) for n in released),
        )
        drawn = known.cohorts(clients, size=0, seed=SEED)
        past += [version for version in _versions(drawn, clients) if version not in past]
    return [cohort.members for cohort in drawn]


FIVE = (0, 1, 2, 3, 4)


def test_a_cohort_goes_on_as_it_was_and_others_are_drawn_beside_it() -> None:
    first = _clients(*FIVE)
    assert _next(first, first) == [FIVE]
    assert _next(first, _clients(*range(9))) == [FIVE, (5, 6, 7, 8)]
    # Left out for a while, it comes back whole.
    others = _clients(20, 21, 22, 23, 24)
    assert _next(first, others, first | others) == [FIVE, (20, 21, 22, 23, 24)]


@pytest.mark.parametrize(
    ("then", "sentence"),
    [
        (_clients(0, 1, 2, 3), "client 4 left it, or changed .*; expected 3 at least"),
        (_clients(0, 1, 2), "clients 3, 4 left it"),
        (_clients(0, 1), "the cohort of client 0: 2 clients left; expected 3 at least"),
        (_clients(*FIVE, c2=1), "client 2 left it, or changed"),
        (_clients(*FIVE, c2=1, c3=1), "clients 2, 3 left it, or changed"),
        (_clients(*FIVE, 5), "client 5: new, .*; expected 3 such clients at least"),
        (_clients(*FIVE, 5, 6), "clients 5, 6: new"),
        # Two of a use that all others keep.
        ({**_clients(*FIVE), 4: _brought(4, uses=NO_TRAIN)}, "client 4 left it, .* train sums"),
    ],
)
def test_a_few_are_not_set_apart(then: dict[int, Brought], sentence: str) -> None:
    with pytest.raises(AgreementError, match=sentence):
        _next(_clients(*FIVE), then)


@pytest.mark.parametrize(
    ("then", "members"),
    [
        # Enough leave, or change, together.
        (_clients(*FIVE, c0=1, c1=1, c2=1), [FIVE]),
        (_clients(0, 1, 2, 3, c0=1, c1=1), [(0, 1, 2, 3)]),
        # Nothing of the former cohort is left: they are drawn anew.
        (_clients(0, 1, 2, 3, 7, c0=1, c1=1, c2=1, c3=1), [(0, 1, 2, 3, 7)]),
        (_clients(10, 11, 12), [(10, 11, 12)]),
    ],
)
def test_enough_may_leave_or_change_together(
    then: dict[int, Brought], members: list[tuple[int, ...]]
) -> None:
    assert _next(_clients(*FIVE), then) == members


def test_those_who_may_work_with_the_server_do_not_hide_who_leaves() -> None:
    six = _clients(*range(6))
    changed = _clients(*range(6), c0=1, c1=1, c2=1)
    assert _next(six, changed) == [(0, 1, 2, 3, 4, 5)]
    with pytest.raises(AgreementError, match="expected 4 at least"):
        _next(six, changed, tolerated=1)


def test_a_released_client_leaves_alone() -> None:
    rest = _clients(0, 1, 2, 3)
    assert _next(_clients(*FIVE), rest, released=frozenset({4})) == [(0, 1, 2, 3)]
    with pytest.raises(AgreementError, match="client 4 left it"):
        _next(_clients(*FIVE), rest, released=frozenset({3}))
    # It may be gone, and it may not stay with another part.
    with pytest.raises(AgreementError, match="client 4 left it"):
        _next(_clients(*FIVE), _clients(*FIVE, c4=1), released=frozenset({4}))


def test_a_part_that_was_given_up_does_not_come_back() -> None:
    one, other = _clients(*FIVE), _clients(*FIVE, c0=1, c1=1, c2=1)
    with pytest.raises(AgreementError, match="client 1: its part is one that it gave up"):
        _next(one, other, _clients(*FIVE, c0=1, c3=1, c4=1))
    with pytest.raises(AgreementError, match="client 4: its part is one that it gave up"):
        _next(one, _clients(0, 1, 2, 3, c0=1, c1=1), _clients(0, 1, 2, 3, 4, c0=1, c1=1))


def test_who_came_back_with_a_new_part_is_no_member_of_the_former_cohort() -> None:
    with pytest.raises(AgreementError, match="the cohort of client 3: 2 clients left"):
        _next(
            _clients(*FIVE), _clients(0, 1, 2, c0=1, c1=1, c2=1), _clients(*FIVE, c0=1, c1=1, c2=1)
        )


def test_cohorts_are_neither_joined_nor_named_as_they_were_not() -> None:
    parted = [PastCohort(members=_clients(0, 1, 2), uses=ALL),
              PastCohort(members=_clients(3, 4, 5), uses=ALL)]  # fmt: skip
    for members in (_clients(*range(6)), _clients(0, 1, 2, 7, 8, 9)):
        joined = PastCohort(members=members, uses=ALL)
        with pytest.raises(AgreementError, match="joins former cohorts, or others"):
            PastCohorts([*parted, joined], least=3, tolerated=0)
    few = replace(parted[0], members={**_clients(0, 1), 2: _brought(2, uses=NO_TRAIN)})
    with pytest.raises(AgreementError, match="has train data of 2 clients"):
        PastCohorts([few], least=3, tolerated=0)


def _hide(
    rows: Sequence[frozenset[tuple[int, bytes]]], released: frozenset[int], fewest: int
) -> bool:
    """Return whether no combination of sums tells of too few clients, but for released ones.

    Rows are what each sum is of. What combinations have contributors among some clients alone are
    as many as the dimensions that the sums lose without these.
    """
    columns = sorted({x for row in rows for x in row})
    table = np.array([[x in row for x in columns] for row in rows], float)
    owners = np.array([client for client, _ in columns])

    @cache
    def rank_without(left: tuple[int, ...]) -> int:
        return int(np.linalg.matrix_rank(table[:, ~np.isin(owners, left)]))

    return all(
        rank_without(some) == rank_without(tuple(n for n in some if n in released))
        for some in itertools.combinations(sorted({*owners.tolist()}), fewest - 1)
    )


def _moved(chance: random.Random, clients: dict[int, Brought]) -> dict[int, Brought]:
    """Let clients leave, come, or come back, and parts or what they bring change."""
    moved = dict(clients)
    group = chance.sample(range(10), chance.choice([1, 1, 2, 3, 3, 4, 5]))
    move = chance.choice(["leave", "come", "change", "both", "uses"])
    for client in group:
        if client not in moved:
            if move in {"come", "both"}:
                moved[client] = _brought(client, chance.randrange(3))
        elif move == "leave" or (move == "both" and chance.random() < 0.4):
            del moved[client]
        elif move == "uses":
            moved[client] = replace(moved[client], uses=chance.choice([ALL, NO_TRAIN]))
        elif move != "come":
            moved[client] = replace(moved[client], part=_brought(client, chance.randrange(4)).part)
    return moved


def test_200_random_histories_tell_of_no_few_clients() -> None:
    followed = refused = 0
    for case in range(200):
        chance = random.Random(case)
        tolerated = case % 2
        released = frozenset(chance.sample(range(10), chance.choice([0, 0, 1, 2])))
        pairs = frozenset((n, _brought(n, version).part) for n in released for version in range(4))
        clients = {n: _brought(n) for n in chance.sample(range(10), 9)}
        past: list[PastCohort] = []
        for _ in range(14):
            moved = _moved(chance, clients)
            try:
                known = PastCohorts(past, least=3, tolerated=tolerated, released=pairs)
                cohorts = known.cohorts(moved, size=4, seed=chance.randbytes(32))
            except AgreementError:
                refused += 1
                continue
            clients, followed = moved, followed + 1
            assert sorted(n for c in cohorts for n in c.members) == sorted(moved)
            past += [v for v in _versions(cohorts, moved) if v not in past]
        sums = [
            frozenset((n, its.part) for n, its in version.members.items() if "train" in its.uses)
            for version in past
            if "train" in version.uses
        ]
        assert _hide(sums, released, 3 + tolerated), case
    assert followed > 300
    assert refused > 300
