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
                rows, others = draw(self_, keys, count, place, **first)
                # Where edges have directions, a row says which end its node is.
                inner = max(1, self_._nodes)
                which = (rows // inner).astype(np.uint64)
                both = np.stack([hashes[rows % inner], which, hashes[others]], axis=1)
                self.found |= dict(zip(names, both, strict=True))
                return rows, others
            places = {int(h): i for i, h in enumerate(hashes)}
            found = np.array([self.found[name] for name in names], np.uint64).reshape(-1, 3, count)
            rows, others = (np.vectorize(places.get, otypes=[int])(found[:, i]) for i in (0, 2))
            return rows + self_._nodes * found[:, 1].astype(int), others

        monkeypatch.setattr(LinkSplit, "of", classmethod(of))
        monkeypatch.setattr(NonEdges, "draw", drawn)
