"""Trainings leave the bits that version 0.1.0 left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from tests.support.agents import AgentProcess, agents, train_with
from tests.support.limits import PERMISSIVE
from tests.support.predictions import write_small
from tests.support.recorded_grid import (
    KEYS,
    assert_as_recorded,
    cells,
    left_by,
    name_of,
    recorded,
    train_cell,
)
from tests.support.runs import configured
from tests.support.workers import train_in_workers

CELLS = list(cells())
NAMES = [name_of(cell) for cell in CELLS]
CODECS = ("lossless", "dense", "fixed")
SAMPLERS = ("none", "full", "neighbour", "shadow", "gns")
MODELS = ("gcn", "sage", "gat", "gin")
#: One of each way in which workers of Flower's simulation take part.
IN_WORKERS = ("gcn lazy cover fixed", "gat drop shadow 16 static")


def test_every_cell_of_the_record_is_trained() -> None:
    assert set(recorded()["cells"]) == set(NAMES)
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("cell", CELLS, ids=NAMES)
def test_one_process_leaves_the_recorded_bits(tmp_path: Path, cell: dict[str, Any]) -> None:
    assert_as_recorded(cell, train_cell(cell, tmp_path))


@pytest.fixture(scope="module")
def three_agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[AgentProcess]]:
    folder = tmp_path_factory.mktemp("agents")
    write_small(folder / "small.npz", nodes=60)
    values = {name.replace("_", "-"): value for name, value in KEYS.items()}
    parts = make_parts(make_config(values | {"data-dir": str(folder)}))
    with agents(folder, parts, settings=PERMISSIVE) as made:
        yield made


def is_for_agents(cell: dict[str, Any]) -> bool:
    """Say whether agents train a cell: all in which models, codecs and samplers take turns.

    Each model meets each algorithm and plan, each codec and each sampler meets several models.
    """
    if cell.get("clients") == 1:
        return False
    turn = MODELS.index(cell["model"]) if cell["model"] in MODELS else 0
    if "codec" in cell:
        ways = (("lazy", "rows"), ("lazy", "cover"), ("standard", "rows"), ("standard", "cover"))
        way = (cell["algorithm"], cell["boundary_plan"])
        turn += ways.index(way) if way in ways else 1
        return bool(cell["codec"] == CODECS[turn % 3])
    return "sampler" not in cell or SAMPLERS.index(cell["sampler"]) % 4 == turn


@pytest.mark.system
@pytest.mark.parametrize("cell", [*filter(is_for_agents, CELLS)], ids=name_of)
def test_agents_leave_the_bits_of_one_process(
    tmp_path: Path, three_agents: list[AgentProcess], cell: dict[str, Any]
) -> None:
    run = train_with(three_agents, configured(tmp_path / "run", **KEYS | cell))
    assert left_by(run) == left_by(train_cell(cell, tmp_path))


@pytest.mark.parametrize("name", IN_WORKERS)
def test_workers_of_flowers_simulation_leave_the_recorded_bits(tmp_path: Path, name: str) -> None:
    cell = CELLS[NAMES.index(name)]
    write_small(tmp_path / "small.npz", nodes=60)
    assert_as_recorded(cell, train_in_workers(tmp_path / "run", **KEYS | cell, data_dir=tmp_path))


def test_another_training_is_noticed(tmp_path: Path) -> None:
    cell = CELLS[0]
    other = left_by(train_cell(cell | {"seed": 1}, tmp_path))
    assert other["losses"] != recorded()["cells"][name_of(cell)]["losses"]
