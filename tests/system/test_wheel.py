"""The wheel: it holds the library and nothing else, and it runs where no source tree is."""

from __future__ import annotations

import json
import re
import stat
import sys
import sysconfig
import venv
import zipfile
from email.parser import HeaderParser
from importlib.metadata import distribution
from pathlib import Path

import pytest

from retexo_fl.fleet.shipped import FILES
from tests.support.commands import ROOT, Marked, environment, offline, run_command

#: Of the library's files: Python, the report's page, and the programs for the kernel.
_SUFFIXES = {".py", ".css", ".js", ".c", ".h", ".o", ".npz"}

pytestmark = [pytest.mark.system]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run_command([sys.executable, "-m", "build", "--wheel", "--outdir", str(folder)], cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs' folder of a second environment that has the wheel.

    What the wheel depends on is taken from the environment of the tests, not downloaded again.
    """
    place = tmp_path_factory.mktemp("second") / "venv"
    venv.create(place, with_pip=True)
    programs = place / "bin"
    first = sysconfig.get_path("purelib")
    second = run_command(
        [str(programs / "python"), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        cwd=place,
    ).strip()
    # A folder named in a .pth file comes after this environment's own, and the .pth files in it
    # (one of them points to the source tree) are not read.
    Path(second, "first.pth").write_text(first + "\n", encoding="utf-8")
    # An old one that some Pythons put into a new environment; it would hide the first's.
    run_command([str(programs / "pip"), "uninstall", "--yes", "setuptools"], cwd=place)
    # Without an index: everything that the wheel requires is found to be installed, or pip fails.
    run_command([str(programs / "pip"), "install", "--no-index", str(wheel)], cwd=place)
    _add_programs_of("flwr", programs)
    return programs


def _add_programs_of(name: str, programs: Path) -> None:
    """Write what pip writes for the programs of a distribution."""
    for entry in distribution(name).entry_points.select(group="console_scripts"):
        script = programs / entry.name
        script.write_text(
            f"#!{programs / 'python'}\nimport sys\nfrom {entry.module} import {entry.attr}\n"
            f"sys.exit({entry.attr}())\n",
            encoding="utf-8",
        )
        script.chmod(script.stat().st_mode | stat.S_IXUSR)


def _names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_wheel_holds_the_whole_library_and_nothing_else(wheel: Path) -> None:
    names = _names(wheel)
    metadata = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    sources = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "retexo_fl").rglob("*")
        if path.suffix in _SUFFIXES or path.name == "py.typed"
    }
    assert {"retexo_fl/py.typed", "retexo_fl/report/page.css", "retexo_fl/report/page.js"} < sources
    programs = "retexo_fl/additions/kernel_path/xdp/programs"
    assert {f"{programs}/aggregate.bpf.c", f"{programs}/aggregate.bpf.o"} < sources
    assert sources <= names
    shipped = {f"retexo_fl/fleet/shipped/{name}" for name in FILES}
    assert shipped <= names
    sources |= shipped
    others = {name for name in names - metadata - sources if not name.endswith("README.md")}
    assert others == set()
    assert {name.split("/")[0] for name in names - metadata} == {"retexo_fl"}


def test_wheel_metadata_names_licence_program_and_dependencies(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (folder,) = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        metadata = HeaderParser().parsestr(archive.read(f"{folder}/METADATA").decode())
        programs = archive.read(f"{folder}/entry_points.txt").decode()
        assert archive.read(f"{folder}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert metadata["Name"] == "retexo-fl"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "retexo = retexo_fl.cli:main" in programs
    required = " ".join(metadata.get_all("Requires-Dist", []))
    assert "flwr[simulation]" in required
    assert "torch<2.14,>=2.6" in required


def test_wheel_is_what_the_second_environment_imports(installed: Path, tmp_path: Path) -> None:
    places = run_command(
        [str(installed / "python"), "-c", "import retexo_fl; print(retexo_fl.__file__)"],
        cwd=tmp_path,
    )
    assert Path(places.strip()).is_relative_to(installed.parent)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--rounds", "3"), id="inline"),
        # Flower's engine from any directory, without a network: test_flower_engine.py.
        pytest.param(
            *[("--engine", "flower", "--rounds", "2", "--clients", "2")],
            id="flower",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_wheel_trains_in_an_empty_directory_without_a_network(
    installed: Path, tmp_path: Path, marked: Marked, options: tuple[str, ...]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    command = offline([str(installed / "retexo"), "run", *options])
    run_command(command, cwd=empty, env=environment(marked.variables, runs_this_checkout=False))
    assert marked.alive() == []
    assert [path.name for path in empty.iterdir()] == ["runs"]
    (run,) = (empty / "runs").iterdir()
    assert {path.name for path in run.iterdir()} >= {
        "config.toml",
        "ledger.csv",
        "metrics.jsonl",
        "model",
        "report.html",
        "result.json",
    }
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    rounds = int(options[options.index("--rounds") + 1])
    assert [stage["rounds"] for stage in result["stages"]] == [rounds, rounds]
    assert result["bytes"]["payload"]["boundary"] > 0
    assert json.loads((run / "status.json").read_text())["state"] == "finished"


#: After README's lines: two runs, and predictions with one of them.
SCRIPT = """
rows = retexo_fl.sweep(
    model=["gcn", "sage"], rounds=2, clients=2, out="runs/two", jobs=2, quiet=True
)
assert [row.error for row in rows] == [""] * 2
assert len({row.path for row in rows}) == 2
parts = retexo_fl.partition(clients=2, out="parts")
made = retexo_fl.Run.open(rows[0].path).predict(parts, quiet=True)
print(made.summary["nodes"])
"""


@pytest.mark.slow
def test_wheel_trains_from_python(installed: Path, tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (tmp_path / "user.py").write_text(lines + SCRIPT, encoding="utf-8")
    python = [str(installed / "python"), "-m"]
    run_command([*python, "mypy", "--strict", "user.py"], cwd=tmp_path, timeout_s=300)
    told = run_command([str(installed / "python"), "user.py"], cwd=tmp_path, timeout_s=300)
    assert told.splitlines()[-1] == "1797"
    assert (tmp_path / "runs" / "from-python" / "report.html").is_file()
    (tmp_path / "user.py").write_text(f"{lines}wrong: str = run.path\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="Incompatible types in assignment"):
        run_command([*python, "mypy", "--strict", "user.py"], cwd=tmp_path, timeout_s=300)
