"""What tells how to install: nothing asks an index for this project; what a release runs."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

_ROOT = Path(__file__).parents[2]
#: Places whose texts a user reads.
_READ = ("README.md", "CONTRIBUTING.md", "docs", "edge", "server", "clients", "examples", "sims")
_SUFFIXES = {".md", ".py", ".sh", ".yaml", ".toml", ".service", ".conf"}


def _texts() -> list[tuple[Path, str]]:
    places = [_ROOT / name for name in (*_READ, "retexo_fl")]
    files = [path for place in places for path in (place.rglob("*") if place.is_dir() else [place])]
    return [
        (path, path.read_text("utf-8"))
        for path in files
        if path.suffix in _SUFFIXES and "results" not in path.parts
    ]


@pytest.mark.parametrize(
    "script",
    sorted(
        path.relative_to(_ROOT)
        for name in ("edge", "server")
        for path in _ROOT.glob(f"{name}/*.sh")
    ),
    ids=str,
)
@pytest.mark.parametrize("word", ["--help", "-h"])
def test_every_script_says_how_it_is_called(script: Path, word: str) -> None:
    done = subprocess.run(
        ["sh", _ROOT / script, word], capture_output=True, text=True, check=False, timeout=20
    )
    assert (done.returncode, done.stderr) == (0, "")
    purpose, _, call, *_ = done.stdout.splitlines()
    assert purpose.endswith(".")
    assert call.startswith(f"  {script} ")
    assert "set -eu" not in done.stdout


def test_nobody_is_told_to_get_this_project_from_an_index() -> None:
    by_name = re.compile(
        r"(?:pip|uv) (?:install|add|pip install)\b[^\n|`]*?(?<![\w./~-])retexo[-_]fl"
    )
    found = 0
    for path, text in _texts():
        for line in by_name.findall(text):
            found += 1
            allowed = "--no-index" in line or "never" in text[: text.index(line)][-60:]
            assert allowed, f"{path}: {line}"
    # It sees the lines that are for an offline bundle.
    assert found >= 2


def test_a_release_runs_parts_that_there_are_on_every_python_that_is_supported() -> None:
    workflow = yaml.safe_load((_ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8"))
    # "on" is a truth value of YAML 1.1.
    assert workflow[True]["push"]["tags"] == ["v*"]
    test, release = workflow["jobs"]["test"], workflow["jobs"]["release"]
    matrix = test["strategy"]["matrix"]
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["requires-python"] == f">={matrix['python'][0]}"
    assert matrix["python"] == ["3.11", "3.12", "3.13"]
    script = (_ROOT / ".ci" / "run").read_text("utf-8")
    (parts,) = re.findall(r'^all_parts="(.*)"$', script, re.M)
    assert sorted(" ".join(matrix["part"]).split()) == sorted(parts.split())
    (run,) = [step["run"] for step in test["steps"] if "run" in step]
    assert run == ".ci/run ${{ matrix.part }}"
    assert release["needs"] == "test"


def test_ci_refuses_a_part_that_there_is_not() -> None:
    done = subprocess.run(
        ["bash", _ROOT / ".ci" / "run", "plain", "wrong"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == ".ci/run: 'wrong': expected some of static plain system\n"
