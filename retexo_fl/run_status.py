"""``status.json`` of a run directory, as the next process that looks finds it."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Final

from retexo_fl.files import write_whole

#: Of a run whose process is there, as far as it has said.
ACTIVE: Final = frozenset({"running", "waiting"})


def write_status(run: Path, state: str, error: str | None = None) -> None:
    """Write ``status.json``.

    Args:
        run: The run directory.
        state: ``running``, ``waiting`` (for the SuperLink), ``finished``, ``failed`` or
            ``interrupted``.
        error: What ended the run, or what it waits for, where that is known.

    Raises:
        OSError: It could not be written.
    """
    text = json.dumps({"state": state, "error": error}) + "\n"
    write_whole(run / "status.json", [text.encode()], durable=True)


def is_status(run: Path) -> bool:
    """Return whether ``status.json`` is one that :func:`write_status` wrote."""
    try:
        found = json.loads((run / "status.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.keys() == {"state", "error"}


def correct_status(run: Path) -> None:
    """Mark a run as finished that ended between its results and its last status."""
    path = run / "status.json"
    # A folder that cannot be written to, or read, stays as it is.
    with suppress(OSError, ValueError, LookupError, TypeError):
        cut_off = json.loads(path.read_bytes())["state"] in ACTIVE | {"interrupted"}
        if cut_off and (run / "result.json").exists():
            write_status(run, "finished")
