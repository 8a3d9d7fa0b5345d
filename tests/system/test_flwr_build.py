"""What Flower's own command line makes of the source tree."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.support.commands import copy_tree, program, run_command

pytestmark = pytest.mark.system


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
