"""``--json``: one value on standard output, all else on standard error."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import PROGRAM, CommandLine, Ended, environment

SMALL = ("--rounds", "2", "--hidden", "8")


def by_itself(*arguments: str | Path) -> Ended:
    done = subprocess.run(
        [*PROGRAM, *map(str, arguments), "--json"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    return Ended(code=done.returncode, out=done.stdout, err=done.stderr)


def value_of(ended: Ended) -> Any:
    assert ended.code == 0, ended.err
    return json.loads(ended.out)


def test_run_and_predict_print_what_their_files_hold(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    retexo, run, parts = CommandLine(capfd), tmp_path / "run", tmp_path / "parts"
    retexo.done("partition", "make", "--clients", "2", "--out", parts)
    trained = retexo("run", "--partitions", parts, *SMALL, "--out", run, "--json")
    written = json.loads((run / "result.json").read_text(encoding="utf-8"))
    assert value_of(trained) == {"run": str(run), "result": written}
    assert "stage 1: done" in trained.err

    predicted = retexo("predict", run, "--partitions", parts, "--json")
    found = value_of(predicted)
    summary = json.loads((parts / "predictions.json").read_text(encoding="utf-8"))
    assert found["folder"] == str(parts)
    assert found["summary"] == summary
    assert "exchange 1: closed" in predicted.err

    again = retexo("predict", run, "--partitions", parts, "--json")
    assert value_of(again) == found
    assert again.err.splitlines() == ["retexo: made already; --overwrite makes them again"]


def test_datasets_are_listed() -> None:
    first = value_of(by_itself("datasets"))[0]
    assert first["name"] == "digits"
    assert (first["nodes"], first["features"], first["classes"]) == (1797, 64, 10)


def test_bad_input_prints_nothing_but_its_line(tmp_path: Path) -> None:
    ended = by_itself("run", "--clients", "-1", "--out", tmp_path / "run")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("retexo: error: clients: ")
    assert len(ended.err.splitlines()) == 1
