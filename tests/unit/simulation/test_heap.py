"""What a process with thousands of clients asks of Python's collector."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from retexo_fl.client.preparation import make_parts
from retexo_fl.simulation.heap import SELDOM_COLLECTED
from retexo_fl.simulation.inline_engine import run_inline
from tests.support.runs import configured


def test_everything_is_collected_a_tenth_as_often_while_runs_last() -> None:
    before = gc.get_threshold()
    seldom = (*before[:2], 10 * before[2])
    with SELDOM_COLLECTED:
        assert gc.get_threshold() == seldom
        with pytest.raises(KeyError), SELDOM_COLLECTED:
            raise KeyError
        assert gc.get_threshold() == seldom
    assert gc.get_threshold() == before


def test_it_is_so_while_a_run_lasts(tmp_path: Path) -> None:
    before = gc.get_threshold()
    config = configured(tmp_path / "run", clients=2, rounds=1, layers=1)
    seen = set()
    run_inline(config, make_parts(config), [lambda event: seen.add(gc.get_threshold())])
    assert seen == {(*before[:2], 10 * before[2])}
    assert gc.get_threshold() == before
