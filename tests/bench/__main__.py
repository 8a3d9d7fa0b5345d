"""``python -m tests.bench NAME [--json FILE] [--quick] [--data-dir DIR]``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

# Before torch is imported anywhere: its own threads would share the core that is measured.
os.environ["OMP_NUM_THREADS"] = "1"


def main() -> int:
    """Run one bench; without a name, list them."""
    # Processes that a bench starts import this file, too, and need none of it.
    from retexo_fl.errors import RetexoError
    from tests.bench.catalogue import BENCHES, run_bench
    from tests.bench.outcome import print_facts, write_facts

    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("name", nargs="?", choices=sorted(BENCHES))
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the outcome there")
    parser.add_argument("--quick", action="store_true", help="sizes that only show that it works")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="folder with cora.npz")
    asked = parser.parse_args()
    if asked.name is None:
        for name, bench in sorted(BENCHES.items()):
            print(f"{name:24}{bench.purpose}")
        return 0
    try:
        facts = run_bench(asked.name, quick=asked.quick, data_dir=asked.data_dir).facts()
    except RetexoError as error:
        print(f"bench: error: {error}", file=sys.stderr)
        return error.exit_code
    print_facts(facts)
    if asked.json:
        write_facts(facts, asked.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
