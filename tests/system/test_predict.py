"""Predictions that are killed end by the same command."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from retexo_fl.cli import run_command
from tests.support.cli import environment
from tests.support.nursery import bear_command
from tests.support.predictions import SMALL, cut, files_in, write_small
from tests.support.runs import train

pytestmark = [pytest.mark.system]

CLIENTS = 3
#: Renames of one inference: each client's file, the server's result, the summary aside; then each
#: file, and the summary, into place.
RENAMES = CLIENTS + 2 + CLIENTS + 1


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, ``run``, and parts, ``parts``."""
    folder = tmp_path_factory.mktemp("place")
    write_small(folder / "small.npz")
    keys = {**SMALL, "data_dir": folder, "clients": CLIENTS}
    train(folder / "run", **keys, rounds=2, hidden=8)
    cut(folder / "parts", **keys)
    return folder


def command(place: Path, parts: Path, *more: str) -> list[str]:
    return ["predict", str(place / "run"), "--partitions", str(parts), *more]


def killed(rename: int, arguments: list[str], folder: Path) -> None:
    """Run the command in a process that kills itself before it renames a file for the nth time.

    At each of these, something is put in its place, and between them nothing is.
    """
    hindered = ("hindrances:kill_before_rename", rename)
    process = bear_command(arguments, env=environment(), folder=folder, before=hindered)
    said = process.communicate(timeout=500)
    assert process.returncode == -signal.SIGKILL, (rename, said)


def test_predictions_killed_at_any_time_end_by_the_same_command(
    tmp_path: Path, place: Path
) -> None:
    whole = shutil.copytree(place / "parts", tmp_path / "whole")
    assert run_command(command(place, whole)) == 0
    undisturbed = files_in(whole)
    # One folder is disturbed again and again; after each kill a copy of it is finished.
    broken = shutil.copytree(place / "parts", tmp_path / "broken")
    for rename in (1, CLIENTS + 1, CLIENTS + 3, CLIENTS + 4, RENAMES):
        killed(rename, command(place, broken), tmp_path)
        assert not (broken / "predictions.json").exists()
        assert set(files_in(broken)) > set(files_in(place / "parts"))
        finished = shutil.copytree(broken, tmp_path / f"killed-{rename}")
        assert run_command(command(place, finished)) == 0
        assert files_in(finished) == undisturbed, rename
        assert not [path for path in finished.rglob("*") if ".part" in path.name]
    # A kill after the last rename finds everything done; so does the next process.
    assert run_command(command(place, broken)) == 0
    shutil.copytree(tmp_path / "killed-1", broken / ".predictions-0123456789ab.part")
    assert run_command(command(place, broken)) == 0
    assert files_in(broken) == undisturbed


def test_a_killed_replacement_is_finished_by_the_same_command(tmp_path: Path, place: Path) -> None:
    parts = shutil.copytree(place / "parts", tmp_path / "parts")
    assert run_command(command(place, parts, "--format", "npz")) == 0
    before = files_in(parts)
    replacing = command(place, parts, "--overwrite")
    killed(1, replacing, tmp_path)
    # Until everything is made, what was there stays as it was.
    assert {name: before[name] for name in before} == {
        name: content for name, content in files_in(parts).items() if ".part" not in name
    }
    killed(CLIENTS + 4, replacing, tmp_path)
    assert run_command(replacing) == 0
    names = sorted(path.name for path in parts.iterdir() if "predictions" in path.name)
    assert names == [*(f"predictions-{c}.csv" for c in range(CLIENTS)), "predictions.json"]
