"""Which state of the code made a figure."""

from __future__ import annotations

import hashlib
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

_REPOSITORY: Final = Path(__file__).resolve().parents[1]
#: What decides the outcome of a training.
_CODE: Final = ("retexo_fl", "sims")


@cache
def commit() -> str:
    """Return the commit, marked where the tree differs from it; ``unknown`` outside a clone.

    Results are no part of the code: one that was just written does not mark the next.
    """
    name = _git("describe", "--always", "--abbrev=12")
    changed = _git("status", "--porcelain", "--", ":/", ":(exclude,top)sims/results")
    return "unknown" if not name else f"{name}-dirty" if changed else name


def _git(*words: str) -> str:
    """Return what a command says about the clone; nothing where there is none."""
    command = ["git", "-C", str(_REPOSITORY), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()


@cache
def code_state() -> str:
    """Return the commit and a digest of the code as it is: what a kept training is kept under.

    The mark of a changed tree is not enough: two changes of one commit have the same mark.
    """
    digest = hashlib.sha256()
    for folder in _CODE:
        for path in sorted((_REPOSITORY / folder).rglob("*.py")):
            digest.update(str(path.relative_to(_REPOSITORY)).encode() + b"\0")
            digest.update(path.read_bytes() + b"\0")
    return f"{commit()} {digest.hexdigest()[:16]}"


def graph_digest(dataset: str, data_dir: str | Path | None) -> str | None:
    """Return a digest of the file of a graph; None of a graph that is made, which has none."""
    path = None if data_dir is None else Path(data_dir) / f"{dataset}.npz"
    if path is None or not path.is_file():
        return None
    return _file_digest(path, path.stat().st_mtime_ns)


@cache
def _file_digest(path: Path, changed_ns: int) -> str:
    del changed_ns  # part of the key: a file that was replaced is read again
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
