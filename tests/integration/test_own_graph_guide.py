"""The example of docs/your-own-graph.md does what the guide says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from retexo_fl.graph import open_partition
from tests.support.cli import CommandLine
from tests.support.commands import ROOT

GUIDE = ROOT / "docs" / "your-own-graph.md"


def test_guide_makes_parts_of_its_tables_and_trains(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = GUIDE.read_text(encoding="utf-8").partition("## Parts that clients make themselves")[2]
    text = text.partition("\n## ")[0]
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    tables = [content for kind, content in blocks if kind == "csv"]
    names = re.findall(r"`((?:north|south)-\w+\.csv)`", text)
    assert len(tables) == len(names) == 6
    for name, content in zip(names, tables, strict=True):
        Path(name).write_text(content)
    (peers,) = (content for kind, content in blocks if kind == "toml")
    Path("peers.toml").write_text(peers)
    retexo = CommandLine(capfd)
    commands = [line for kind, content in blocks if kind == "sh" for line in content.splitlines()]
    assert len(commands) == 4
    for command in commands:
        assert command.startswith("retexo ")
        retexo.done(*shlex.split(command)[1:])
    north = open_partition(Path("parts/part-0"))
    assert north.node_keys.tolist() == [b"ann", b"bob", b"cid"]
    assert north.boundary_keys.tolist() == [b"dan", b"eve"]
    assert Path("runs/own/result.json").is_file()
