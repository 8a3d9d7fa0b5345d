"""Many trainings, each done once: what decides one, and what it is kept under."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from retexo_fl.config import Scalar, default_values
from sims.kept import Case, Kept, Work
from sims.origin import graph_digest
from sims.trained import Trained
from sims.training import train_whole

Keys = Mapping[str, Scalar]
#: Trains with the given keys; known by its name.
How = Callable[[Keys], Trained]
#: Where a graph lies decides nothing; its content stands in the key.
_PLACES: Final = frozenset({"data-dir"})


def train_all(
    kept: Kept, cases: Mapping[Case, Keys], how: How = train_whole
) -> dict[Case, Trained]:
    """Return the training of every case, doing those that nobody has done.

    Raises:
        RetexoError: Any named failure of a training.
    """
    done = kept.all({case: _work(keys, how) for case, keys in cases.items()})
    return {case: Trained(**facts) for case, facts in done.items()}


def _work(keys: Keys, how: How) -> Work:
    """Return a training with all that decides it: way, graph and configuration.

    A key that is given its default is as good as one that is not given.
    """
    defaults = default_values()
    decisive: dict[str, Any] = {
        key: value
        for key, value in sorted(keys.items())
        if key not in _PLACES and value != defaults[key]
    }
    folder = None if keys.get("data-dir") is None else str(keys["data-dir"])
    graph = graph_digest(str(keys.get("dataset")), folder)
    shown = [str(keys[key]).split(":")[0] for key in ("dataset", "model") if key in keys]
    return Work(
        "-".join([*shown, str(keys.get("algorithm", "lazy"))]),
        [how.__name__, graph, decisive],
        lambda: asdict(how(keys)),
    )
