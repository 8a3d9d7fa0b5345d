"""What is called while a run goes on, and what a run that is there holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import retexo_fl
from retexo_fl.api.rows import Rows
from retexo_fl.errors import ConfigurationError, RunDirectoryError

SMALL: dict[str, Any] = {"clients": 2, "hidden": 4, "rounds": 2, "layers": 1, "quiet": True}


class OnEnd:
    """Could be called, and has a method that is called instead."""

    def __init__(self) -> None:
        self.ended: list[bool] = []

    def __call__(self, event: object) -> None:
        raise AssertionError(event)

    def on_end(self, run: retexo_fl.Run) -> None:
        self.ended.append(run.is_finished)


class OnRound:
    def __init__(self) -> None:
        self.rounds: list[int] = []

    def on_round(self, event: retexo_fl.RoundClosed) -> None:
        self.rounds.append(event.round)


def test_callbacks_are_called_by_their_methods_alone(tmp_path: Path) -> None:
    at_end, by_round = OnEnd(), OnRound()
    run = retexo_fl.run(out=tmp_path / "run", callbacks=[at_end, by_round], **SMALL)
    assert (at_end.ended, by_round.rounds) == ([True], [1, 2])
    with pytest.raises(ConfigurationError, match="rounds: 0; expected at least 1"):
        run.extend(rounds=0)
    result = (run.path / "result.json").read_bytes()
    assert run.extend(rounds=1, callbacks=[by_round], quiet=True) is run
    assert by_round.rounds[-1] == 3
    assert run.config.last_rounds == 3
    assert (run.path / "result.json").read_bytes() != result
    with pytest.raises(RunDirectoryError, match="holds no run"):
        retexo_fl.Run.open(tmp_path)
    # A model of a run that another opened imports nothing that it was not allowed.
    assert run.allow_plugins
    assert not retexo_fl.Run.open(run.path).allow_plugins


def test_rows_are_a_sequence_with_cells() -> None:
    rows = Rows(range(3), lambda row: {"number": row, "square": row**2})
    assert (len(rows), rows[1], rows[-1], rows[:2]) == (3, 1, 2, (0, 1))
    assert [*rows] == [0, 1, 2]
    assert rows.cells()[2] == {"number": 2, "square": 4}
