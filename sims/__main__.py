"""Run a recipe, write its results and check what they must show; without a name, list them.

Exit code 1: a line that must hold does not, or a target was missed. The results are written
nevertheless.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

# Before torch is imported anywhere: results are compared bit by bit, on one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from retexo_fl.errors import RetexoError
from sims.catalogue import RECIPES, Setting, load_recipe
from sims.kept import KEPT_NAME
from sims.outcome import Check
from sims.results_files import check_writable, restate_results, write_results, written_result

_RESULTS: Final = Path("sims/results")
#: Figures of small sizes must not take the place of those of whole runs.
_QUICK_RESULTS: Final = Path("build/sims-quick")
_LINE_FAILS: Final = 1


def main(arguments: list[str] | None = None) -> int:
    """Run one recipe; without a name, list them."""
    parser = argparse.ArgumentParser(prog="python -m sims", description=__doc__)
    parser.add_argument("name", nargs="?", choices=RECIPES)
    parser.add_argument("--quick", action="store_true", help="sizes that only show that it works")
    parser.add_argument(
        "--restate",
        action="store_true",
        help="train nothing: check the result in --out anew, and write it with published figures",
    )
    parser.add_argument(
        "--extend",
        action="store_true",
        help="train only the seeds that the result in --out lacks; its other values stay",
    )
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="folder with NAME.npz graphs")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"default {_RESULTS}; with --quick, {_QUICK_RESULTS}",
    )
    asked = parser.parse_args(arguments)
    if asked.name is None:
        for name in RECIPES:
            print(f"{name:20}{load_recipe(name).PURPOSE}")
        return 0
    out = asked.out or (_QUICK_RESULTS if asked.quick else _RESULTS)
    try:
        if asked.restate:
            paths, checks = restate_results(out, asked.name)
        else:
            check_writable(out)
            setting = Setting(
                quick=asked.quick,
                data_dir=asked.data_dir,
                kept=out / KEPT_NAME,
                written=written_result(out, asked.name) if asked.extend else None,
            )
            paths, checks = write_results(out, asked.name, setting, load_recipe(asked.name))
    except RetexoError as error:
        print(f"sims: error: {error}", file=sys.stderr)
        return error.exit_code
    for path in paths:
        print(path)
    return _report(asked.name, checks)


def _report(name: str, checks: Sequence[Check]) -> int:
    """Print every line that must hold, and return the exit code."""
    for check in checks:
        print(check.text)
    failing = sum(not check.holds for check in checks)
    if failing:
        print(f"sims: {name}: {failing} of {len(checks)} lines fail", file=sys.stderr)
    return _LINE_FAILS if failing else 0


if __name__ == "__main__":
    raise SystemExit(main())
