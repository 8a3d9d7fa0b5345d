"""What tells how to install: nothing asks an index for this project; what a release runs."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

_ROOT = Path(__file__).parents[2]
#: Places whose texts a user reads.
_READ = (
    *("README.md", "CONTRIBUTING.md", "docs", "containers", "edge", "server", "clients"),
    *("examples", "sims"),
)
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
        for name in ("edge", "server", "clients")
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


def _workflow(name: str) -> dict[Any, Any]:
    path = _ROOT / ".github" / "workflows" / f"{name}.yml"
    # "on" is a truth value of YAML 1.1.
    found: dict[Any, Any] = yaml.safe_load(path.read_text("utf-8"))
    return {"on": found.pop(True), **found}


def _parts_of_ci() -> tuple[list[str], list[str]]:
    """Return the parts of .ci/run that it runs by itself, and those of each night."""
    script = (_ROOT / ".ci" / "run").read_text("utf-8")
    found = [re.findall(rf'^{name}_parts="(.*)"$', script, re.M) for name in ("all", "nightly")]
    ((by_itself,), (nightly,)) = found
    return by_itself.split(), nightly.split()


def test_each_change_and_each_night_and_a_release_run_the_parts_that_there_are() -> None:
    by_itself, nightly = _parts_of_ci()
    checks, night, release = map(_workflow, ("checks", "night", "release"))
    assert {"push", "pull_request", "workflow_call"} == set(checks["on"])
    run = checks["jobs"]["run"]
    assert [step["run"] for step in run["steps"] if "run" in step] == [".ci/run ${{ matrix.part }}"]
    by_change = {
        name: re.findall(r"'(\[.*\])'", run["strategy"]["matrix"][name])
        for name in ("python", "part")
    }
    assert by_change == {"python": ['["3.11"]'], "part": ['["static plain"]']}
    assert list(night["on"]) == ["schedule", "workflow_dispatch"]
    assert release["on"]["push"]["tags"] == ["v*"]
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for workflow, parts, pythons in (
        (night, [*nightly, "system"], ["3.11"]),
        (release, by_itself, ["3.11", "3.12", "3.13"]),
    ):
        test = workflow["jobs"]["test"]
        assert test["uses"] == "./.github/workflows/checks.yml"
        asked = {name: json.loads(test["with"][name]) for name in ("python", "part")}
        assert " ".join(asked["part"]).split() == parts
        assert asked["python"] == pythons
        assert project["requires-python"] == f">={pythons[0]}"
        assert set(test["with"]) == set(checks["on"]["workflow_call"]["inputs"])
    assert release["jobs"]["release"]["needs"] == "test"


def test_tests_know_of_no_folder_beside_the_checkout_but_by_its_one_name() -> None:
    """So that those which .ci/run starts with another folder see what a user's machine has."""
    naming = [
        path.relative_to(_ROOT).as_posix()
        for room in ("unit", "integration", "system", "support", "fuzz", "guest", "bench")
        for path in sorted((_ROOT / "tests" / room).rglob("*.py"))
        if re.search(r'parent.* / ["]shared"', path.read_text("utf-8"))
    ]
    assert naming == ["tests/support/data.py"]


def test_ci_refuses_a_part_that_there_is_not() -> None:
    done = subprocess.run(
        ["bash", _ROOT / ".ci" / "run", "plain", "wrong"],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == ".ci/run: 'wrong': expected some of static plain system slow benches\n"
