"""What clients of one process compute with is made once, by what it follows from."""

from __future__ import annotations

import numpy as np
import pytest

from retexo_fl.client.store import MemoryStore
from retexo_fl.client.weights import ClientWeights
from retexo_fl.config import make_config
from retexo_fl.training.schedule import Schedule
from retexo_fl.training.stage_model import ModelShape


def test_what_a_stage_starts_from_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config({"model": "gcn", "hidden": 4, "warm-start": True, "weight-bits": 4})
    shape = ModelShape.of(config, inputs=5, classes=3)
    digest = b"d" * 32
    before = Schedule(shape=shape).initial(0, seed=7)
    expected = [before, Schedule(shape=shape).initial(1, seed=config.seed, before=before)]
    drawn: list[int] = []
    initial = Schedule.initial

    def counting(
        self: Schedule, stage: int, *, seed: int, before: np.ndarray | None = None
    ) -> np.ndarray:
        drawn.append(stage)
        return initial(self, stage, seed=seed, before=before)

    monkeypatch.setattr(Schedule, "initial", counting)
    for client in range(3):
        store = MemoryStore()
        weights = ClientWeights(config, shape, store, client=client)
        assert weights.first(1, digest) is None
        store.put_weights(1, digest, before.copy())
        found = weights.first(1, digest)
        assert found is not None
        assert found.tobytes() == expected[1].tobytes()
        assert not found.flags.writeable
    assert drawn == [1]
    other = ClientWeights(config, shape, MemoryStore(), client=0)
    other.store.put_weights(1, digest, before + 1)
    assert np.any(other.first(1, digest) != expected[1])
