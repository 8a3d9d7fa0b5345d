"""What ``retexo plan`` and ``retexo run`` say about memory, and what they refuse."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from retexo_fl.cli import run_command
from retexo_fl.client import run_memory
from retexo_fl.graph.sources.synthetic import make

SMALL = ("--dataset", "synthetic:nodes=200,degree=6,features=8", "--clients", "3", "--hidden", "8")


def test_run_beyond_memory_is_refused_before_its_graph_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_memory, "available_bytes", lambda: 24 * 2**30)
    made: list[object] = []
    monkeypatch.setattr(make, "edge_numbers", made.append)
    products = ["--dataset", "synthetic:products", "--clients", "8", "--layers", "3"]
    products += ["--model", "gat"]
    out = tmp_path / "run"
    assert run_command(["run", *products, "--hidden", "256", "--out", str(out)]) == 2
    assert not made
    assert not out.exists()
    refusal = capsys.readouterr().err
    assert refusal.startswith("retexo: error: memory: stage 1 ")
    assert re.search(r" \d{2,3}(\.\d)? GB; expected .* 25\.8 GB .*--force\n$", refusal)


def test_run_whose_parts_do_not_fit_is_refused_unless_forced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_memory, "available_bytes", lambda: 2**20)
    out = tmp_path / "run"
    command = ["run", "--rounds", "1", "--clients", "2", "--hidden", "8", "--out", str(out)]
    assert run_command(command) == 2
    assert not out.exists()
    assert re.search(r"memory: .*; expected .* 1\.0 MB", capsys.readouterr().err)
    assert run_command([*command, "--force"]) == 0
    assert re.search(r"memory: .* 1\.0 MB", capsys.readouterr().err)


def test_run_says_what_it_takes_unless_it_is_to_be_quiet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for quiet in ([], ["--quiet"]):
        out = tmp_path / f"run{len(quiet)}"
        assert run_command(["run", *SMALL, "--rounds", "1", "--out", str(out), *quiet]) == 0
        said = "retexo: memory: about 30" in capsys.readouterr().err
        assert said is not bool(quiet)


def test_plan_tells_each_phase(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["plan", *SMALL, "--layers", "3", "--json"]) == 0
    memory = json.loads(capsys.readouterr().out)["memory"]
    assert list(memory["phases"]) == ["parts", "stage 0", "stage 1", "stage 2"]
    assert 3e8 < memory["phases"]["stage 2"] < 4e8
    assert memory["available"] > 2**28
    assert run_command(["plan", *SMALL]) == 0
    assert "memory, about" in capsys.readouterr().out
