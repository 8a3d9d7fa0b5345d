"""Masked trainings of clients that come and go, on a clock by hand: in as many sums as planned.

Whose cohort was whole in a round is in its sum, exactly; and of machines that come and go like that
as many are in whole cohorts as the plan says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from flwr.app import Message

from retexo_fl.api.plan_cohorts import cohort_facts
from retexo_fl.client import api
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.federation import records
from retexo_fl.training.cohorts import brought, simulated_agreement
from retexo_fl.training.link_split import counts_by_use
from tests.support.fickle_grid import FickleGrid
from tests.support.fickle_training import node_of, train_on_fickle_grid
from tests.support.hand_clock import HandClock
from tests.support.runs import configured, events_of, result_of

DEADLINE_S: Final = 1.0
#: Rounds for which a machine is away, on average.
AWAY: Final = 3.0
#: So many standard deviations from the plan: one of 16,000 sequences is further.
_MOST_DEVIATIONS: Final = 4.0
#: Of machines alone, without a training.
_MANY_ROUNDS: Final = 8_000
CASES: Final = [
    (3, 3, 0.95, 20),
    (12, 3, 0.8, 20),
    (40, 5, 0.9, 8),
    (100, 5, 0.95, 3),
    (200, 5, 0.99, 2),
    (90, 3, 0.8, 2),
]


@dataclass
class Flaky:
    """Machines that are there ``up`` of the time, each by itself, in rounds of training."""

    up: float
    clients: int
    clock: HandClock = field(default_factory=HandClock)
    begun_s: float = 0.0
    #: By round, who was there at some time of it.
    seen: dict[int, set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.drawn = np.random.default_rng(self.clients)
        self.is_there = self.drawn.random(self.clients) < self.up

    def pass_round(self) -> None:
        chance = self.drawn.random(self.clients)
        goes = chance < (1 - self.up) / (AWAY * self.up)
        self.is_there = np.where(self.is_there, ~goes, chance < 1 / AWAY)
        self.begun_s = self.clock.now_s()

    def change(self, grid: FickleGrid, message: Message) -> None:
        if message.metadata.message_type != api.TRAIN.message_type:
            grid.weather.mute = set()
            grid.on_look = lambda: None
            return
        number = records.read_request(message).ticket.round
        if number not in self.seen:
            self.seen[number] = set()
            self.pass_round()
            grid.on_look = lambda: self.look(grid, number)
        self.look(grid, number)

    def look(self, grid: FickleGrid, number: int) -> None:
        # A round that waits for more than its deadline: machines come and go meanwhile.
        if self.clock.now_s() - self.begun_s > 1.5 * DEADLINE_S:
            self.pass_round()
        grid.weather.mute = {node_of(int(c)) for c in np.flatnonzero(~self.is_there)}
        self.seen[number].update(np.flatnonzero(self.is_there).tolist())


def spread(sizes: list[int], up: float, rounds: int) -> float:
    """Return the standard deviation of the share of clients in so many rounds' sums."""
    fades = 1 - 1 / (AWAY * up)
    total = 0.0
    for lag in range(rounds):
        pairs = rounds if not lag else 2 * (rounds - lag)
        both = up**2 + up * (1 - up) * fades**lag
        total += pairs * sum(n**2 * (both**n - up ** (2 * n)) for n in sizes)
    return math.sqrt(total) / (rounds * sum(sizes))


@pytest.mark.parametrize(
    ("clients", "cohort_size", "up", "rounds"),
    [
        *(CASES[1], CASES[-1]),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (CASES[0], CASES[2])),
    ],
)
def test_who_is_in_a_whole_cohort_is_in_the_sum(
    tmp_path: Path, clients: int, cohort_size: int, up: float, rounds: int
) -> None:
    keys: dict[str, Any] = {
        **{"clients": clients, "cohort_size": cohort_size, "secure_aggregation": "masked"},
        **{"layers": 1, "hidden": 4, "model": "gcn", "rounds": rounds, "algorithm": "drop"},
        **{"min_clients": 3, "round_deadline_s": DEADLINE_S, "message_timeout_s": 1000.0},
    }
    config = configured(tmp_path / "run", **keys)
    parts = make_parts(make_config({"clients": clients}))
    counts = {part.client: counts_by_use(config, part) for part in parts}
    agreed = simulated_agreement(config, counts).cohorts
    # Others are not asked in rounds of training.
    cohorts = [cohort.members for cohort in agreed if cohort.uses & {"train", "validation"}]
    assert cohort_size in map(len, cohorts)
    machines = Flaky(up, clients)
    train_on_fickle_grid(config, parts, machines.change, clock=machines.clock)
    events = [event for event in events_of(tmp_path / "run") if event["event"] == "round"]
    assert len(events) == rounds
    assert result_of(tmp_path / "run")["test_accuracy"] > 0
    for event in events:
        there = machines.seen[event["round"]]
        broken = [c for members in cohorts if not there.issuperset(members) for c in members]
        assert event.get("absent", []) == sorted(broken), event["round"]


@pytest.mark.parametrize(("clients", "cohort_size", "up", "rounds"), CASES)
def test_machines_make_as_many_cohorts_whole_as_the_plan_says(
    tmp_path: Path, clients: int, cohort_size: int, up: float, rounds: int
) -> None:
    del rounds
    keys = {"clients": clients, "cohort_size": cohort_size, "secure_aggregation": "masked"}
    config = configured(tmp_path / "run", **keys)
    counts = {c: dict.fromkeys(("train", "validation", "test", "nodes"), 1) for c in range(clients)}
    agreement = simulated_agreement(config, counts)
    facts = cohort_facts(agreement, {c: brought(config, of) for c, of in counts.items()})
    cohorts = [list(cohort.members) for cohort in agreement.cohorts]
    machines, share = Flaky(up, clients), 0.0
    many = _MANY_ROUNDS * 12 // clients
    for _ in range(many):
        machines.pass_round()
        whole = sum(len(members) for members in cohorts if machines.is_there[members].all())
        share += whole / clients / many
    deviation = (share - facts["share"][str(up)]) / spread(facts["sizes"], up, many)
    assert abs(deviation) < _MOST_DEVIATIONS, (share, facts["share"][str(up)])
