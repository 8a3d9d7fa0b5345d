"""The notebooks of docs/ run from their first cell to their last, and say what they say there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.notebooks import NOTEBOOKS, count_figures, executed, printed
from tests.support.printed import numbers_of, without_numbers

#: Of a committed notebook, figures included.
MOST_BYTES = 80_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
@pytest.mark.filterwarnings("default")  # what Jupyter's own packages warn of
def test_outputs_are_those_of_a_run(path: Path, tmp_path: Path) -> None:
    committed = json.loads(path.read_text(encoding="utf-8"))
    run = executed(path, tmp_path)
    assert count_figures(run) == count_figures(committed)
    for new, old in zip(printed(run), printed(committed), strict=True):
        assert without_numbers(new) == without_numbers(old)
        for number, expected in zip(numbers_of(new), numbers_of(old), strict=True):
            # Another machine's arithmetic may end a stage some rounds earlier or later: figures of
            # two decimals are scores, others are bytes and counts.
            is_score = len(expected.partition(".")[2]) == 2
            rel = 0.0 if is_score else 0.3
            assert float(number) == pytest.approx(float(expected), rel=rel, abs=0.021)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_notebooks_are_small_and_tell_of_no_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text) < MOST_BYTES
    assert not re.search(r"/(?:home|tmp|root|work|usr)/", text)
    counts = [cell.get("execution_count", 0) for cell in json.loads(text)["cells"]]
    assert None not in counts
