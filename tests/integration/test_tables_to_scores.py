"""The commands of docs/tables-to-scores.md lead from tables to scores of accounts."""

from __future__ import annotations

import csv
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from retexo_fl.report.read import read_run
from tests.support.cli import CommandLine, environment
from tests.support.commands import ROOT
from tests.support.printed import without_numbers
from tests.support.runs import model_bytes

PAGE = (ROOT / "docs" / "tables-to-scores.md").read_text(encoding="utf-8")
SMALL = ("--accounts", "400", "--transfers", "1600")
#: A training that takes a second.
SHORT = ("--rounds", "2", "--hidden", "8", "--quiet")


def _blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.system
def test_commands_of_the_page_lead_from_tables_to_scores(
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (toml,) = _blocks("toml")
    Path("bank.toml").write_text(toml)
    assert tomllib.loads(toml)["model"] == "rel-sage"
    retexo = CommandLine(capfd)
    told = {}
    for line in "".join(_blocks("sh")).splitlines():
        command, *arguments = shlex.split(line)
        if command == "retexo":
            caplog.clear()
            retexo.done(*arguments, *(SHORT if arguments[0] == "run" else ()))
            told[arguments[-1]] = caplog.text
        elif command == "python":
            script, *options = arguments
            subprocess.run(
                [sys.executable, ROOT / script, *options, *SMALL], env=environment(), check=True
            )
        else:
            done = subprocess.run(
                ["sh", "-c", line], capture_output=True, text=True, timeout=60, check=True
            )
            ranked = done.stdout.splitlines()
    heads = [block.splitlines()[0] for block in _blocks("text")]
    for name, head in zip(("accounts", "devices", "transfers"), heads, strict=False):
        assert Path(f"bank/{name}.csv").read_text().splitlines()[0] == head
    said = without_numbers(told["runs/four"])
    for line in _blocks("text")[-1].splitlines():
        assert without_numbers(line) in said
    shares = [float(row.rpartition(",")[2]) for row in ranked]
    assert len(shares) == 10
    assert shares == sorted(shares, reverse=True)
    with Path("scores/predictions-0.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["key", "class", "p_no", "p_yes"]
    with Path("region/accounts.csv").open(newline="") as file:
        assert {row["key"] for row in rows} == {row["key"] for row in csv.DictReader(file)}
    six = read_run(Path("runs/six")).result
    assert six is not None
    assert [one.name for one in six.types] == ["accounts", "devices", "merchants"]
    assert model_bytes(Path("runs/parts")) == model_bytes(Path("runs/four"))
    with Path("runs/months/cuts.csv").open(newline="") as file:
        assert {row["state"] for row in csv.DictReader(file)} == {"finished"}
    assert json.loads(Path("runs/six/result.json").read_text())["clients"] == 3
