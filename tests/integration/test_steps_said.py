"""What commands say before there is a table, of a graph that takes long."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import retexo_fl
from retexo_fl.progress import LiveTable, steps
from retexo_fl.run_log.events import Started
from tests.support.cli import TINY, CommandLine

SLOW = """
import time
import numpy as np
from retexo_fl.graph import load_dataset


def graph():
    time.sleep(0.3)
    return load_dataset("digits", data_dir=None)


def cut(graph, clients, seed):
    time.sleep(0.3)
    return np.arange(graph.num_nodes) % clients
"""
KEYS: dict[str, Any] = {"dataset": "slow_own:graph", "partitioner": "slow_own:cut", "clients": 2}
OPTIONS = tuple(word for key, value in KEYS.items() for word in (f"--{key}", str(value)))
SAYS = [
    "loading slow_own:graph",
    "cutting 1,797 nodes into 2 parts by slow_own:cut",
]


@pytest.fixture(autouse=True)
def _slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "slow_own.py").write_text(SLOW, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(steps, "_SILENT_IN_LINES_S", 0.1)
    yield
    sys.modules.pop("slow_own", None)


@pytest.mark.parametrize(
    "command", [("run", *TINY[:-1], "--out", "out"), ("plan",), ("partition", "make", "--out", "p")]
)
def test_command_says_what_it_does(
    capfd: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    ended = CommandLine(capfd)(*command, *OPTIONS)
    assert ended.code == 0, ended.err
    said = [line for line in ended.err.splitlines() if line in SAYS]
    assert said == SAYS
    assert not any(line in ended.out for line in SAYS)


def test_quiet_run_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert CommandLine(capfd)("run", *TINY, "--out", "out", *OPTIONS).err == ""


def test_python_says_the_same(capfd: pytest.CaptureFixture[str]) -> None:
    retexo_fl.partition(out="parts", **KEYS)
    assert capfd.readouterr().err.splitlines()[:2] == SAYS


def test_table_says_that_clients_are_prepared_until_they_are() -> None:
    file = io.StringIO()
    table = LiveTable(dataset="d", model="m", engine="e", console=Console(file=file, width=80))
    with table:
        time.sleep(0.3)
        table.handle(Started(attempt=1, clients=2, stages=1))
    first, second = file.getvalue().splitlines()
    assert first == "preparing clients"
    assert second.startswith("d, m, 2 clients")
