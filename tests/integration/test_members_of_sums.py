"""What a masked sum tells of its members follows from how many train nodes it has for a weight."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pytest

from retexo_fl.api.settling import Asked, settled
from retexo_fl.client.factory import InProcessClients
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.leakage.scores import auc, cosines
from retexo_fl.leakage.server_attacks import _NodeLosses
from retexo_fl.leakage.watch import Watch
from retexo_fl.simulation.inline_engine import make_channel, run_clients
from tests.support.planted import planted

KEYS: Final[dict[str, Any]] = {
    **{"model": "sage", "layers": 1, "hidden": 16, "dropout": 0.0, "rounds": 2},
    **{"partitioner": "attribute:owner", "split": "random:0.25/0.25/0.5", "engine": "inline"},
}
#: By nodes of a client, of which a quarter are train nodes, features and clients in a sum: the area
#: that the last update's sum reaches (docs/measured/privacy.md), a mean of three seeds.
REACHED: Final = {
    (12, 20): {5: 0.880, 10: 0.807, 20: 0.714, 60: 0.607, 120: 0.560, 240: 0.531},
    (48, 20): {5: 0.716, 10: 0.649, 20: 0.593, 60: 0.540},
    (48, 80): {5: 0.869, 10: 0.798, 20: 0.714, 60: 0.607, 120: 0.558},
}
#: Sums of each size are drawn until they have so many clients together.
_CLIENTS_DRAWN: Final = 480


class Candidates(NamedTuple):
    """All nodes of all clients.

    Attributes:
        gradients: (N, P) of the loss of each, at the weights of the last round.
        are_members: (N,) it is a train node.
        owners: (N,) its client.
        updates: (P,) by client, of the last round.
    """

    gradients: np.ndarray
    are_members: np.ndarray
    owners: np.ndarray
    updates: dict[int, np.ndarray]


def trained(folder: Path, *, clients: int, each: int, features: int, seed: int) -> Candidates:
    graph = planted(clients=clients, each=each, features=features, across=False)
    values = {**KEYS, "clients": clients, "seed": seed, "out": str(folder / "run")}
    asked = Asked(values=values, profile="retexo", graph=graph).of_run()
    loaded = asked.load(settled(asked), quiet=True)
    watch = Watch(loaded.config, keeps_updates=True)
    ends = InProcessClients(list(loaded.parts), loaded.config, channel=make_channel(None))
    try:
        run_clients(loaded.config, watch.watching(ends.find), [])
    finally:
        ends.close()
    updates = watch.rounds[0][-1].updates
    # One without train nodes is asked for no update.
    training = [part for part in loaded.parts if part.client in updates]
    return Candidates(
        gradients=np.concatenate([*_gradients(watch, training)]),
        are_members=np.concatenate([part.train_mask for part in training]),
        owners=np.repeat([part.client for part in training], each),
        updates=updates,
    )


def _gradients(watch: Watch, parts: list[GraphPartition]) -> Iterator[np.ndarray]:
    assert watch.shape is not None
    last = watch.rounds[0][-1]
    for part in parts:
        losses = _NodeLosses(watch.shape, 0, watch.inputs[0][part.client], last.weights)
        labels = np.asarray(part.labels)
        yield np.stack([losses.gradient(node, labels[node]) for node in range(len(labels))])


def reached(found: Candidates, size: int) -> tuple[float, float]:
    """Return the mean area of sums of so many clients: as they are, and without the candidate."""
    generator = np.random.default_rng(0)
    clients = sorted(found.updates)
    areas = []
    for _ in range(min(20, _CLIENTS_DRAWN // size)):
        cohort = generator.permutation(clients)[:size]
        inside = np.isin(found.owners, cohort)
        rows, are_members = found.gradients[inside], found.are_members[inside]
        total = np.sum([found.updates[client] for client in cohort], axis=0)
        # What the same score says of a sum that has everything but the member itself.
        others = total - rows * are_members[:, None]
        without = np.concatenate(
            [cosines(row[None], other) for row, other in zip(rows, others, strict=True)]
        )
        scores = cosines(rows, total), without
        areas.append([auc(of[are_members], of[~are_members]) for of in scores])
    of_sums, of_others = map(float, np.mean(areas, axis=0))
    return of_sums, of_others


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
@pytest.mark.parametrize(
    ("clients", "each", "features"),
    [(480, 12, 20), *(pytest.param(120, 48, n, marks=pytest.mark.slow) for n in (20, 80))],
)
def test_members_of_a_sum_are_told_by_their_own_share_in_it(
    tmp_path: Path, clients: int, each: int, features: int, seed: int
) -> None:
    found = trained(tmp_path, clients=clients, each=each, features=features, seed=seed)
    for size, mean in REACHED[each, features].items():
        of_sums, of_others = reached(found, size)
        assert of_sums == pytest.approx(mean, abs=0.035), size
        # The graph and the weights tell nothing by themselves.
        assert of_others == pytest.approx(0.5, abs=0.07), size
