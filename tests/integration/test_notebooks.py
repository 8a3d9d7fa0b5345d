"""The notebooks of docs/ run from their first cell to their last, and say what they say there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import pytest

from tests.support.notebooks import NOTEBOOKS, count_figures, executed, printed
from tests.support.printed import numbers_of, units_of, without_numbers

#: Of a committed notebook, figures included.
MOST_BYTES = 80_000
#: Lines about trainings that end by validation: on another processor, whose arithmetic differs in
#: the last bit, a stage may end some rounds earlier or later, and its megabytes with it.
ENDED_BY_VALIDATION = {
    "first-training": ("",),
    "lazy-and-others": ("lean ", "standard ", "BNS ", "FedAvg "),
}


#: Half a minute each, of what others begin with.
LONG: Final = ("lazy-and-others", "own-pyg-data", "three-branches")


@pytest.mark.system
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.slow] if path.stem in LONG else [], id=path.stem)
        for path in NOTEBOOKS
    ],
)
@pytest.mark.filterwarnings("default")  # what Jupyter's own packages warn of
def test_outputs_are_those_of_a_run(path: Path, tmp_path: Path) -> None:
    committed = json.loads(path.read_text(encoding="utf-8"))
    run = executed(path, tmp_path)
    assert count_figures(run) == count_figures(committed)
    for new, old in zip(printed(run), printed(committed), strict=True):
        assert differences(new, old, ENDED_BY_VALIDATION.get(path.stem)) == []


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.filterwarnings("default")
def test_all_run_again_in_one_folder_in_another_order(tmp_path: Path) -> None:
    said: dict[str, list[str]] = {}
    for path in (*NOTEBOOKS, *reversed(NOTEBOOKS)):
        told = printed(executed(path, tmp_path))
        assert said.setdefault(path.stem, told) == told


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_whatever_a_notebook_writes_it_replaces(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    writes = len(re.findall(r"\bout=|--out |\.predict\((?!.*\bout=)", code))
    # Keys that several calls share are written once.
    shared = code.count("**keys)") - 1 if "keys = dict(\n" in code else 0
    assert writes == len(re.findall(r"\boverwrite=True|--overwrite\b", code)) + shared > 0


def differences(new: str, old: str, by_validation: tuple[str, ...] | None) -> list[str]:
    """Return the lines that do not say the same."""
    lines = list(zip(new.splitlines(), old.splitlines(), strict=True))
    return [
        f"{one!r} is not {other!r}"
        for one, other in lines
        if not says(one, other, by_validation is not None and other.startswith(by_validation))
    ]


def says(new: str, old: str, rounds_vary: bool) -> bool:
    """Say whether a line tells the same but for what the arithmetic of another processor changes.

    Whole numbers and words are the same; a score differs by 0.02 at most, one in a list's first
    five by one; bytes by a fiftieth (how well they are packed), or, with their rounds, by 30 %.
    """
    if without_numbers(new) != without_numbers(old):
        return False
    rel = 0.3 if rounds_vary else 0.02
    for number, expected, unit in zip(numbers_of(new), numbers_of(old), units_of(old), strict=True):
        if unit == "MB":
            tolerance = max(0.051, rel * float(expected))
        elif unit == "are":
            tolerance = 1
        else:
            tolerance = 0.0201 if "." in expected else 0
        if abs(float(number) - float(expected)) > tolerance:
            return False
    return True


@pytest.mark.parametrize(
    ("new", "old", "rounds_vary", "same"),
    [
        ("accuracy 0.98, 1.0 MB", "accuracy 0.97, 0.9 MB", True, True),
        ("accuracy 0.98, 1.3 MB", "accuracy 0.98, 0.9 MB", True, False),
        ("moved 33.4 MB", "moved 33.5 MB", False, True),
        ("moved 32.5 MB", "moved 33.5 MB", False, False),
        ("accuracy 0.951", "accuracy 0.975", True, False),
        ("r2 0.7", "r2 0.9", True, False),
        ("1,361 nodes", "1,362 nodes", False, False),
        ("of the first five 4 are mules", "of the first five 5 are mules", False, True),
        ("of the first five 2 are mules", "of the first five 5 are mules", False, False),
        ("north 0.98", "south 0.98", False, False),
    ],
)
def test_a_line_that_says_something_else_is_noticed(
    new: str, old: str, rounds_vary: bool, same: bool
) -> None:
    assert says(new, old, rounds_vary) is same


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_notebooks_are_small_and_tell_of_no_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text) < MOST_BYTES
    assert not re.search(r"/(?:home|tmp|root|work|usr)/", text)
    counts = [cell.get("execution_count", 0) for cell in json.loads(text)["cells"]]
    assert None not in counts
