"""Finished mini-batch trainings on disk, so that an interrupted recipe goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from retexo_fl.files import write_whole
from sims.mini_batches import Point, Trace
from sims.origin import code_state, commit


class KeptTraces:
    """Does each training once.

    Args:
        folder: Where finished ones are kept; None keeps none.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._commits: set[str] = set()

    @property
    def commits(self) -> str:
        """The commits of the code that did the trainings asked for so far."""
        return " ".join(sorted(self._commits))

    def one(self, facts: Mapping[str, Any], training: Callable[[], Trace]) -> Trace:
        """Return a training, doing it if nobody has.

        Args:
            facts: All that decides it, but for the code.
            training: Does it.
        """
        if self._folder is None:
            self._commits.add(commit())
            return training()
        path = self._folder / f"{_name(facts)}.json"
        if not path.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            made = {"commit": commit(), **asdict(training())}
            write_whole(path, [json.dumps(made).encode()])
        kept = json.loads(path.read_text(encoding="utf-8"))
        self._commits.add(kept["commit"])
        points = [Point(*values) for values in kept["points"]]
        return Trace(points=points, most_rows=kept["most_rows"])


def _name(facts: Mapping[str, Any]) -> str:
    text = json.dumps([code_state(), facts], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"mini-batches-{facts['graph']}-{facts['method']}-{digest}"
