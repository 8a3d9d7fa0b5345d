"""What was trained or measured, kept on disk as it ends: an interrupted recipe goes on from there.

Several processes may run one recipe, or recipes with work in common, with the same ``--out``: each
piece of work is done by one of them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from retexo_fl.errors import EngineFailed
from retexo_fl.files import write_whole
from sims.origin import code_state, commit

#: Below ``--out``; may be removed when a recipe is done.
KEPT_NAME: Final = ".trainings"
Case = TypeVar("Case", bound=Hashable)
#: Longest time for which one process waits for another's work.
_WAIT_S: Final = 12 * 3600.0
_POLL_S: Final = 1.0


class Work(NamedTuple):
    """One piece of work.

    Attributes:
        name: For people; its file begins with it.
        facts: All that decides it, but for the code.
        do: Does it, and returns what JSON can hold.
    """

    name: str
    facts: object
    do: Callable[[], Any]


class Kept:
    """Does each piece of work once for a state of the code.

    Args:
        folder: Where finished work is kept; None keeps none.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._commits: set[str] = set()

    @property
    def commits(self) -> str:
        """The commits of the code that did the work asked for so far."""
        return " ".join(sorted(self._commits))

    def all(self, wanted: Mapping[Case, Work]) -> dict[Case, Any]:
        """Return what every piece of work came to, doing what nobody has done.

        Raises:
            RetexoError: Any named failure of the work.
        """
        done: dict[Case, dict[str, Any]] = {}
        deadline = time.monotonic() + _WAIT_S
        while missing := [case for case in wanted if case not in done]:
            found = {case: self._one(wanted[case]) for case in missing}
            done |= {case: facts for case, facts in found.items() if facts is not None}
            if len(done) == len(wanted):
                break
            if time.monotonic() > deadline:
                raise EngineFailed(
                    f"{self._folder}: another process has trained for {_WAIT_S:g} s; expected "
                    "its result"
                )
            time.sleep(_POLL_S)
        self._commits |= {str(facts["commit"]) for facts in done.values()}
        return {case: done[case]["found"] for case in wanted}

    def _one(self, work: Work) -> dict[str, Any] | None:
        """Return what one came to, and the commit; None where another process is at work on it."""
        if self._folder is None:
            return {"commit": commit(), "found": json.loads(json.dumps(work.do()))}
        text = json.dumps([code_state(), work.facts], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{work.name}-{digest}.json"
        with _held(path.with_suffix(".lock")) as ours:
            if not path.exists():
                if not ours:
                    return None
                facts = {"commit": commit(), "found": work.do()}
                write_whole(path, [json.dumps(facts).encode()])
            known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return known


@contextmanager
def _held(path: Path) -> Iterator[bool]:
    """Hold a file, and say whether it could be held; the system lets go when a process ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
