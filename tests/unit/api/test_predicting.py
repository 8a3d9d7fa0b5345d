"""Which predictions are those that are there already, and by what an inference goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import retexo_fl
from retexo_fl.errors import ConfigurationError, RetexoError
from tests.support.cli import CommandLine
from tests.support.predictions import SMALL, cut, summary_of, write_small


@pytest.fixture
def run(tmp_path: Path) -> retexo_fl.Run:
    """Return a run over the two parts in ``parts``."""
    write_small(tmp_path / "small.npz")
    keys: dict[str, Any] = {**SMALL, "data_dir": tmp_path, "clients": 2}
    cut(tmp_path / "parts", **keys)
    return retexo_fl.run(out=tmp_path / "run", rounds=1, hidden=4, quiet=True, **keys)


def test_predictions_of_other_parts_or_another_policy_are_others(
    tmp_path: Path, run: retexo_fl.Run
) -> None:
    out = tmp_path / "out"
    first = run.predict(tmp_path / "parts", out=out, quiet=True)
    inode = first.files[0].stat().st_ino
    # A deadline is no part of what was computed.
    again = run.predict(tmp_path / "parts", out=out, quiet=True, exchange_deadline_s=9.0)
    assert again.files[0].stat().st_ino == inode
    arrays = dict(np.load(tmp_path / "small.npz"))
    np.savez(tmp_path / "small.npz", **{**arrays, "x": arrays["x"] + 1})
    cut(tmp_path / "moved", **SMALL, data_dir=tmp_path, clients=2)
    others: list[tuple[str, dict[str, Any]]] = [
        ("moved", {}),
        ("parts", {"missing_peers": "drop"}),
        ("parts", {"form": "npz"}),
    ]
    for parts, keys in others:
        with pytest.raises(ConfigurationError, match=f"out: {out} holds other predictions"):
            run.predict(tmp_path / parts, out=out, quiet=True, **keys)
    made = run.predict(tmp_path / "moved", out=out, quiet=True, overwrite=True)
    assert made.files[0].read_bytes() != b""
    assert made.summary["parts_digest"] != first.summary["parts_digest"]


def test_the_command_goes_by_its_own_policies_and_engine(
    tmp_path: Path,
    run: retexo_fl.Run,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    retexo = CommandLine(capfd)
    command = ("predict", run.path, "--partitions", tmp_path / "parts", "--quiet")
    retexo.done(*command, "--missing-peers", "drop")
    assert run.config.missing_peers == "wait"
    assert summary_of(tmp_path / "parts")["missing_peers"] == "drop"

    def refuse(*_: object, ray_address: str) -> None:
        assert not ray_address
        raise RetexoError("on Flower")

    monkeypatch.setattr("retexo_fl.api.flower_predict.predict_on_flower", refuse)
    assert "on Flower" in retexo(*command, "--engine", "flower", "--overwrite").err
    told = retexo.refused(*command, "--engine", "deployment", "--overwrite")
    assert told.startswith("engine: a deployment predicts where its clients' parts are")


@pytest.mark.parametrize(
    ("source", "keys", "told"),
    [
        (None, {}, "source: missing; expected parts or a graph"),
        ("parts", {"nodes": "n.csv"}, "nodes: cannot be given with partitions"),
        (None, {"nodes": "n.csv", "edges": "e.csv"}, "out: missing; expected a folder"),
        ("parts", {"hidden": 3}, "hidden: cannot be chosen for a prediction"),
        ("parts", {"clients": 3}, "clients: cannot be chosen for a prediction"),
        ("parts", {"form": "text"}, "format: got 'text'"),
    ],
)
def test_what_a_prediction_does_not_take_is_named(
    tmp_path: Path, run: retexo_fl.Run, source: str | None, keys: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        run.predict(None if source is None else tmp_path / source, quiet=True, **keys)
