"""Cohorts: who is added up with whom is drawn from what clients bring, and bound by a digest."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from retexo_fl.errors import AgreementError
from retexo_fl.masking.agreement import (
    Agreement,
    Cohort,
    default_cohort_size,
    drawn_cohorts,
    simulated,
    uses_of,
)

ALL = frozenset({"train", "validation", "test", "nodes"})
TRAIN, TEST = frozenset({"train", "nodes"}), frozenset({"test", "nodes"})
SEED = bytes(range(32))


def _sizes(cohorts: tuple[Cohort, ...]) -> list[int]:
    return sorted(len(cohort.members) for cohort in cohorts)


def _check(cohorts: tuple[Cohort, ...], roles: Mapping[int, frozenset[str]], fewest: int) -> None:
    members = [client for cohort in cohorts for client in cohort.members]
    assert sorted(members) == sorted(roles)
    for cohort in cohorts:
        assert len(cohort.members) >= fewest
        brought = Counter(use for client in cohort.members for use in roles[client])
        assert cohort.uses == {use for use in brought if brought[use] >= fewest}


@pytest.mark.parametrize(
    ("clients", "size", "sizes"),
    [
        (3, 0, [3]),
        (4, 0, [4]),
        (5, 0, [5]),
        (7, 0, [7]),
        (8, 0, [4, 4]),
        (10, 0, [5, 5]),
        (10, 10, [10]),
        (10, 3, [3, 3, 4]),
        (10, 50, [10]),
        (100, 0, [5] * 20),
        (1000, 0, [5] * 200),
        (1000, 18, [17] * 8 + [18] * 48),
    ],
)
def test_cohorts_by_number_of_clients(clients: int, size: int, sizes: list[int]) -> None:
    roles = dict.fromkeys(range(clients), ALL)
    cohorts = drawn_cohorts(roles, size=size, seed=SEED)
    _check(cohorts, roles, 3)
    assert _sizes(cohorts) == sizes
    assert default_cohort_size(clients) == min(clients, 5)


def test_a_cohort_has_room_for_those_who_work_with_the_server() -> None:
    roles = dict.fromkeys(range(12), ALL)
    assert _sizes(drawn_cohorts(roles, size=0, seed=SEED, tolerated=3)) == [6, 6]
    assert _sizes(drawn_cohorts(roles, size=0, seed=SEED, least=4, tolerated=3)) == [12]


def test_another_seed_draws_others_and_no_order_does() -> None:
    roles = dict.fromkeys(range(40), ALL)
    drawn = drawn_cohorts(roles, size=5, seed=SEED)
    backwards = {client: roles[client] for client in reversed(range(40))}
    assert drawn_cohorts(backwards, size=5, seed=SEED) == drawn
    assert drawn_cohorts(roles, size=5, seed=bytes(32)) != drawn
    # Who is with client 0 is anybody: each of 39 others in 4 of 39 draws, 20.5 of 200.
    beside = Counter(
        client
        for draw in range(200)
        for cohort in drawn_cohorts(roles, size=5, seed=draw.to_bytes(32))
        if 0 in cohort.members
        for client in cohort.members
    )
    assert beside.pop(0) == 200
    assert len(beside) == 39
    assert max(beside.values()) < 45


def test_clients_that_bring_the_same_share_cohorts() -> None:
    # One node for each client, as Cora in 2,708 clients: most bring nodes alone.
    roles = {client: TRAIN if client < 12 else TEST if client < 30 else frozenset({"nodes"})
             for client in range(60)}  # fmt: skip
    cohorts = drawn_cohorts(roles, size=5, seed=SEED)
    _check(cohorts, roles, 3)
    assert all(len({roles[client] for client in cohort.members}) == 1 for cohort in cohorts)
    assert sum(len(c.members) for c in cohorts if "train" in c.uses) == 12


@pytest.mark.parametrize(
    ("roles", "sizes", "lost"),
    [
        # Two without test nodes join eight that have some: no test node is lost.
        ([ALL] * 8 + [TRAIN] * 2, [5, 5], 0),
        # Each brings something else: one cohort, for what three bring.
        ([TRAIN, TEST, ALL], [3], 5),
        ([frozenset()] * 4, [4], 0),
        # Just enough of a kind are a cohort of their own.
        ([TRAIN] * 5 + [TEST] * 3, [3, 5], 0),
        # Too few of a kind join where most of what they bring counts.
        ([TRAIN] * 5 + [TEST] * 5 + [TEST | {"validation"}], [5, 6], 1),
        # The rest is enough for a cohort of its own, and would lose its use elsewhere.
        ([TRAIN] * 5 + [TEST | {"validation"}] * 2 + [TEST] * 2, [4, 5], 2),
    ],
)
def test_those_unlike_others_join(roles: list[frozenset[str]], sizes: list[int], lost: int) -> None:
    by_client = dict(enumerate(roles))
    cohorts = drawn_cohorts(by_client, size=0, seed=SEED)
    _check(cohorts, by_client, 3)
    assert _sizes(cohorts) == sizes
    assert sum(len(by_client[n] - c.uses) for c in cohorts for n in c.members) == lost


def test_a_cut_loses_no_use_that_fewer_cohorts_keep() -> None:
    roles = dict(enumerate([ALL] * 8 + [TRAIN] * 2))
    (one,) = drawn_cohorts(roles, size=5, seed=SEED, tolerated=2)
    assert one.uses == ALL
    assert _sizes(drawn_cohorts(dict.fromkeys(range(10), ALL), size=5, seed=SEED, tolerated=2)) == [
        5,
        5,
    ]


def test_whatever_clients_bring_all_are_in_a_cohort() -> None:
    kinds = [frozenset(some) for some in (ALL, TRAIN, TEST, {"nodes"}, (), {"validation", "test"})]
    for case in range(100):
        chance = random.Random(case)
        fewest, most = 3 + chance.randrange(3), chance.randrange(1, len(kinds) + 1)
        roles = {
            client * 3: chance.choice(kinds[:most])
            for client in range(chance.randrange(fewest, 90))
        }
        size = chance.choice([0, fewest, fewest + 4])
        cohorts = drawn_cohorts(roles, size=size, seed=SEED, tolerated=fewest - 3)
        _check(cohorts, roles, fewest)
        if most == 1:
            assert max(_sizes(cohorts)) < 2 * max(size, 5, fewest)


@pytest.mark.parametrize(
    ("clients", "options", "sentence"),
    [
        (2, {}, r"2 clients; expected 3 at least$"),
        (3, {"tolerated": 1}, r"3 clients; expected 4 at least \(3, and 1 that may work with"),
        (9, {"size": 4, "tolerated": 2}, "cohort size 4; expected 5 at least"),
        (9, {"least": 2}, "least: 2; expected 3 clients at least in a sum"),
        (9, {"tolerated": -1}, "tolerated: -1; expected a number from 0"),
    ],
)
def test_who_would_be_hidden_among_too_few_is_refused(
    clients: int, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(AgreementError, match=sentence):
        drawn_cohorts(dict.fromkeys(range(clients), ALL), seed=SEED, **{"size": 0, **options})


def _agreement() -> Agreement:
    roles = dict.fromkeys(range(10), ALL)
    cohorts = drawn_cohorts(roles, size=0, seed=SEED, tolerated=1)
    return Agreement(cohorts=cohorts, tolerated=1, seed=SEED, signed=b"all else")


@pytest.mark.parametrize(
    "change",
    [
        lambda one: replace(one, least=4),
        lambda one: replace(one, tolerated=0),
        lambda one: replace(one, seed=bytes(32)),
        lambda one: replace(one, signed=b""),
        lambda one: replace(one, cohorts=(Cohort(members=tuple(range(10)), uses=ALL),)),
        lambda one: replace(
            one, cohorts=(replace(one.cohorts[0], uses=TRAIN), one.cohorts[1])
        ),
    ],
)  # fmt: skip
def test_the_digest_binds_every_field(change: Callable[[Agreement], Agreement]) -> None:
    one = _agreement()
    assert _agreement().digest == one.digest
    assert len(one.digest) == 32
    assert change(one).digest != one.digest


def test_an_agreement_is_read_as_it_was_written() -> None:
    one = _agreement()
    assert Agreement.parse(one.content) == one
    assert one.members() == tuple(range(10))
    assert all(client in one.cohort_of(client).members for client in range(10))
    with pytest.raises(AgreementError, match="client 10 is in no cohort"):
        one.cohort_of(10)
    for content in (
        *(b"", b"{}", b"[]", b"\xff", b"[" * 100_000, one.content + b" "),
        one.content.replace(b'"tolerated":1', b'"tolerated":1.0'),
        one.content.replace(b'"tolerated":1', b'"tolerated":1,"x":1'),
        one.content.replace(b'"least":3', b'"least":2'),
        one.content.replace(b'"train"', b'"names"'),
    ):
        assert content != one.content
        with pytest.raises(AgreementError):
            Agreement.parse(content)


@pytest.mark.parametrize(
    ("cohorts", "sentence"),
    [
        ([], "expected one at least"),
        ([(3, 4, 5), (0, 1, 2)], "ordered by their first"),
        ([()], "a cohort has 0 clients"),
        ([(0, 1)], "the cohort of client 0 has 2 clients; expected 3 at least"),
        ([(0, 1, 2), (2, 3, 4)], "client 2 is in two cohorts"),
        ([(0, 2, 1)], "ascending"),
        ([(0, 1, 1, 2)], "each once"),
    ],
)
def test_cohorts_that_hide_nobody_are_named(cohorts: list[tuple[int, ...]], sentence: str) -> None:
    with pytest.raises(AgreementError, match=sentence):
        Agreement(
            cohorts=tuple(Cohort(members=members, uses=ALL) for members in cohorts), seed=SEED
        )


def test_a_simulation_draws_by_the_seed_of_its_run() -> None:
    roles = dict.fromkeys(range(20), ALL)
    one = simulated(roles, seed=7)
    assert one == simulated(roles, seed=7)
    assert one.digest == simulated(roles, seed=7).digest
    assert {c.members for c in one.cohorts} != {c.members for c in simulated(roles, seed=8).cohorts}
    assert _sizes(simulated(roles, size=10, seed=7).cohorts) == [10, 10]
    # In every process and on every machine: what this draw was when it was written down.
    assert one.seed.hex()[:16] == "a4ad3749b18b75bd"


def test_a_use_needs_enough_that_bring_it() -> None:
    roles = {0: ALL, 1: ALL, 2: TRAIN, 3: TRAIN}
    assert uses_of(roles, roles, 3) == {"train", "nodes"}
    assert uses_of(roles, roles, 2) == ALL
