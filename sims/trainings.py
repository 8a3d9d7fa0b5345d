"""Many trainings, each kept on disk as it ends: an interrupted recipe goes on where it was.

Several processes may run one recipe, or recipes with trainings in common, with the same ``--out``:
each training is done by one of them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TypeVar

from retexo_fl.config import Scalar, default_values
from retexo_fl.errors import EngineFailed
from retexo_fl.files import write_whole
from sims.origin import code_state, graph_digest
from sims.trained import Trained
from sims.training import train_whole

#: Below ``--out``; may be removed when a recipe is done.
KEPT_NAME: Final = ".trainings"
Keys = Mapping[str, Scalar]
#: Trains with the given keys; known by its name.
How = Callable[[Keys], Trained]
Case = TypeVar("Case", bound=Hashable)
#: Longest time for which one process waits for another's training.
_WAIT_S: Final = 12 * 3600.0
_POLL_S: Final = 1.0
#: Where a graph lies decides nothing; its content stands in the key.
_PLACES: Final = frozenset({"data-dir"})


class Trainings:
    """Trains each configuration once for a state of the code.

    Args:
        folder: Where finished trainings are kept; None keeps them in memory only.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._commits: set[str] = set()

    @property
    def commits(self) -> str:
        """The commits of the code that did the trainings asked for so far."""
        return " ".join(sorted(self._commits))

    def all(self, cases: Mapping[Case, Keys], how: How = train_whole) -> dict[Case, Trained]:
        """Return the training of every case, doing those that nobody has done.

        Raises:
            RetexoError: Any named failure of a training.
        """
        done: dict[Case, Trained] = {}
        deadline = time.monotonic() + _WAIT_S
        while missing := [case for case in cases if case not in done]:
            found = {case: self._one(cases[case], how) for case in missing}
            done |= {case: trained for case, trained in found.items() if trained is not None}
            if len(done) == len(cases):
                break
            if time.monotonic() > deadline:
                raise EngineFailed(
                    f"{self._folder}: another process has trained for {_WAIT_S:g} s; expected "
                    "its result"
                )
            time.sleep(_POLL_S)
        self._commits |= {trained.commit for trained in done.values()}
        return {case: done[case] for case in cases}

    def _one(self, keys: Keys, how: How) -> Trained | None:
        """Return one training; None where another process is at work on it."""
        if self._folder is None:
            return how(keys)
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{_name(keys, how)}.json"
        with _held(path.with_suffix(".lock")) as ours:
            if path.exists():
                return Trained(**json.loads(path.read_text(encoding="utf-8")))
            if not ours:
                return None
            trained = how(keys)
            write_whole(path, [json.dumps(asdict(trained)).encode()])
            return trained


def _name(keys: Keys, how: How) -> str:
    """Return a file name for all that decides a training: code, way, graph and configuration.

    A key that is given its default is as good as one that is not given.
    """
    defaults = default_values()
    decisive: dict[str, Any] = {
        key: value
        for key, value in sorted(keys.items())
        if key not in _PLACES and value != defaults[key]
    }
    graph = graph_digest(str(keys.get("dataset")), _folder(keys))
    text = json.dumps([code_state(), how.__name__, graph, decisive])
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    shown = [str(keys[key]).split(":")[0] for key in ("dataset", "model") if key in keys]
    return "-".join([*shown, str(keys.get("algorithm", "lazy")), digest])


def _folder(keys: Keys) -> str | None:
    return None if keys.get("data-dir") is None else str(keys["data-dir"])


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
