"""The kernel path is one room: without its folder everything else works, and refuses it by name."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from tests.support.agents import agents
from tests.support.commands import ROOT, environment

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

#: Imports the room, or a file that does.
_ROOM = "retexo_fl.kernel_path"
#: What knows agents, channels and the commands best; every other file of tests is imported.
_TESTS = (
    "tests/unit/agent",
    "tests/unit/doctor",
    "tests/unit/test_import_cycles.py",
    "tests/integration/test_fixed_codec.py",
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the source tree without the room and its tests, with an environment of its own."""
    made = tmp_path_factory.mktemp("without") / "copy"
    ignored = shutil.ignore_patterns(".*", "*.egg-info", "build", "dist", "runs")
    shutil.copytree(ROOT, made, ignore=ignored)
    shutil.rmtree(made / "retexo_fl" / "kernel_path")
    _remove_importers(made)
    _make_environment(made)
    return made


def _remove_importers(tree: Path) -> None:
    """Remove the room's own tests and recipes, and what is built on these alone."""
    gone = [_ROOM]
    while gone:
        names = "|".join(re.escape(name) for name in gone)
        imports = re.compile(rf"^\s*(?:from|import) (?:{names})\b", re.MULTILINE)
        gone = []
        for path in [*tree.glob("tests/**/*.py"), *tree.glob("sims/**/*.py")]:
            if imports.search(path.read_text(encoding="utf-8")):
                gone.append(".".join(path.relative_to(tree).with_suffix("").parts))
                path.unlink()


def _make_environment(tree: Path) -> None:
    """Make an environment that imports this one's libraries, and the library from ``tree``."""
    folder = tree / ".venv"
    venv.create(folder, symlinks=True, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    places = [
        str(tree),
        *dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib")),
    ]
    (site / "copy.pth").write_text("\n".join(places) + "\n", encoding="utf-8")
    program = folder / "bin" / "retexo"
    program.write_text(
        f"#!{folder / 'bin' / 'python'}\nfrom retexo_fl.cli import main\nmain()\n", encoding="utf-8"
    )
    program.chmod(0o755)


def _run(tree: Path, *command: str) -> subprocess.CompletedProcess[str]:
    python = str(tree / ".venv" / "bin" / "python")
    return subprocess.run(
        [python, *command],
        cwd=tree,
        env=environment(runs_this_checkout=False),
        text=True,
        capture_output=True,
        check=False,
        timeout=800,
    )


def test_the_copy_is_what_runs(copy: Path) -> None:
    told = _run(copy, "-c", "import retexo_fl; print(retexo_fl.__file__)").stdout
    assert Path(told.strip()).is_relative_to(copy)
    assert _run(copy, "-c", f"import {_ROOM}").returncode == 1


@pytest.mark.slow
def test_no_other_test_needs_it(copy: Path) -> None:
    done = _run(copy, "-m", "pytest", "-q", "-n", "0", "--collect-only", "--assert=plain", "-m", "")
    assert done.returncode == 0, done.stdout[-3000:]


def test_the_rest_works(copy: Path) -> None:
    done = _run(copy, "-m", "pytest", "-q", "-m", "not system and not slow", *_TESTS)
    assert done.returncode == 0, done.stdout[-3000:]
    assert re.search(r"\d{3,} passed", done.stdout), "the tests that it names are there"


@pytest.mark.parametrize("scheme", ["udp", "auto"])
def test_its_addresses_are_refused_by_name(copy: Path, tmp_path: Path, scheme: str) -> None:
    listen = ("tcp://127.0.0.1:7411", f"{scheme}://127.0.0.1:7412")
    parts = make_parts(make_config({"clients": 2}))
    with agents(tmp_path, parts, start=False, addresses=[listen, "tcp://127.0.0.1:7413"]) as made:
        agent = made[0]
        agent.program = [str(copy / ".venv" / "bin" / "retexo")]
        ended = subprocess.run(
            agent.command,
            env=environment(runs_this_checkout=False),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert ended.returncode == 2
    assert re.search(f"listen: {listen[1]}: .*no kernel path.*; expected tcp://", ended.stderr)


def test_the_doctor_says_that_it_is_not_there(copy: Path) -> None:
    told = _run(copy, "-m", "retexo_fl", "doctor").stdout
    assert re.search(r"kernel path\s+not in this installation", told)
    audit = _run(copy, "-m", "retexo_fl", "doctor", "--audit", "agent.toml")
    assert audit.returncode == 2
    assert "this installation has no kernel path" in audit.stderr
