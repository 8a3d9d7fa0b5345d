"""Trainings leave the bits that were recorded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.client.preparation import make_parts
from tests.support.agents import AgentProcess, agents, train_with
from tests.support.limits import PERMISSIVE
from tests.support.recorded_grid import (
    DIRECTED,
    KEYS,
    assert_as_recorded,
    cells,
    keys_of,
    left_by,
    name_of,
    recorded,
    train_cell,
    write_graphs,
)
from tests.support.runs import configured
from tests.support.ways import way
from tests.support.workers import train_in_workers

CELLS = list(cells())
NAMES = [name_of(cell) for cell in CELLS]
#: One of each way in which workers of Flower's simulation take part.
IN_WORKERS = ("sage lazy cover fixed", "gat drop shadow 16 static", "gcn lean masked")
#: One of each form in which agents exchange, and of each codec that writes it.
BETWEEN_AGENTS = (
    "gcn lean",
    "gcn lean sums",
    "sage one-shot",
    "gcn lazy rows lossless",
    "sage lazy cover fixed",
    "gat standard rows dense",
    "gin standard cover lossless",
    "sage bns rows fixed",
    "gcn drop full 16 static",
    "gcn lazy links auto",
    "dir-gcn lazy valued directed",
)


def test_every_cell_of_the_record_is_trained() -> None:
    assert set(recorded()["cells"]) == set(NAMES)
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("cell", [*map(way, CELLS)], ids=NAMES)
def test_one_process_leaves_the_recorded_bits(tmp_path: Path, cell: dict[str, Any]) -> None:
    assert_as_recorded(cell, train_cell(cell, tmp_path))


@pytest.fixture(scope="module")
def three_agents(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[AgentProcess]]:
    folder = tmp_path_factory.mktemp("agents")
    write_graphs(folder)
    keys = KEYS | (DIRECTED if request.param == DIRECTED["dataset"] else {}) | {"data_dir": folder}
    with agents(folder, make_parts(configured(folder, **keys)), settings=PERMISSIVE) as made:
        yield made


@pytest.mark.system
@pytest.mark.parametrize(
    ("three_agents", "name"),
    [(keys_of(CELLS[NAMES.index(name)])["dataset"], name) for name in BETWEEN_AGENTS],
    indirect=["three_agents"],
)
def test_agents_leave_the_bits_of_one_process(
    tmp_path: Path, three_agents: list[AgentProcess], name: str
) -> None:
    cell = CELLS[NAMES.index(name)]
    config = configured(tmp_path / "run", **keys_of(cell))
    deployed = left_by(train_with(three_agents, config))
    simulated = left_by(train_cell(cell, tmp_path))
    if config.weight_bits != 32:
        # An agent, which can wait, is told of an exchange in the same message as of a round.
        messages = [left["moved"]["weights_down"].pop(0) for left in (deployed, simulated)]
        assert messages[0] < messages[1]
    assert deployed == simulated


@pytest.mark.parametrize("cell", [way(CELLS[NAMES.index(name)], name=name) for name in IN_WORKERS])
def test_workers_of_flowers_simulation_leave_the_recorded_bits(
    tmp_path: Path, cell: dict[str, Any]
) -> None:
    write_graphs(tmp_path)
    assert_as_recorded(cell, train_in_workers(tmp_path / "run", **keys_of(cell), data_dir=tmp_path))


def test_another_training_is_noticed(tmp_path: Path) -> None:
    cell = CELLS[0]
    other = left_by(train_cell(cell | {"seed": 1}, tmp_path))
    assert other["losses"] != recorded()["cells"][name_of(cell)]["losses"]
