"""The files and commands of docs/extending*.md do what the documents say, section by section."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from tests.support.agents import agents, assert_same_training, train_with
from tests.support.cli import CommandLine, environment
from tests.support.commands import ROOT
from tests.support.runs import configured, model_bytes, result_of, train

PAGES = [(ROOT / "docs" / f"extending{of}.md").read_text() for of in ("", "-server", "-transport")]
#: A section: its heading and all that follows until the next. Transports have a page without any.
SECTIONS = {
    title: text
    for page in PAGES
    for title, text in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
} | {"Transport": PAGES[-1]}
SMALL = ("--hidden", "8", "--rounds", "3", "--quiet", "--out", "run")
#: What differs from run to run in any case.
PASSING = ("job", "seconds", "hardware", "versions")


class Command(NamedTuple):
    """A command of the document."""

    section: str
    arguments: tuple[str, ...]


def blocks(section: str, language: str) -> list[str]:
    found: list[str] = re.findall(rf"^```{language}\n(.*?)^```$", SECTIONS[section], re.S | re.M)
    return found


COMMANDS = [
    Command(section, tuple(shlex.split(line)[1:]))
    for section in SECTIONS
    for block in blocks(section, "sh")
    for line in block.splitlines()
    if line.startswith("retexo ")
]


def write_files(section: str, folder: Path) -> list[Path]:
    """Write each Python block of a section as the file that its first line names."""
    files = []
    for block in blocks(section, "python"):
        named = re.match(r"# (\w+\.py)\n", block)
        assert named, f"{section}: expected a first line such as '# name.py' in:\n{block}"
        files.append(folder / named[1])
        files[-1].write_text(block, encoding="utf-8")
    return files


def outcome(run: Path) -> dict[str, Any]:
    """Return what a run came to, without what differs in any case."""
    kept = {key: value for key, value in result_of(run).items() if key not in PASSING}
    return {**kept, "model": model_bytes(run)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield an empty folder, where commands are run and modules are found, and forget these."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


def test_documents_have_their_sections_in_order() -> None:
    kinds = ["Layer", "Loss", "Metric", "Split", "Partitioner", "Aggregator"]
    # A transport is one of agents, below; a ServerApp is run by `flwr run`:
    # tests/system/test_flower_strategy.py.
    assert list(SECTIONS) == [*kinds, "ServerApp", "Transport"]
    assert {command.section for command in COMMANDS} == set(kinds)


@pytest.mark.parametrize("command", COMMANDS, ids=[" ".join(c.arguments) for c in COMMANDS])
def test_command_uses_the_extension(
    folder: Path, capfd: pytest.CaptureFixture[str], command: Command
) -> None:
    write_files(command.section, folder)
    retexo = CommandLine(capfd)
    key, extension = next(
        pair
        for pair in zip(command.arguments, command.arguments[1:], strict=False)
        if ":" in pair[1]
    )
    retexo.done(*command.arguments, *SMALL)
    assert f'{key.removeprefix("--")} = "{extension}"' in Path("run/config.toml").read_text()
    place = command.arguments.index(key)
    without = command.arguments[:place] + command.arguments[place + 2 :]
    retexo.done(*without, *SMALL[:-1], "default")
    assert outcome(folder / "run") != outcome(folder / "default")


@pytest.mark.system
def test_extensions_pass_the_contract_tests_of_their_kinds(tmp_path: Path) -> None:
    files = [path for section in SECTIONS for path in write_files(section, tmp_path)]
    tests = [path for path in files if path.name.startswith("test_")]
    assert len(tests) >= 3
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), *map(str, tests)],
        cwd=tmp_path,
        env=environment() | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_agents_train_over_the_transport_of_the_document(tmp_path: Path) -> None:
    write_files("Transport", tmp_path)
    (settings,) = blocks("Transport", "toml")
    named = {"transports": tomllib.loads(settings)["transports"]}
    keys = {"clients": 2, "rounds": 2, "hidden": 8}
    sockets = [f"x-unix:{tmp_path / f'{client}.sock'}" for client in range(2)]
    parts = make_parts(make_config(keys))
    with agents(tmp_path, parts, addresses=sockets, settings=named, start=False) as made:
        for agent in made:
            agent.before = ("hindrances:find_modules_in", str(tmp_path))
            agent.start()
        run = train_with(made, configured(tmp_path / "agents", **keys))
        (peer,) = made[0].status()["peers"]
    assert set(peer["channels"]) == {"x-unix"}
    assert peer["channels"]["x-unix"]["tls_bytes_sent"] > 0
    assert_same_training(run, train(tmp_path / "inline", **keys))
