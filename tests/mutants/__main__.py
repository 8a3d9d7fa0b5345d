"""``python -m tests.mutants``: change one place of the package and see whether a test fails.

Draws mutants by seed, tries each in one of several copies of this checkout under the temporary
folder, and prints one line for each: ``killed`` with the step that failed, or ``survived``. The
steps are the unit tests that import the changed module, the room's unit tests, and the integration
tests that ``guards.py`` names for the room.
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

from tests.mutants.guards import steps_of
from tests.mutants.places import Mutant, mutants_of
from tests.mutants.trial import passes

ROOT: Final = Path(__file__).parents[2]


def main() -> int:
    """Draw mutants and try them; return 1 where the tests fail without any change."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=160, help="mutants to draw")
    parser.add_argument("--seed", type=int, default=0, help="other mutants")
    parser.add_argument("--copies", type=int, default=2, help="mutants tried at a time")
    parser.add_argument("--only", default="", help="mutants whose line holds this text")
    parser.add_argument("--quick", action="store_true", help="try unit tests only")
    asked = parser.parse_args()
    drawn = _draw(asked.count, asked.seed, asked.only)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for index in range(asked.copies):
            copies.put(_copied(Path(folder) / str(index)))
        with ThreadPoolExecutor(asked.copies) as pool:
            guards = _tests_of(drawn, quick=asked.quick)
            if not all(list(pool.map(lambda test: _passes_unchanged(test, copies), guards))):
                return 1
            verdicts = list(pool.map(lambda mutant: _tried(mutant, copies, asked.quick), drawn))
    survived = verdicts.count("survived")
    _say(f"{len(drawn)} mutants: {len(drawn) - survived} killed, {survived} survived")
    return 0


def _draw(count: int, seed: int, only: str) -> list[Mutant]:
    files = sorted((ROOT / "retexo_fl").rglob("*.py"))
    every = [mutant for path in files for mutant in mutants_of(path, ROOT)]
    named = [mutant for mutant in every if only in str(mutant)]
    drawn = random.Random(seed).sample(named, min(count, len(named)))
    _say(f"{len(drawn)} of {len(named)} mutants, seed {seed}")
    return drawn


def _tests_of(drawn: list[Mutant], *, quick: bool) -> list[Path]:
    steps = (_steps(mutant.path, ROOT, quick=quick) for mutant in drawn)
    return sorted(
        {test.relative_to(ROOT) for tried in steps for _, tests in tried for test in tests}
    )


def _steps(path: Path, root: Path, *, quick: bool) -> list[tuple[str, list[Path]]]:
    steps = steps_of(path, root)
    return [(name, tests) for name, tests in steps if tests and (name != "together" or not quick)]


def _copied(copy: Path) -> Path:
    ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "*.egg-info")
    shutil.copytree(ROOT, copy, ignore=ignored)
    compileall.compile_dir(copy / "retexo_fl", quiet=2)
    return copy


def _passes_unchanged(test: Path, copies: SimpleQueue[Path]) -> bool:
    copy = copies.get()
    try:
        passed = passes(copy, [copy / test])
    finally:
        copies.put(copy)
    if not passed:
        _say(f"{test} fails without any change")
    return passed


def _tried(mutant: Mutant, copies: SimpleQueue[Path], quick: bool) -> str:
    copy = copies.get()
    began = time.monotonic()
    path = copy / mutant.path
    original = path.read_text()
    path.write_text(mutant.source)
    try:
        step = _failing_step(copy, mutant.path, quick)
    finally:
        path.write_text(original)
        copies.put(copy)
    verdict = "survived" if step is None else "killed"
    _say(f"{verdict:8} {step or '':8} {time.monotonic() - began:5.0f} s  {mutant}")
    return verdict


def _failing_step(copy: Path, path: Path, quick: bool) -> str | None:
    steps = _steps(path, copy, quick=quick)
    return next((name for name, tests in steps if not passes(copy, tests)), None)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
