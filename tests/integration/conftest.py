from __future__ import annotations

import pytest

from retexo_fl.federation import checkpoints


@pytest.fixture(autouse=True)
def _every_round_is_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted run goes on from its last round, however fast the machine is."""
    monkeypatch.setattr(checkpoints, "MOST_LOST_S", 0.0)
