"""What happens when a client's vectors do not arrive."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from retexo_fl.channels import BlockKey, MemoryChannel
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import RunConfig
from retexo_fl.errors import ExchangeIncomplete
from retexo_fl.graph import BoundaryPlan
from retexo_fl.training.stage_model import ModelShape
from tests.support.runs import configured, largest_difference, result_of, train_over
from tests.support.typed_graphs import BANK, CHAINED


class LosingChannel(MemoryChannel):
    """Loses what one client sends."""

    def __init__(self, loses: int, *, after_bytes: int = 0) -> None:
        super().__init__()
        self.loses, self.after_bytes = loses, after_bytes

    def send_block(self, key: BlockKey, frames: Sequence[bytes]) -> int:
        if key.sender != self.loses:
            return super().send_block(key, frames)
        # What a cut link leaves: the first bytes of the block, or nothing.
        stream = b"".join(frames)
        super().send_block(key, [stream[: self.after_bytes]])
        return len(stream)


@pytest.mark.parametrize("after_bytes", [0, 100, 3000])
def test_wait_fails_at_the_deadline_and_names_who_lacks_what(
    tmp_path: Path, after_bytes: int
) -> None:
    config = configured(tmp_path / "run", clients=3, rounds=2, exchange_deadline_s=0.3)
    expected = BoundaryPlan.from_partition(make_parts(config)[0]).peer(2).receive.count
    with pytest.raises(ExchangeIncomplete, match=f"client 0 lacks {expected}, client 1 lacks"):
        train_over(config, LosingChannel(2, after_bytes=after_bytes))
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["state"] == "failed"
    assert "ExchangeIncomplete: stage 0: vectors are missing" in status["error"]


@pytest.mark.parametrize("model", ["gcn", "sage", "gat", "gin", "sage-pool"])
def test_drop_goes_on_and_counts_missing_rows_exactly(tmp_path: Path, model: str) -> None:
    config = configured(
        tmp_path / "run",
        clients=3,
        rounds=2,
        model=model,
        missing_peers="drop",
        exchange_deadline_s=0.1,
    )
    plans = [BoundaryPlan.from_partition(part) for part in make_parts(config)]
    missing = sum(plan.peer(2).receive.count for plan in plans[:2])
    train_over(config, LosingChannel(2))
    result = result_of(tmp_path / "run")
    assert result["missing_rows"] == config.layers * missing
    assert np.isfinite(result["test_accuracy"])


def test_drop_counts_what_each_layer_of_a_typed_graph_lacks(tmp_path: Path) -> None:
    keys = {**BANK, "dataset": CHAINED}
    config = configured(
        tmp_path / "run", clients=3, rounds=2, missing_peers="drop", exchange_deadline_s=0.1, **keys
    )
    parts = make_parts(config)
    shape = ModelShape.of_part(config, parts[0])
    whole = [BoundaryPlan.from_partition(part) for part in parts]
    read = [
        plan.into(part, shape.read_into(stage) or ())
        for part, plan in zip(parts[:2], whole[:2], strict=True)
        for stage in range(config.layers)
    ]
    missing = sum(plan.peer(2).receive.count for plan in read)
    assert 0 < missing < config.layers * sum(plan.peer(2).receive.count for plan in whole[:2])
    train_over(config, LosingChannel(2))
    result = result_of(tmp_path / "run")
    assert result["missing_rows"] == missing
    assert np.isfinite(result["test_accuracy"])


def test_drop_renormalises_sage_over_what_is_there(tmp_path: Path) -> None:
    """Losing a client's vectors trains as if no edge entered from its nodes."""
    keys = {"clients": 2, "rounds": 3, "dtype": "float64", "missing_peers": "drop"}
    lost = configured(tmp_path / "lost", exchange_deadline_s=0.1, **keys)
    train_over(lost, _LosingBoth())
    kept = configured(tmp_path / "kept", **keys)
    run_without_boundary(kept)
    assert largest_difference(tmp_path / "lost", tmp_path / "kept") < 1e-12


class _LosingBoth(MemoryChannel):
    def send_block(self, key: BlockKey, frames: Sequence[bytes]) -> int:
        return sum(len(frame) for frame in frames)


def run_without_boundary(config: RunConfig) -> None:
    """Train on parts from which every edge to a peer was removed."""
    from dataclasses import replace

    from retexo_fl.simulation.inline_engine import run_inline

    parts = []
    for part in make_parts(config):
        inner = np.asarray(part.indices) < part.num_inner
        parts.append(
            replace(
                part,
                indptr=np.concatenate(([0], np.cumsum(inner)))[np.asarray(part.indptr)],
                indices=np.asarray(part.indices)[inner],
                boundary_keys=part.boundary_keys[:0],
                boundary_owners=part.boundary_owners[:0],
                boundary_hashes=part.boundary_hashes[:0],
            )
        )
    run_inline(config, parts)
