"""Clients whose process begins anew under masks, on a clock by hand: whom it costs which round."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from retexo_fl.channels.federation import Federation
from retexo_fl.channels.identity import Identity
from retexo_fl.channels.roster import Roster
from retexo_fl.client.factory import InProcessClients
from retexo_fl.errors import RoundIncomplete
from retexo_fl.federation import records
from retexo_fl.units import clients_named
from tests.support.fickle_grid import FickleGrid
from tests.support.fickle_training import Change, node_of, train_on_fickle_grid
from tests.support.hand_clock import HandClock
from tests.support.loopback import make_members
from tests.support.masked_training import HALVES, MASKED, QUORUM, parts
from tests.support.owners import agreed, signer_of
from tests.support.runs import (
    configured,
    crossed,
    curves_of,
    events_of,
    ledger_of,
    model_bytes,
    result_of,
)

CLIENTS = 6
KEYS: dict[str, Any] = {**MASKED, **HALVES, "rounds": 3, "layers": 1}
#: Where in a training something happens: message type and round.
Where = tuple[str, int]


@dataclass(slots=True)
class Owned:
    """Clients in this process that sign their keys, as agents do.

    Attributes:
        begins_anew: Where clients begin anew before they get that message, once each.
        silent: Where clients do not answer.
        told: Messages that clients got: where, and who.
    """

    folder: Path
    identities: list[Identity]
    roster: Roster
    federation: Federation
    begins_anew: dict[Where, Collection[int]] = field(default_factory=dict)
    silent: dict[Where, Collection[int]] = field(default_factory=dict)
    told: list[tuple[Where, int]] = field(default_factory=list)
    clients: InProcessClients | None = None
    clock: HandClock = field(default_factory=HandClock)
    jobs: set[str] = field(default_factory=set)
    over: set[tuple[Where, int]] = field(default_factory=set)

    def cohort_of(self, client: int) -> tuple[int, ...]:
        return self.federation.agreement.cohort_of(client).members

    def keep(self, clients: InProcessClients) -> None:
        # Those of a resume have not signed either.
        self.clients = clients
        self.jobs.clear()

    def start(self, job: str, client: int) -> None:
        """Have a client be in a process that has just started."""
        assert self.clients is not None
        state = self.folder / str(client) / "state"
        signer = signer_of(self.identities[client], self.roster, self.federation, state)
        self.clients.find(job, client).masks.sign_by(signer, least_clients=3)

    def change(self, grid: FickleGrid, message: Message) -> None:
        ticket = records.read_request(message).ticket
        client = message.metadata.dst_node_id - node_of(0)
        where = message.metadata.message_type, ticket.round
        if ticket.job not in self.jobs:
            self.jobs.add(ticket.job)
            for each in range(CLIENTS):
                self.start(ticket.job, each)
        if client in self.begins_anew.get(where, ()) and (where, client) not in self.over:
            self.over.add((where, client))
            self.start(ticket.job, client)
        self.told.append((where, client))
        grid.weather.mute = {node_of(c) for c in self.silent.get(where, ())}

    def train(self, out: Path, change: Change | None = None, **keys: Any) -> Path:
        config = configured(out, **{**KEYS, **keys})
        train_on_fickle_grid(
            config, parts(CLIENTS), change or self.change, made=self.keep, clock=self.clock
        )
        return out


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Identity], Roster]:
    return make_members(tmp_path_factory.mktemp("members"), CLIENTS)


@pytest.fixture
def owned(tmp_path: Path, members: tuple[list[Identity], Roster]) -> Owned:
    identities, roster = members
    return Owned(tmp_path, identities, roster, agreed(roster, identities, cohort_size=3))


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory, members: tuple[list[Identity], Roster]
) -> tuple[Owned, Path]:
    """Return a training in which nothing happens, and its clients."""
    folder = tmp_path_factory.mktemp("whole")
    identities, roster = members
    owned = Owned(folder, identities, roster, agreed(roster, identities, cohort_size=3))
    return owned, owned.train(folder / "run")


def rounds_of(run: Path) -> list[dict[str, Any]]:
    return [event for event in events_of(run) if event["event"] == "round"]


PLACES = {
    "keys": ("query.keys", 0),
    "counts": ("query.counts", 0),
    "labels": ("query.labels", 0),
    "the first round": ("train.layer", 1),
    "a round": ("train.layer", 2),
    "validation and test": ("evaluate.layer", 3),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("who", [(4,), (0, 1, 2, 3, 4, 5)], ids=["one", "all"])
@pytest.mark.each_choice
def test_where_all_must_answer_nothing_shows_of_a_restart(
    owned: Owned, whole: tuple[Owned, Path], place: str, who: Collection[int]
) -> None:
    owned.begins_anew[PLACES[place]] = who
    owned.federation = whole[0].federation
    run = owned.train(owned.folder / "run")
    assert {client for _, client in owned.over} == {*who}
    assert model_bytes(run) == model_bytes(whole[1])
    assert curves_of(run) == curves_of(whole[1])
    assert result_of(run)["test_accuracy"] == result_of(whole[1])["test_accuracy"]
    # Nobody outside its cohort was asked more than once.
    cohorts = {member for client in who for member in owned.cohort_of(client)}
    asked = [client for where, client in owned.told if where == PLACES[place]]
    if place.startswith("val"):
        asked = asked[CLIENTS:]
    assert {client for client in asked if asked.count(client) > 1} == cohorts


def test_in_a_round_that_may_lack_clients_its_cohort_is_missing_once(
    owned: Owned, caplog: pytest.LogCaptureFixture
) -> None:
    owned.begins_anew["train.layer", 2] = (4,)
    run = owned.train(owned.folder / "run", **QUORUM)
    cohort = owned.cohort_of(4)
    absent = {event["round"]: event.get("absent", []) for event in rounds_of(run)}
    assert absent == {1: [], 2: [*cohort], 3: []}
    assert {e["round"]: e["summed"] for e in rounds_of(run)} == {1: 6, 2: 3, 3: 6}
    (said,) = [r.getMessage() for r in caplog.records if "masking keys" in r.getMessage()]
    assert said == (
        "train.layer, stage 0, round 2: client 4 began anew and has no masking keys; its cohort "
        f"(clients {', '.join(map(str, cohort))}) is missing in this sum"
    )
    assert result_of(run)["test_accuracy"] > 0
    # Nobody else is told new keys.
    assert [c for where, c in owned.told if where == ("query.hello", 0)] == [*range(6), 4]
    assert [c for where, c in owned.told if where[0] == "query.keys"] == [*range(6), *cohort]


def test_new_keys_count_as_keys(owned: Owned, whole: tuple[Owned, Path]) -> None:
    owned.begins_anew["train.layer", 2] = (4,)
    owned.federation = whole[0].federation
    run = owned.train(owned.folder / "run")

    def moved(of: Path, purpose: str, direction: str) -> tuple[int, int]:
        total = ledger_of(of).sum(purpose=purpose, direction=direction)
        return total.payload, total.messages

    before = moved(whole[1], "keys", "in")
    after = moved(run, "keys", "in")
    # Three members get keys and signatures as at first; one is asked for its own.
    told = before[0] // CLIENTS
    assert after[0] - before[0] > 3 * told
    assert after[0] - before[0] < 4 * told
    assert moved(run, "hello", "out") == moved(whole[1], "hello", "out")


def test_a_cohort_waits_for_keys_until_its_client_is_back(owned: Owned) -> None:
    owned.begins_anew["train.layer", 1] = (4,)
    told: list[str] = []

    def change(grid: FickleGrid, message: Message) -> None:
        owned.change(grid, message)
        told.append(message.metadata.message_type)
        # It goes again before it has told its new key.
        if told[-1] == "query.hello" and told.count("query.hello") == CLIENTS + 1:
            grid.weather.mute = {node_of(4)}

    run = owned.train(owned.folder / "run", change, **QUORUM)
    cohort = [*owned.cohort_of(4)]
    absent = {event["round"]: event.get("absent", []) for event in rounds_of(run)}
    assert absent == {1: cohort, 2: cohort, 3: []}


def test_a_cohort_that_has_not_told_its_counts_is_in_no_sum_until_it_has(owned: Owned) -> None:
    cohort, back_s = owned.cohort_of(4), owned.clock.now_s() + 2.5

    def change(grid: FickleGrid, message: Message) -> None:
        owned.change(grid, message)
        if message.metadata.message_type == "query.counts":
            grid.on_look = lambda: look(grid)

    def look(grid: FickleGrid) -> None:
        grid.weather.mute = {node_of(4)} if owned.clock.now_s() < back_s else set()

    run = owned.train(owned.folder / "run", change, **QUORUM)
    events = rounds_of(run)
    asked = [client for where, client in owned.told if where[0] == "query.counts"]
    # Only of this cohort more than once.
    assert {client for client in asked if asked.count(client) > 1} == {*cohort}
    # It told nothing of its labels, either.
    assert {c for (kind, _), c in owned.told if kind == "query.labels"}.isdisjoint(cohort)
    assert events[-1]["summed"] == CLIENTS
    rows = {tuple(row["cohort"]): row for row in result_of(run)["client_table"]}
    assert rows.keys() == {owned.cohort_of(client) for client in range(CLIENTS)}
    assert all(row["nodes"] > row["train"] > 0 for row in rows.values())


def test_where_no_other_cohort_is_enough_its_members_are_waited_for(owned: Owned) -> None:
    """A few of a cohort that have its new keys are not enough, though as many clients are."""
    owned.federation = agreed(owned.roster, owned.identities, cohort_size=CLIENTS)
    owned.begins_anew["train.layer", 2] = (4,)
    away_s: list[float] = []

    def change(grid: FickleGrid, message: Message) -> None:
        owned.change(grid, message)
        keys = [client for (kind, _), client in owned.told if kind == "query.keys"]
        if message.metadata.message_type == "query.keys" and len(keys) == CLIENTS + 1:
            away_s.append(owned.clock.now_s())
            grid.on_look = lambda: look(grid)

    def look(grid: FickleGrid) -> None:
        # Longer than ten rounds' deadlines.
        is_away = owned.clock.now_s() < away_s[0] + 12.0
        grid.weather.mute = {node_of(5)} if is_away else set()

    run = owned.train(owned.folder / "run", change, **QUORUM, cohort_size=CLIENTS)
    assert [event["summed"] for event in rounds_of(run)] == [CLIENTS] * 3


def test_a_client_that_begins_anew_forever_ends_the_run_by_name(owned: Owned) -> None:
    def change(grid: FickleGrid, message: Message) -> None:
        owned.change(grid, message)
        if message.metadata.message_type == "train.layer":
            owned.start(next(iter(owned.jobs)), 4)

    with pytest.raises(RoundIncomplete, match=r"^train\.layer: client 4 began anew 10 times$"):
        owned.train(owned.folder / "run", change)


# ---- the account of what crossed ----------------------------------------------------------------

LEAN: dict[str, Any] = {
    **{"model": "gcn", "basis": "supervised", "basis_rows": "sums", "basis_blocks": 2},
    **{"update_bits": 8, "weight_bits": 8, "layers": 2},
}
COLLECT: Where = ("query.collect", 0)
#: Trainings, and where in an exchange a client begins anew.
EXCHANGES: dict[str, tuple[dict[str, Any], Where]] = {
    "when it sends": ({"layers": 2}, ("query.publish", 0)),
    "when it collects": ({"layers": 2}, COLLECT),
    # Vectors are collected in the same messages.
    "lean": (LEAN, ("query.basis", 0)),
    "ridge": ({"model": "gcn", "solver": "ridge", "layers": 2}, COLLECT),
    "quorum": (QUORUM, COLLECT),
}


@pytest.fixture(scope="module")
def undisturbed(whole: tuple[Owned, Path]) -> Callable[[str], Path]:
    """Return the training of each way in which nothing happens, of the clients of ``whole``."""

    @cache
    def trained(way: str) -> Path:
        owned = replace(whole[0], folder=whole[0].folder / way, told=[])
        return owned.train(owned.folder / "run", **EXCHANGES[way][0])

    return trained


@pytest.mark.parametrize("way", EXCHANGES)
@pytest.mark.parametrize("who", [(4,), (0, 1, 2, 3, 4, 5)], ids=["one", "all"])
@pytest.mark.each_choice
def test_a_restart_amid_an_exchange_takes_no_byte_from_the_account(
    owned: Owned,
    whole: tuple[Owned, Path],
    undisturbed: Callable[[str], Path],
    way: str,
    who: Collection[int],
) -> None:
    keys, place = EXCHANGES[way]
    owned.federation = whole[0].federation
    owned.begins_anew[place] = who
    run = owned.train(owned.folder / "run", **keys)
    assert {client for _, client in owned.over} == {*who}
    expected = undisturbed(way)
    assert crossed(run) == crossed(expected) != {}
    assert result_of(run).get("warnings", []) == result_of(expected).get("warnings", [])
    if keys is not QUORUM:
        assert model_bytes(run) == model_bytes(expected)
    # No other cohort is asked again: once for each stage.
    cohorts = {member for client in who for member in owned.cohort_of(client)}
    asked = [c for (kind, _), c in owned.told if kind == COLLECT[0] and c not in cohorts]
    assert max(map(asked.count, asked), default=0) <= keys.get("layers", 1)


def quiet(owned: Owned, other: int, *, until_stage: int, gone_in_round: int = 0) -> Change:
    """Return a change: a client does not say again what stage 0 moved.

    Args:
        owned: The clients.
        other: The client.
        until_stage: From its first message on, it does.
        gone_in_round: Of stage 0; then the server goes.
    """
    stages: set[int] = set()

    def change(grid: FickleGrid, message: Message) -> None:
        owned.change(grid, message)
        ticket, kind = records.read_request(message).ticket, message.metadata.message_type
        if kind == "train.layer" and (ticket.stage, ticket.round) == (0, gone_in_round):
            raise RoundIncomplete("the server is gone")
        if (kind, ticket.stage) == (COLLECT[0], 0) and 0 in stages and until_stage not in stages:
            grid.weather.mute = {node_of(other)}
        if kind == "train.layer":
            stages.add(ticket.stage)

    return change


def lacking(owned: Owned, attempt: int) -> str:
    """Return the line on what is not known of client 4's cohort."""
    cohort = clients_named(owned.cohort_of(4))
    return (
        f"it is not known how many bytes were exchanged before a stage by {cohort} (stage 0, "
        f"attempt {attempt}): someone of their cohort was away, or began anew and did not answer "
        "again; all totals are without them"
    )


def test_what_a_cohort_moved_is_asked_for_until_it_is_known(owned: Owned) -> None:
    """Also after it has told of a later stage under the same keys."""
    keys = {**QUORUM, "layers": 2}
    undisturbed = replace(owned, folder=owned.folder / "undisturbed")
    whole = undisturbed.train(undisturbed.folder / "run", **keys)
    owned.begins_anew[COLLECT] = (4,)
    other = next(c for c in owned.cohort_of(4) if c != 4)
    run = owned.train(owned.folder / "run", quiet(owned, other, until_stage=1), **keys)
    # Without the cohort in one round the model is another, and so are its rows' codes.
    both = [{a: (v.messages, v.raw) for a, v in crossed(of).items()} for of in (run, whole)]
    assert both[0] == both[1] != {}
    told = [
        [e["vectors"] for e in events_of(of) if e["event"] == "exchange"] for of in (run, whole)
    ]
    assert told[0] == [None, told[1][1]]
    assert not [line for line in result_of(run).get("warnings", []) if "not known" in line]


def test_bytes_that_are_not_known_are_said_not_to_be(owned: Owned) -> None:
    owned.begins_anew[COLLECT] = (4,)
    other = next(c for c in owned.cohort_of(4) if c != 4)
    run = owned.train(owned.folder / "run", quiet(owned, other, until_stage=9), **QUORUM)
    line = lacking(owned, 1)
    assert line in result_of(run)["warnings"]
    assert line in events_of(run)[-1]["warnings"]
    assert line[1:] in (run / "report.html").read_text(encoding="utf-8")
    assert {a.client for a in crossed(run)}.isdisjoint(owned.cohort_of(4))


def test_what_an_earlier_attempt_did_not_tell_stays_not_known(owned: Owned) -> None:
    owned.begins_anew[COLLECT] = (4,)
    other = next(c for c in owned.cohort_of(4) if c != 4)
    run = owned.folder / "run"
    with pytest.raises(RoundIncomplete, match="the server is gone"):
        owned.train(run, quiet(owned, other, until_stage=9, gone_in_round=3), **QUORUM)
    owned.train(run, **QUORUM, resume=run)
    assert lacking(owned, 1) in result_of(run)["warnings"]
    first = {a.client for a in crossed(run) if a.attempt == 1}
    second = {a.client for a in crossed(run) if a.attempt == 2}
    assert second - first == {owned.cohort_of(4)[0]}
