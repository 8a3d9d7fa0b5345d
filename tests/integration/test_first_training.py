"""The commands of docs/first-training.md, in their order, leave what the page says."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.support.cli import CommandLine
from tests.support.commands import ROOT

PAGE = (ROOT / "docs" / "first-training.md").read_text(encoding="utf-8")


@pytest.mark.system
def test_the_pages_commands_reach_the_accuracies_of_its_table(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    retexo = CommandLine(capfd)
    for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            command, *arguments = shlex.split(line)
            assert command == "retexo"
            at = [part for word in arguments for part in _expanded(word)]
            retexo.done(*at, *(["--quiet"] if at[0] in ("run", "predict") else []))
    names = ("one", "first", "thirty", "apart")
    rows = re.findall(r"^\| .*? clients?(?: apart)? \| ([\d.]+) \| ([\d.]+) MB \|", PAGE, re.M)
    for name, (accuracy, megabytes) in zip(names, rows, strict=True):
        result = json.loads(Path("runs", name, "result.json").read_text())
        # To a node of 1,258, and what another machine's floating point makes of it.
        assert result["test_accuracy"] == pytest.approx(float(accuracy), abs=0.006), name
        moved = result["bytes"]["payload"]["total"] / 1e6
        assert moved == pytest.approx(float(megabytes), rel=0.2), name
    assert len(list(Path("parts").glob("predictions-*.csv"))) == 3


def _expanded(word: str) -> list[str]:
    return sorted(map(str, Path().glob(word))) if "*" in word else [word]
