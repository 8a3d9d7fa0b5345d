"""Masked trainings of clients that come and go, on a clock by hand: in as many sums as planned."""

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


@dataclass
class Flaky:
    """Machines that are there ``up`` of the time, each by itself, in rounds of training."""

    up: float
    clients: int
    clock: HandClock = field(default_factory=HandClock)
    round: int = 0
    begun_s: float = 0.0

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
        if number != self.round:
            self.round = number
            self.pass_round()
            grid.on_look = lambda: self.look(grid)
        self.look(grid)

    def look(self, grid: FickleGrid) -> None:
        # A round that waits for more than its deadline: machines come and go meanwhile.
        if self.clock.now_s() - self.begun_s > 1.5 * DEADLINE_S:
            self.pass_round()
        grid.weather.mute = {node_of(int(c)) for c in np.flatnonzero(~self.is_there)}


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
        (3, 3, 0.95, 30),
        (12, 3, 0.8, 30),
        (40, 5, 0.9, 12),
        (100, 5, 0.95, 4),
        (200, 5, 0.99, 2),
        (200, 3, 0.8, 2),
    ],
)
def test_flaky_clients_are_in_as_many_sums_as_the_plan_says(
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
    agreement = simulated_agreement(config, counts)
    facts = cohort_facts(agreement, {c: brought(config, of) for c, of in counts.items()})
    machines = Flaky(up, clients)
    train_on_fickle_grid(config, parts, machines.change, clock=machines.clock)
    events = [event for event in events_of(tmp_path / "run") if event["event"] == "round"]
    assert len(events) == rounds
    assert result_of(tmp_path / "run")["test_accuracy"] > 0
    # A round that had to wait for longer was of nobody when its time was over.
    shares = [
        1 - len(event.get("absent", ())) / clients
        if (event["waited_s"] or 0.0) < 1.4 * DEADLINE_S
        else 0.0
        for event in events
    ]
    planned = facts["share"][str(up)]
    deviation = (np.mean(shares) - planned) / spread(facts["sizes"], up, rounds)
    assert abs(deviation) < _MOST_DEVIATIONS, (np.mean(shares), planned)
