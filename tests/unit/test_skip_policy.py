"""In CI a test that does not run is a failure, unless a mark says what this machine lacks.

And its marks are those that its file shows: by them CI finds the files that it collects.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"

CASES = """
import pytest

from tests.support.data import data_dir

@pytest.mark.real_graphs
def test_permitted_by_mark():
    data_dir()

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
WITHOUT_THE_MARK = """
from tests.support.data import data_dir

def test_reads_them():
    data_dir()
"""
OF_WHAT_IS_HERE = """
import pytest

@pytest.mark.real_graphs
def test_has_them_and_skips():
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

HIDDEN_MARK = """
import pytest

@getattr(pytest.mark, "system")
def test_starts_programs():
    pass
"""


#: Every way to skip, by the file that does it.
SKIPPING = {"call": BY_CALL, "mark": BY_MARK, "fixture": BY_FIXTURE, "module": BY_MODULE}


def run_pytest(folder: Path, *, ci: str, **files: str) -> subprocess.CompletedProcess[str]:
    """Run tests; real graphs are in ``folder / "graphs"`` if a test has put any there."""
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    for name, content in files.items():
        (folder / f"test_{name}.py").write_text(content)
    options = ("-q", "-p", "no:randomly", "--rootdir", ".", "--continue-on-collection-errors")
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=folder,
        env=os.environ | {"CI": ci, "RETEXO_TEST_DATA": str(folder / "graphs")},
        capture_output=True,
        text=True,
        check=False,
    )


def test_skip_policy_permits_a_mark_for_what_is_not_here(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, ci="true", case=CASES)
    assert done.returncode == 0, done.stdout
    assert "1 passed, 1 skipped, 1 xfailed" in done.stdout


def test_skip_policy_fails_other_skips_in_ci(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, ci="true", **SKIPPING)
    assert done.returncode != 0
    assert "1 failed, 3 errors in" in done.stdout
    told = "\nskipped, which CI permits only by a mark: no time today\n"
    assert done.stdout.count(told) == len(SKIPPING)


def test_skip_policy_leaves_a_users_machine_alone(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, ci="", **SKIPPING)
    assert "4 skipped in" in done.stdout
    assert "permits" not in done.stdout


def test_skip_policy_fails_what_is_here_and_skipped_or_not_here_and_unmarked(
    tmp_path: Path,
) -> None:
    (tmp_path / "here" / "graphs").mkdir(parents=True)
    (tmp_path / "here" / "graphs" / "cora.npz").touch()
    (tmp_path / "absent").mkdir()
    done = run_pytest(tmp_path / "here", ci="true", case=OF_WHAT_IS_HERE)
    assert "skipped, which CI permits only by a mark: no time today" in done.stdout
    assert done.returncode != 0
    done = run_pytest(tmp_path / "absent", ci="", case=WITHOUT_THE_MARK)
    assert "there are no real graphs: mark the test real_graphs" in done.stdout
    assert done.returncode != 0


def test_marks_that_do_not_stand_in_a_tests_file_are_refused(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, ci="", hidden=HIDDEN_MARK)
    assert done.returncode != 0
    told = "test_hidden.py::test_starts_programs: mark.system does not stand in its file"
    assert told in done.stdout + done.stderr
