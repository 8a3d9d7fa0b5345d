"""What the agent's unit forbids, and what samplers and worker processes need of the system."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import ROOT, environment
from tests.support.sandbox import allowed_calls, require_tracing, settings_of

pytestmark = [pytest.mark.system, pytest.mark.timeout(200)]

UNIT = ROOT / "clients" / "retexo-agent.service"


@pytest.fixture
def calls(tmp_path: Path) -> set[str]:
    """Return the system calls of a training by mini-batches with two workers, freshly compiled."""
    require_tracing()
    report = tmp_path / "calls"
    command = (
        *("strace", "-f", "-c", "-U", "name", "-o", str(report)),
        *(sys.executable, "-m", "retexo_fl", "run", "--quiet", "--out", str(tmp_path / "run")),
        *("--algorithm", "central", "--clients", "1", "--rounds", "2", "--hidden", "4"),
        *("--sampler", "shadow", "--fanouts", "4/3", "--devices", "cpu:2"),
    )
    kept = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "NUMBA_CACHE_DIR": str(tmp_path / "numba")}
    done = subprocess.run(
        command, env=environment(kept), capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(re.findall(r"^\s*(\w+)\s*$", report.read_text(), re.M)) - {"syscall", "total"}


@pytest.mark.slow
def test_workers_and_compiler_need_no_call_that_the_unit_forbids(calls: set[str]) -> None:
    assert {"memfd_create", "mprotect", "recvmsg", "prctl"} <= calls
    assert calls - allowed_calls(settings_of(UNIT.read_text())["SystemCallFilter"]) == set()


def test_the_unit_leaves_what_a_compiler_needs() -> None:
    unit = settings_of(UNIT.read_text())
    # Machine code is written to memory, which is then made executable.
    assert unit.get("MemoryDenyWriteExecute", "no") == "no"
    # It is kept where the unit may write: HOME is the state folder, all else is read-only.
    assert "Environment=HOME=/var/lib/retexo\n" in UNIT.read_text()
    assert unit["StateDirectory"] == "retexo"
    assert unit["ProtectSystem"] == "strict"


def test_systemd_accepts_the_addition_for_a_gpu(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (Debian: systemd)")
    lines = (UNIT.parent / "retexo-agent.service.d" / "gpu.conf").read_text()
    unit = re.sub(r"^(ExecStart|User|Group)=.*\n", "", UNIT.read_text(), flags=re.M)
    path = tmp_path / "gpu.service"
    path.write_text(f"{unit}\n{lines}\nExecStart=/bin/true\n")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert "gpu.service" not in done.stderr
    assert "char-nvidia* rw" in lines
