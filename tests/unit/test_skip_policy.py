"""In CI a test that does not run is a failure, unless the machine cannot have what it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


#: Every way to skip, by the file that does it.
SKIPPING = {"call": BY_CALL, "mark": BY_MARK, "fixture": BY_FIXTURE, "module": BY_MODULE}


def run_pytest(folder: Path, *, ci: str, **files: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    for name, content in files.items():
        (folder / f"test_{name}.py").write_text(content)
    options = ("-q", "-p", "no:randomly", "--rootdir", ".", "--continue-on-collection-errors")
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=folder,
        env=os.environ | {"CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )


def test_skip_policy_lets_permitted_reasons_pass(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, ci="true", case=CASES)
    assert done.returncode == 0, done.stdout
    assert "1 passed, 2 skipped, 1 xfailed" in done.stdout


def test_skip_policy_fails_other_reasons_in_ci(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, ci="true", **SKIPPING)
    assert done.returncode != 0
    assert "1 failed, 3 errors in" in done.stdout
    told = "\nskipped, which CI does not permit: no time today\n"
    assert done.stdout.count(told) == len(SKIPPING)


def test_skip_policy_leaves_a_users_machine_alone(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, ci="", **SKIPPING)
    assert "4 skipped in" in done.stdout
    assert "not permit" not in done.stdout
