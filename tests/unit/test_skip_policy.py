"""In CI a test that does not run is a failure, unless the machine cannot have what it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"

CASES = """
import pytest

def test_permitted_by_call():
    pytest.skip("needs a GPU with 1 GB")

@pytest.mark.skip(reason="real graphs are not at folder")
def test_permitted_by_mark():
    pass

@pytest.mark.xfail(reason="known", strict=True)
def test_expected_failure():
    assert False

def test_runs():
    pass
"""
BY_CALL = """
import pytest

def test_by_call():
    pytest.skip("no time today")
"""
BY_MARK = """
import pytest

@pytest.mark.skipif(True, reason="no time today")
def test_by_mark():
    pass
"""
BY_FIXTURE = """
import pytest

@pytest.fixture
def machine():
    pytest.skip("no time today")

def test_by_fixture(machine):
    pass
"""
BY_MODULE = """
import pytest

pytest.importorskip("no_such_module_of_ours", reason="no time today")
"""


def run_pytest(folder: Path, content: str, *, ci: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    (folder / "test_case.py").write_text(content)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "--rootdir", "."],
        cwd=folder,
        env=os.environ | {"CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )


def test_skip_policy_lets_permitted_reasons_pass(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, CASES, ci="true")
    assert done.returncode == 0, done.stdout
    assert "1 passed, 2 skipped, 1 xfailed" in done.stdout


@pytest.mark.parametrize("content", [BY_CALL, BY_MARK, BY_FIXTURE, BY_MODULE])
def test_skip_policy_fails_other_reasons_in_ci(tmp_path: Path, content: str) -> None:
    done = run_pytest(tmp_path, content, ci="true")
    assert done.returncode != 0
    assert "skipped, which CI does not permit: no time today" in done.stdout
    assert "1 skipped" not in done.stdout


@pytest.mark.parametrize("content", [BY_CALL, BY_MODULE])
def test_skip_policy_leaves_a_users_machine_alone(tmp_path: Path, content: str) -> None:
    done = run_pytest(tmp_path, content, ci="")
    assert "1 skipped" in done.stdout
    assert "not permit" not in done.stdout
