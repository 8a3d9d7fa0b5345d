"""Training needs no network: loopback up, no route, and Flower's own command line.

Neither do ``retexo run`` in either engine (``test_wheel.py``) and README's commands
(``test_readme.py``).
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from tests.support.commands import (
    Marked,
    copy_tree,
    offline,
    program,
    run_command,
)
from tests.support.runs import result_of

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]


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
    result = result_of(run)
    assert (result["engine"], result["clients"]) == ("flower", 2)
    assert [stage["rounds"] for stage in result["stages"]] == [2, 2]
    assert result["bytes"]["payload"]["boundary"] > 0
    assert json.loads((run / "status.json").read_text())["state"] == "finished"
    assert (run / "report.html").stat().st_size > 0
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
