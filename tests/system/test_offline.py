"""Training needs no network: loopback up, no route, and Flower's own command line."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from tests.support.commands import (
    Marked,
    copy_tree,
    environment,
    offline,
    program,
    run_command,
)
from tests.support.runs import result_of

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]


def _assert_trained(run: Path, *, clients: int, rounds: int) -> None:
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    assert result["clients"] == clients
    assert [stage["rounds"] for stage in result["stages"]] == [rounds, rounds]
    assert result["bytes"]["payload"]["boundary"] > 0
    status = json.loads((run / "status.json").read_text(encoding="utf-8"))
    assert status["state"] == "finished"
    assert (run / "report.html").stat().st_size > 0


@pytest.mark.parametrize("engine", ["inline", "flower"])
def test_retexo_run_trains_without_a_network(tmp_path: Path, marked: Marked, engine: str) -> None:
    command = [program("retexo"), "run", "--engine", engine]
    sizes = ["--clients", "2", "--rounds", "2", "--out", "run"]
    run_command(offline([*command, *sizes]), cwd=tmp_path, env=environment(marked.variables))
    _assert_trained(tmp_path / "run", clients=2, rounds=2)
    assert marked.alive() == []


def test_flwr_run_trains_without_a_network(
    tmp_path: Path, marked: Marked, flower_environment: dict[str, str]
) -> None:
    run = tmp_path / "run"
    command = [
        *(program("flwr"), "run", ".", "local", "--stream"),
        *("-c", f'clients=2 rounds=2 out="{run}"'),
        *("--federation-config", "num-supernodes=2 client-resources-num-cpus=1"),
    ]
    tree = copy_tree(tmp_path)
    said = run_command(offline(command), cwd=tree, env=flower_environment)
    assert (run / "result.json").is_file(), said[-6000:]
    _assert_trained(run, clients=2, rounds=2)
    assert result_of(run)["engine"] == "flower"
    assert 'engine = "flower"' in (run / "config.toml").read_text()
    # Flower leaves its daemon running, as the README says; `retexo run` does not.
    assert marked.alive() != []
    marked.end_all()


def test_flwr_build_packs_the_two_components_only(
    tmp_path: Path, flower_environment: dict[str, str]
) -> None:
    tree = copy_tree(tmp_path)
    run_command([program("flwr"), "build"], cwd=tree, env=flower_environment)
    (bundle,) = tree.glob("*.fab")
    with zipfile.ZipFile(bundle) as archive:
        names = {name for name in archive.namelist() if not name.startswith(".info")}
    assert names == {
        "pyproject.toml",
        "server/__init__.py",
        "server/app.py",
        "clients/__init__.py",
        "clients/app.py",
    }
