"""A finished run trained on is the run that had so many rounds from the start, bit for bit.

Agents and Flower's simulation: tests/system/test_extended_run.py.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import retexo_fl
from retexo_fl.cli import run_command
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.config.file import read_config_file
from retexo_fl.errors import ConfigurationError, RunDirectoryError
from retexo_fl.simulation.inline_engine import run_inline
from tests.support.each_choice import by_day
from tests.support.runs import (
    events_of,
    ledger_of,
    model_bytes,
    result_of,
    stop_after,
    train,
)

KEYS: dict[str, Any] = {"rounds": 4, "clients": 3, "hidden": 16, "model": "gcn"}
#: By what a run does that has state from one round for the next.
KINDS: dict[str, dict[str, Any]] = {
    "layer by layer": {},
    "one layer": {"layers": 1},
    "standard": {"algorithm": "standard"},
    "bns": {"algorithm": "bns"},
    "robust": {"aggregator": "median"},
    "lbfgs of few bits": {"optimizer": "lbfgs", "update_bits": 8, "weight_bits": 8},
    "scaffold": {"local_steps": 3, "local_correction": "scaffold", "local_optimizer": "sgd"},
    "links": {"task": "links", "split": "auto"},
    "patience": {"rounds": 30, "patience": 2, "learning_rate": 0.05},
}
MORE = 3


def said(run: Path) -> list[dict[str, Any]]:
    """Return the rounds of a run's history, without times and what they were to be at most."""
    passing = ("seconds", "waited_s", "rounds", "bytes_payload", "time_s")
    rounds = [event for event in events_of(run) if event["event"] == "round"]
    return [{key: event[key] for key in event if key not in passing} for event in rounds]


def extended(out: Path) -> Path:
    """Train on; return the run that had as many rounds from the start."""
    retexo_fl.Run.open(out).extend(rounds=MORE, quiet=True)
    whole = out.with_name("whole")
    config = replace(make_config(read_config_file(out / "config.toml")), out=str(whole))
    run_inline(config, make_parts(config))
    return whole


@pytest.mark.parametrize(
    "kind",
    by_day(
        KINDS,
        *("layer by layer", "standard", "lbfgs of few bits", "scaffold", "patience"),
        others=pytest.mark.slow,
    ),
)
def test_extended_run_is_the_longer_one(tmp_path: Path, kind: str) -> None:
    out = train(tmp_path / "run", **{**KEYS, **KINDS[kind]})
    before = result_of(out)["stages"]
    whole = extended(out)
    assert model_bytes(out) == model_bytes(whole)
    assert said(out) == said(whole)
    after = result_of(out)
    assert after["stages"] == result_of(whole)["stages"]
    assert after["test_accuracy"] == result_of(whole)["test_accuracy"]
    assert after["stages"][:-1] == before[:-1]
    assert after["stages"][-1]["rounds"] == before[-1]["rounds"] + MORE
    assert after["attempts"] == 2
    # Every update crossed once; what is before the rounds is repeated, as by any resume.
    crossed = [ledger_of(run).sum(kind="updates_up", purpose="train").raw for run in (out, whole)]
    assert crossed[0] == crossed[1] > 0


def test_interrupted_extension_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    out = train(tmp_path / "run", **KEYS)
    with pytest.raises(KeyboardInterrupt):
        train(out, stop_after(5, stage=1), **KEYS, last_rounds=7, resume=out)
    # It is a run to resume now, of as many rounds as it was to have.
    assert not (out / "result.json").exists()
    assert json.loads((out / "status.json").read_text())["state"] == "interrupted"
    assert make_config(read_config_file(out / "config.toml")).last_rounds == 7
    assert run_command(["run", "--resume", str(out), "--quiet"]) == 0
    assert model_bytes(out) == model_bytes(train(tmp_path / "whole", **KEYS, last_rounds=7))
    assert said(out) == said(tmp_path / "whole")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line that a command says which exits with 2."""
    assert run_command(["run", *arguments, "--quiet"]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    return line


def test_what_cannot_be_extended_is_refused_and_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    solved = train(tmp_path / "solved", **KEYS, solver="ridge", basis="supervised")
    half = tmp_path / "half"
    with pytest.raises(KeyboardInterrupt):
        train(half, stop_after(2), **KEYS)
    capsys.readouterr()
    files = [path for run in (solved, half) for path in run.rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    extend = ("--extend", "5")
    assert "solver ridge" in refused(capsys, "--resume", str(solved), *extend)
    assert "has not finished" in refused(capsys, "--resume", str(half), *extend)
    assert "expected --resume RUN" in refused(capsys, *extend)
    assert "--extend" in refused(capsys, "--resume", str(solved), "--extend", "-1")
    assert "last-rounds: cannot be given" in refused(
        capsys, "--resume", str(half), "--last-rounds", "9"
    )
    with pytest.raises(ConfigurationError, match="rounds: 0; expected at least 1"):
        retexo_fl.Run.open(solved).extend(rounds=0)
    assert before == {path: path.read_bytes() for path in before}


def test_a_run_is_not_made_shorter(tmp_path: Path) -> None:
    out = train(tmp_path / "run", **KEYS, last_rounds=6)
    for last_rounds in (0, 5):
        with pytest.raises(RunDirectoryError, match=rf"last-rounds: {last_rounds}; .* 6 rounds"):
            train(out, **KEYS, last_rounds=last_rounds, resume=out)
    assert result_of(out)["stages"][-1]["rounds"] == 6
