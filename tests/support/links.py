"""Trainings on links: draws that do not depend on the partition, and what reference metrics see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from retexo_fl.training.link_negatives import NonEdges
from retexo_fl.training.link_split import LinkSplit

#: Keys of a small training on links, but for ``data_dir``.
LINKS: dict[str, Any] = {
    "task": "links",
    "split": "random:0.6/0.2/0.2",
    "hidden": 8,
    "rounds": 3,
    "layers": 2,
    "dtype": "float64",
}


class Draws:
    """Remembers which nodes were drawn for which edge, and draws them again for other parts.

    A client draws among nodes that it knows, so draws do depend on the partition. All else must
    not: a training of one client that is given the draws of several trains their weights.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: dict[tuple[str, int, bool], np.ndarray] = {}
        self.replays = False
        draw, split_of = NonEdges.draw, LinkSplit.of.__func__  # type: ignore[attr-defined]
        ends: dict[int, np.ndarray] = {}

        def of(cls: type[LinkSplit], /, part: Any, **keys: Any) -> LinkSplit:
            split: LinkSplit = split_of(cls, part, **keys)
            hashes = np.concatenate([part.node_hashes, part.boundary_hashes])
            ends[id(split.known)] = ends[id(split.unseen)] = hashes
            return split

        def drawn(
            self_: NonEdges, keys: np.ndarray, count: int, place: str, **first: Any
        ) -> tuple[np.ndarray, np.ndarray]:
            hashes = ends[id(self_)]
            names = [(place, int(key), bool(first.get("first") is not None)) for key in keys]
            if not self.replays:
                pair = draw(self_, keys, count, place, **first)
                both = np.stack(pair, axis=1)
                self.found |= dict(zip(names, hashes[both], strict=True))
                return pair
            places = {int(h): i for i, h in enumerate(hashes)}
            both = np.array(
                [[[places[int(h)] for h in row] for row in self.found[name]] for name in names]
            ).reshape(-1, 2, count)
            return both[:, 0], both[:, 1]

        monkeypatch.setattr(LinkSplit, "of", classmethod(of))
        monkeypatch.setattr(NonEdges, "draw", drawn)
