"""``python -m tests.fuzz``: feed parsers with damaged inputs for as long as wanted."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.target import FOUND, Target, fuzz, limit_memory
from tests.fuzz.targets import GROUPS, all_targets


def main() -> int:
    """Fuzz what the command line names; return 1 where an input was not ended by name."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"parsers or groups ({', '.join(GROUPS)})")
    parser.add_argument(
        "--cases",
        type=float,
        default=1.0,
        help="share of the cases that stand beside the parsers (CI: 0.05)",
    )
    parser.add_argument("--seed", type=int, default=0, help="other cases")
    parser.add_argument("--keep", type=Path, default=FOUND, help="folder for inputs that fail")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        targets = [
            target
            for target in all_targets(Path(folder))
            if not asked.names or target.name in asked.names or target.group in asked.names
        ]
        if not targets:
            parser.error(f"there is none of {', '.join(asked.names)}")
        limit_memory()
        found = [_run(target, asked.cases, asked.seed, asked.keep) for target in targets]
    return int(any(found))


def _run(target: Target, times: float, seed: int, keep: Path) -> bool:
    cases = max(1, round(times * target.cases))
    begun = time.process_time()
    failures = fuzz(target, cases=cases, seed=seed, most_failures=5)
    taken_s = time.process_time() - begun
    sys.stdout.write(f"{target.group:9} {target.name:22} {cases:>8} cases {taken_s:7.1f} s CPU\n")
    for failure in failures:
        sys.stdout.write(f"{failure}\nkept as {failure.keep(keep)}\n")
    sys.stdout.flush()
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
