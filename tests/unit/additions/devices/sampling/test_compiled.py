from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import numba
import pytest

import retexo_fl
from retexo_fl.additions.devices.sampling.compiled import compiled, kernel_folder, sources_digest

_SCRIPT = """
import numpy as np
from retexo_fl.additions.devices.sampling.compiled import kernel_folder
from retexo_fl.additions.devices.sampling.transposition import edges_by_source
indptr, order = edges_by_source(np.array([2, 0, 2], dtype=np.int32), 3)
print(kernel_folder(), indptr.tolist(), order.tolist())
"""

#: In the package.
_ROOM: Final = "additions/devices/sampling"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Return a folder with the package in which nothing can be written beside the samplers."""
    package = tmp_path / "site" / "retexo_fl"
    shutil.copytree(
        Path(retexo_fl.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    # A file where the folder would be: a permission would not hinder the superuser.
    (package / _ROOM / "__pycache__").touch()
    return package.parent


def run_kernel(site: Path, **environment: str) -> str:
    """Return what a process prints that imports the package from ``site``."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in {"NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "HOME"}
    }
    paths = {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        cwd=site,
        env=inherited | paths | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=500,
    )
    return done.stdout.strip()


def test_kernels_work_where_nothing_can_be_written(installed: Path) -> None:
    nowhere = str(installed / "retexo_fl" / _ROOM / "__pycache__" / "below")
    printed = run_kernel(installed, HOME=nowhere, XDG_CACHE_HOME=nowhere, NUMBA_CACHE_DIR=nowhere)
    assert printed == "None [0, 1, 1, 3] [1, 0, 2]"
    assert not list(installed.rglob("*.nbc"))


@pytest.mark.slow
def test_kernels_of_a_package_of_others_are_kept_with_the_user(
    installed: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    name = f"kernels-{sources_digest(installed / 'retexo_fl' / _ROOM)}"
    printed = run_kernel(installed, HOME=str(home))
    assert printed == f"{home / '.cache' / 'retexo-fl' / name} [0, 1, 1, 3] [1, 0, 2]"
    (kept,) = home.rglob("transposition.edges_by_source-*.nbc")
    written_ns = kept.stat().st_mtime_ns
    assert run_kernel(installed, XDG_CACHE_HOME=str(home / ".cache")) == printed
    assert kept.stat().st_mtime_ns == written_ns
    # A power cut soon after writing leaves names without content.
    for file in (kept, *home.rglob("*.nbi")):
        file.write_bytes(b"")
    assert run_kernel(installed, HOME=str(home)) == printed
    assert kept.stat().st_size


def test_named_folder_comes_first_and_holds_for_this_room_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    kernel_folder.cache_clear()
    try:
        folder, kernel = kernel_folder(), compiled(_doubled)
    finally:
        kernel_folder.cache_clear()
    assert kernel(4) == 8
    assert folder is not None
    assert folder.parent == tmp_path
    assert len(list(folder.rglob("test_compiled._doubled-*.nbc"))) == 1
    # What others compile goes where they expect it.
    assert "kernels" not in vars(numba.config)["CACHE_DIR"]


def _doubled(number: int) -> int:
    return 2 * number


def test_any_change_of_a_module_gives_another_folder(tmp_path: Path) -> None:
    (tmp_path / "caller.py").write_text("from callee import called\n", encoding="utf-8")
    (tmp_path / "callee.py").write_text("called = 1\n", encoding="utf-8")
    before = sources_digest(tmp_path)
    assert sources_digest(tmp_path) == before
    (tmp_path / "callee.py").write_text("called = 2\n", encoding="utf-8")
    assert sources_digest(tmp_path) != before
