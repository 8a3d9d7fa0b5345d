"""Run programs as a user does: by name, in a directory, with or without a network."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import uuid4

import pytest

from retexo_fl.simulation.flower_processes import process_table

#: Root of the source tree.
ROOT = Path(__file__).resolve().parents[2]

#: What `flwr run` needs in order not to look for a network (README, "Engines").
FLOWER_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}

_MARK = "RETEXO_TEST_MARK"
_UNSHARE = ("unshare", "--map-root-user", "--net")
_NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "runs")


def program(name: str) -> str:
    """Return the path of a program of the environment that runs the tests."""
    folders = (Path(sys.executable).parent, Path(sysconfig.get_path("scripts")))
    found = [folder / name for folder in folders if (folder / name).is_file()]
    assert found, f"{name} is not in {folders}; expected pip install -e '.[dev]'"
    return str(found[0])


def search_path() -> str:
    """Return a PATH on which the programs of this environment come first."""
    system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return os.pathsep.join((str(Path(program("retexo")).parent), system))


def environment(
    extra: Mapping[str, str] | None = None, *, runs_this_checkout: bool = True
) -> dict[str, str]:
    """Return the environment without what would change where Python and Flower look.

    Where the checkout itself stands on PYTHONPATH (a mutant, which is not installed), it remains
    there, or programs would run the installed one. Not so for an installation of a test's own.
    """
    foreign = ("FLWR_", "RAY_", "PYTHONPATH", "RETEXO_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    found = kept | {"OMP_NUM_THREADS": "1"} | dict(extra or {})
    if runs_this_checkout and str(ROOT) in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        wanted = found.get("PYTHONPATH", "")
        found["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), wanted)))
    return found


def ended(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 200.0,
) -> tuple[int, str]:
    """Run a program to its end; return its exit code, and all that it printed."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return done.returncode, done.stdout


def run_command(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 200.0,
) -> str:
    """Run a program to its end and return what it printed; fail the test unless it exits with 0."""
    code, said = ended(command, cwd=cwd, env=env or environment(), timeout_s=timeout_s)
    assert code == 0, f"{command}: exit code {code}\n{said[-6000:]}"
    return said


def offline(command: Sequence[str]) -> list[str]:
    """Return the command that runs ``command`` with the loopback interface and no route at all.

    Skips the calling test where namespaces are not permitted.
    """
    tools = shutil.which("unshare") and shutil.which("ip")
    if not tools or subprocess.run([*_UNSHARE, "true"], check=False).returncode:
        pytest.skip("network namespaces are not permitted here (unshare --map-root-user --net)")
    loopback = 'ip link set lo up && test -z "$(ip route)" && exec "$@"'
    return [*_UNSHARE, "sh", "-c", loopback, "sh", *command]


def copy_tree(folder: Path) -> Path:
    """Copy the source tree as a clone has it to ``folder/retexo-fl``, and return that."""
    copy = folder / "retexo-fl"
    shutil.copytree(ROOT, copy, ignore=_NOT_COPIED)
    return copy


def readme_blocks(page: str = "README.md") -> list[str]:
    """Return the shell commands of a page, one text for each fenced block."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [block.strip() for block in re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.M)]


class Marked:
    """A mark in the environment, which every process under a command inherits.

    It finds processes that were detached and have no parent any more, and only those.
    """

    def __init__(self) -> None:
        self.variables = {_MARK: uuid4().hex}
        self._entry = f"{_MARK}={self.variables[_MARK]}".encode()

    def alive(self) -> list[int]:
        """Return the ids of the marked processes that run."""
        running = [pid for pid, process in process_table().items() if not process.dead]
        return sorted(pid for pid in running if self._entry in _environment_of(pid).split(b"\0"))

    def end_all(self, within_s: float = 20.0) -> None:
        """Kill the marked processes; fail the test if one of them does not go."""
        deadline = time.monotonic() + within_s
        while left := self.alive():
            assert time.monotonic() < deadline, f"processes {left} do not end"
            for pid in left:
                _kill(pid)
            time.sleep(0.05)


def _environment_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it ended meanwhile, or belongs to another user
        return b""


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
