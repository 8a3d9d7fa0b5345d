"""``python -m tests.mutants``: change one place of the core and see whether a test fails.

Draws mutants by seed, tries each in one of several copies of this checkout under the temporary
folder, and prints one line for each: ``killed`` with the step that failed, or ``survived``. The
steps are the unit tests that import the changed module, the recorded grid, the room's unit tests.
"""

from __future__ import annotations

import argparse
import compileall
import random
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from tests.mutants.places import ROOMS, Mutant, mutants_of, mutated_files
from tests.mutants.trial import passes

ROOT: Final = Path(__file__).parents[2]


def main() -> int:
    """Draw mutants and try them; return 1 where the tests fail without any change."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=160, help="mutants to draw")
    parser.add_argument("--seed", type=int, default=0, help="other mutants")
    parser.add_argument("--copies", type=int, default=2, help="mutants tried at a time")
    parser.add_argument("--only", default="", help="mutants whose line holds this text")
    asked = parser.parse_args()
    drawn = _draw(asked.count, asked.seed, asked.only)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for index in range(asked.copies):
            copies.put(_copied(Path(folder) / str(index)))
        with ThreadPoolExecutor(asked.copies) as pool:
            if not all(pool.map(lambda room: _passes_unchanged(room, copies), ROOMS)):
                _say("a test fails without any change")
                return 1
            verdicts = list(pool.map(lambda mutant: _tried(mutant, copies), drawn))
    survived = verdicts.count("survived")
    _say(f"{len(drawn)} mutants: {len(drawn) - survived} killed, {survived} survived")
    return 0


def _draw(count: int, seed: int, only: str) -> list[Mutant]:
    every = [
        mutant for path in mutated_files(ROOT / "retexo_fl") for mutant in mutants_of(path, ROOT)
    ]
    named = [mutant for mutant in every if only in str(mutant)]
    drawn = random.Random(seed).sample(named, min(count, len(named)))
    _say(f"{len(drawn)} of {len(every)} mutants, seed {seed}")
    return drawn


def _copied(copy: Path) -> Path:
    ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "*.egg-info")
    shutil.copytree(ROOT, copy, ignore=ignored)
    compileall.compile_dir(copy / "retexo_fl", quiet=2)
    return copy


def _passes_unchanged(room: str, copies: SimpleQueue[Path]) -> bool:
    copy = copies.get()
    try:
        return _failing_step(copy, Path("retexo_fl") / room / "__init__.py") is None
    finally:
        copies.put(copy)


def _tried(mutant: Mutant, copies: SimpleQueue[Path]) -> str:
    copy = copies.get()
    began = time.monotonic()
    path = copy / mutant.path
    original = path.read_text()
    path.write_text(mutant.source)
    try:
        step = _failing_step(copy, mutant.path)
    finally:
        path.write_text(original)
        copies.put(copy)
    verdict = "survived" if step is None else "killed"
    _say(f"{verdict:8} {step or '':8} {time.monotonic() - began:5.0f} s  {mutant}")
    return verdict


def _failing_step(copy: Path, path: Path) -> str | None:
    for name, tests in _steps(copy, path):
        if tests and not passes(copy, tests):
            return name
    return None


def _steps(copy: Path, path: Path) -> list[tuple[str, list[str]]]:
    module = ".".join(path.with_suffix("").parts)
    unit = copy / "tests" / "unit"
    importing = [
        str(test)
        for test in sorted(unit.rglob("test_*.py"))
        if module in (text := test.read_text())
        or f"from {module.rpartition('.')[0]} import {module.rpartition('.')[2]}" in text
    ]
    room = path.parts[1]
    of_room = [
        str(test) for test in sorted((unit / room).rglob("test_*.py")) if str(test) not in importing
    ]
    grid = [str(copy / "tests" / "integration" / "test_recorded_grid.py")]
    return [("module", importing), ("grid", grid), ("room", of_room)]


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
