"""``python -m sims NAME [--quick] [--data-dir DIR] [--out DIR]``; without a name, list them."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

# Before torch is imported anywhere: results are compared bit by bit, on one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from retexo_fl.errors import RetexoError
from sims.catalogue import RECIPES, Setting, load_recipe
from sims.results_files import check_writable, write_results
from sims.trainings import KEPT_NAME


def main(arguments: list[str] | None = None) -> int:
    """Run one recipe; without a name, list them."""
    parser = argparse.ArgumentParser(prog="python -m sims", description=__doc__)
    parser.add_argument("name", nargs="?", choices=RECIPES)
    parser.add_argument("--quick", action="store_true", help="sizes that only show that it works")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="folder with NAME.npz graphs")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", default=Path("sims/results"), help="default %(default)s"
    )
    asked = parser.parse_args(arguments)
    if asked.name is None:
        for name in RECIPES:
            print(f"{name:20}{load_recipe(name).PURPOSE}")
        return 0
    try:
        check_writable(asked.out)
        setting = Setting(quick=asked.quick, data_dir=asked.data_dir, kept=asked.out / KEPT_NAME)
        outcome = load_recipe(asked.name).run(setting)
        for path in write_results(asked.out, asked.name, setting, outcome):
            print(path)
    except RetexoError as error:
        print(f"sims: error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
