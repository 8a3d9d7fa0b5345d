from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from retexo_fl.config import RunConfig
from retexo_fl.federation.checkpoints import Checkpoint
from retexo_fl.federation.run_directory import RunDirectory


def test_history_is_on_the_disk_before_the_checkpoint_that_counts_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory(tmp_path / "run")
    run.create(RunConfig())
    forced: list[tuple[str, int]] = []
    force = os.fsync

    def fsync(descriptor: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        forced.append((name.partition(".")[0], os.fstat(descriptor).st_size))
        force(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    run.record("start", clients=1)
    run.checkpoint(Checkpoint(facts={}, tensors={"weights": np.zeros(3)}))
    run.close()
    assert forced[0] == ("metrics", (run.path / "metrics.jsonl").stat().st_size)
    assert [name for name, _ in forced] == ["metrics", "checkpoint", "run"]
