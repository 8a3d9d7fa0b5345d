"""Each addition is a room that can be deleted: the rest works, and says by name what it lacks."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from retexo_fl.addition import ADDITIONS, BLUETOOTH, DEVICES, KERNEL_PATH, Addition
from retexo_fl.agent.remote import ask_agent
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from tests.support.agents import agents, retexo
from tests.support.commands import ROOT, environment
from tests.support.runs import model_bytes

pytestmark = [pytest.mark.system, pytest.mark.timeout(3600)]

_RUN: Final = ("run", "--clients", "2", "--rounds", "2", "--hidden", "8", "--quiet", "--out")
#: By addition, commands that take it, and what is named.
_COMMANDS: Final[Mapping[Addition, tuple[tuple[tuple[str, ...], str], ...]]] = {
    KERNEL_PATH: ((("doctor", "--audit", "agent.toml"), "--audit"),),
    BLUETOOTH: (
        (("bluetooth", "list"), "bluetooth"),
        (("bluetooth", "pair", "--accept"), "bluetooth"),
        (("bluetooth", "--help"), "bluetooth"),
    ),
    DEVICES: (
        (("run", "--devices", "cpu:2"), "devices: cpu:2"),
        (("run", "--engine", "flower", "--devices", "cuda:0,cpu"), "devices: cuda:0,cpu"),
        *(
            (("run", "--algorithm", "drop", "--sampler", it), f"sampler: {it}")
            for it in ("full", "neighbour", "shadow", "gns")
        ),
    ),
}
#: The same for lines of ``agent.toml``.
_SETTINGS: Final[Mapping[Addition, tuple[tuple[str, str], ...]]] = {
    KERNEL_PATH: (
        *(
            (f'listen = ["tcp://127.0.0.1:7411", "{it}://127.0.0.1:7412"]', f"listen: {it}://")
            for it in KERNEL_PATH.schemes
        ),
        ('addresses = ["udp://127.0.0.1:7412"]', "addresses: udp://127.0.0.1:7412"),
        ('broadcast = "gso"', "broadcast"),
        ("datagram-memory-mib = 64.0", "datagram-memory-mib"),
    ),
    BLUETOOTH: (
        ('listen = ["tcp://127.0.0.1:7411", "bluetooth:"]', "listen: bluetooth:"),
        ('listen = ["bluetooth://any/3"]', "listen: bluetooth://any/3"),
        ('addresses = ["bluetooth://AA:BB:CC:DD:EE:FF"]', "addresses: bluetooth://AA:BB"),
    ),
    DEVICES: (('devices = "cuda:0,cpu"', "devices: cuda:0,cpu"),),
}
#: What a copy lacks: a room, which is for the night, or the folder of all.
_MISSING: Final = (*(pytest.param(it.room, marks=pytest.mark.slow) for it in ADDITIONS), "all")


@dataclass(frozen=True, slots=True)
class Copy:
    """The package without some of its additions, in a folder that nothing is installed in."""

    folder: Path
    lacks: tuple[Addition, ...]

    def retexo(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run its command."""
        return subprocess.run(
            [*self.program, *arguments],
            cwd=cwd,
            env=environment(self.extra, runs_this_checkout=False),
            text=True,
            capture_output=True,
            check=False,
            timeout=500,
        )

    @property
    def program(self) -> list[str]:
        """What is run in place of ``retexo``."""
        # Nor is it found where it is run.
        return [sys.executable, "-P", "-m", "retexo_fl"]

    @property
    def extra(self) -> dict[str, str]:
        """Variables that have Python find it."""
        return {"PYTHONPATH": str(self.folder)}


@pytest.fixture(scope="module", params=_MISSING)
def copy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """Copy the package without one of its additions, or without the folder of all."""
    folder = tmp_path_factory.mktemp("without")
    shutil.copytree(ROOT / "retexo_fl", folder / "retexo_fl")
    lacks = tuple(it for it in ADDITIONS if request.param in (it.room, "all"))
    rooms = folder / "retexo_fl" / "additions"
    shutil.rmtree(rooms if request.param == "all" else rooms / request.param)
    return Copy(folder, lacks)


def test_the_copy_is_what_runs_and_what_it_lacks_is_in_no_other_place(copy: Copy) -> None:
    names = [f"retexo_fl.additions.{it.room}" for it in copy.lacks]
    script = (
        "import importlib, sys, retexo_fl\n"
        "print(retexo_fl.__file__)\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except ModuleNotFoundError as error:\n"
        "        print(error.name)\n"
    )
    told = subprocess.check_output(
        [sys.executable, "-P", "-c", script, *names],
        env=environment(copy.extra, runs_this_checkout=False),
        text=True,
    ).splitlines()
    assert Path(told[0]).is_relative_to(copy.folder)
    assert all(name.startswith(said) for name, said in zip(names, told[1:], strict=True))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train with the whole package."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert retexo(*_RUN, str(out)).returncode == 0
    return out


def test_digits_train_as_they_do_with_it(copy: Copy, whole: Path, tmp_path: Path) -> None:
    done = copy.retexo(*_RUN, str(tmp_path / "run"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert model_bytes(tmp_path / "run") == model_bytes(whole)


def test_an_agent_starts_and_stops(copy: Copy, tmp_path: Path) -> None:
    with agents(tmp_path, make_parts(make_config({"clients": 2})), start=False) as made:
        made[0].program, made[0].extra = copy.program, copy.extra
        made[0].start()
        assert ask_agent(made[0].socket, "status")["datagrams"] is None
        assert made[0].stop() == 0, made[0].log


def test_an_agent_refuses_a_run_that_takes_it(copy: Copy, tmp_path: Path) -> None:
    script = (
        "from retexo_fl.agent.admission import admit\n"
        "from retexo_fl.agent.limits import Limits\n"
        "from retexo_fl.client.preparation import make_parts\n"
        "from retexo_fl.config import make_config\n"
        "from retexo_fl.errors import ConfigurationError\n"
        "part = make_parts(make_config({'clients': 2}))[0]\n"
        "for predicts in (True, False):\n"
        "    try:\n"
        "        admit({'clients': 2, 'devices': 'cpu:1'}, part, Limits(), predicts=predicts)\n"
        "        print('admitted')\n"
        "    except ConfigurationError as error:\n"
        "        print(error)\n"
    )
    told = subprocess.check_output(
        [sys.executable, "-P", "-c", script],
        env=environment(copy.extra, runs_this_checkout=False),
        cwd=tmp_path,
        text=True,
    ).splitlines()
    assert told[0] == "admitted"
    refused = f"client 0: devices: cpu:1: this installation has no {DEVICES.title}"
    assert told[1].startswith(refused if DEVICES in copy.lacks else "admitted")


def test_what_takes_it_is_refused_by_its_name(copy: Copy, tmp_path: Path) -> None:
    folder = tmp_path / "0"
    with agents(tmp_path, make_parts(make_config({"clients": 2})), start=False):
        text = (folder / "agent.toml").read_text()
    expected: list[tuple[tuple[str, ...], str]] = []
    for addition in copy.lacks:
        refused: list[tuple[tuple[str, ...], str]] = [*_COMMANDS[addition]]
        for number, (line, named) in enumerate(_SETTINGS[addition]):
            path = folder / f"{addition.room}-{number}.toml"
            key = line.partition(" ")[0]
            path.write_text(re.sub(rf"^{key} = .*\n", "", text, flags=re.M) + f"{line}\n")
            for of_agent in ("run", "status")[: 1 + (number == 0)]:
                refused.append((("agent", of_agent, "--config", str(path)), f"{path}: {named}"))
        lacking = f"this installation has no {addition.title}; expected the folder"
        room = f"retexo_fl/additions/{addition.room} of a complete retexo-fl"
        expected += [
            (command, rf"retexo: error: {named}[^ ]*: {lacking} {room}\n")
            for command, named in refused
        ]
    for (command, said), (code, told) in zip(
        expected,
        _each_in_one_process(copy, [command for command, _ in expected], tmp_path),
        strict=True,
    ):
        assert code == 2, (command, told)
        assert re.fullmatch(said, told), (command, told)


def _each_in_one_process(
    copy: Copy, commands: Sequence[Sequence[str]], cwd: Path
) -> list[tuple[int, str]]:
    """Run commands of a copy one after the other; return their exit codes and what they told."""
    script = (
        "import contextlib, io, json, sys\n"
        "from retexo_fl.cli import run_command\n"
        "for command in json.loads(sys.argv[1]):\n"
        "    with contextlib.redirect_stderr(io.StringIO()) as told:\n"
        "        code = run_command(command)\n"
        "    print(json.dumps([code, told.getvalue()]))\n"
    )
    lines = subprocess.check_output(
        [sys.executable, "-P", "-c", script, json.dumps(commands)],
        env=environment(copy.extra, runs_this_checkout=False),
        cwd=cwd,
        text=True,
    ).splitlines()
    return [(code, told) for code, told in map(json.loads, lines)]


def test_the_doctor_says_that_it_is_not_there(copy: Copy, tmp_path: Path) -> None:
    told = copy.retexo("doctor", cwd=tmp_path).stdout
    for addition in ADDITIONS:
        is_told = re.search(rf"{addition.title.lower()}\s+not in this installation", told)
        assert bool(is_told) == (addition in copy.lacks), told


def test_help_lists_the_commands_that_are_there(copy: Copy, tmp_path: Path) -> None:
    done = copy.retexo("--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\W*keys ", done.stdout, re.M)
    assert bool(re.search(r"^\W*bluetooth ", done.stdout, re.M)) == (BLUETOOTH not in copy.lacks)


# ---- the whole tree, without one addition or all of them, and what tests them --------------------


@pytest.fixture(scope="module", params=[*(it.room for it in ADDITIONS), "all"])
def tree(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the source tree, with an environment of its own."""
    made = tmp_path_factory.mktemp("without") / "tree"
    ignored = shutil.ignore_patterns(
        *(".git", ".venv", ".hypothesis", ".*cache*", "*.egg-info", "build", "dist", "runs")
    )
    shutil.copytree(ROOT, made, ignore=ignored)
    room = "additions" if request.param == "all" else f"additions/{request.param}"
    shutil.rmtree(made / "retexo_fl" / room)
    shutil.rmtree(made / "tests" / "unit" / room)
    _remove_importers(made, f"retexo_fl/{room}".replace("/", "."))
    _make_environment(made)
    return made


def _remove_importers(tree: Path, room: str) -> None:
    """Remove a room's own tests and recipes, and what is built on these alone."""
    gone = [room]
    while gone:
        names = "|".join(re.escape(name) for name in gone)
        imports = re.compile(rf"^\s*(?:from|import) (?:{names})\b", re.MULTILINE)
        gone = []
        for path in [
            it for room in ("tests", "sims", "examples") for it in tree.glob(f"{room}/**/*.py")
        ]:
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
    for flowers in Path(sys.executable).parent.glob("fl*w*r*"):
        text = re.sub(r"\A#!.*", f"#!{folder / 'bin' / 'python'}", flowers.read_text("utf-8"))
        (folder / "bin" / flowers.name).write_text(text, encoding="utf-8")
        (folder / "bin" / flowers.name).chmod(0o755)


def _pytest(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(tree / ".venv" / "bin" / "python"), "-m", "pytest", "-q", *arguments],
        cwd=tree,
        env=environment(runs_this_checkout=False),
        text=True,
        capture_output=True,
        check=False,
        timeout=3000,
    )


@pytest.mark.slow
def test_all_other_tests_pass(tree: Path) -> None:
    """Those of a user's `pytest`; all the others are imported."""
    found = _pytest(tree, "-n", "0", "--collect-only", "--assert=plain", "-m", "")
    assert found.returncode == 0, found.stdout[-3000:]
    done = _pytest(tree)
    assert done.returncode == 0, done.stdout[-3000:]
    assert re.search(r"\d{4,} passed", done.stdout), "the tests that are not the rooms' are there"
