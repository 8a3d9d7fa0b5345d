"""What mini-batches read where features are cached, from the devices to result and log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.client.answers import evaluate_answer
from retexo_fl.client.api import EvaluateAnswer
from retexo_fl.client.preparation import make_parts
from retexo_fl.graph import GraphPartition
from retexo_fl.training.tally import Tally
from tests.support.agents import agents, train_with
from tests.support.runs import (
    configured,
    events_of,
    ledger_of,
    model_bytes,
    page_of,
    result_of,
    stop_after,
    train,
)
from tests.support.workers import train_in_workers

pytestmark = pytest.mark.devices

ROUNDS = 3
KEYS: dict[str, Any] = {
    **{"dataset": "synthetic:nodes=300,edges=500,classes=3,features=5", "clients": 3},
    **{"algorithm": "drop", "sampler": "gns", "model": "gcn", "layers": 2, "hidden": 4},
    **{"fanouts": "100/100", "batch_nodes": 300, "rounds": ROUNDS, "dropout": 0.0},
}
#: Every node that has a neighbour is in the cache.
ALL = {**KEYS, "cache_share": 1.0}


def within_two_edges(part: GraphPartition) -> tuple[int, int]:
    """Count the part's own nodes that are at most two of its own edges from a train node.

    Returns:
        Those with a neighbour of their own client, and those without.
    """
    own = part.num_inner
    adjacent = np.eye(own, dtype=bool)
    targets = np.repeat(np.arange(own), np.diff(part.indptr))
    here = part.indices < own
    adjacent[targets[here], part.indices[here]] = True
    near = (adjacent @ adjacent)[np.flatnonzero(part.train_mask)].any(axis=0)
    is_alone = adjacent.sum(axis=0) == 1
    return int((near & ~is_alone).sum()), int((near & is_alone).sum())


def counted(run: Path) -> dict[str, int]:
    """Return what a run's result has of its only stage, as its log has it, too."""
    (stage,) = result_of(run)["stages"]
    (event,) = [event for event in events_of(run) if event["event"] == "cached_rows"]
    assert (event["stage"], event["cached"]) == (0, stage["cached"])
    found: dict[str, int] = stage["cached"]
    return found


def test_one_mini_batch_of_all_reads_the_neighbourhood_of_each_client(tmp_path: Path) -> None:
    run = train(tmp_path / "run", **ALL)
    parts = make_parts(configured(tmp_path / "unused", **ALL))
    hits, misses = (
        ROUNDS * sum(found) for found in zip(*map(within_two_edges, parts), strict=True)
    )
    assert min(hits, misses) > 0
    rows = hits + misses
    assert rows < ROUNDS * 300
    assert counted(run) == {
        "batches": ROUNDS * len(parts),
        "rows": rows,
        "hits": hits,
        "misses": misses,
        "gpu_bytes": 0,
        "cpu_bytes": rows * 5 * 4,
    }
    page = page_of(run)
    assert page.count("copied by CPUs") == 1
    assert f"{rows:,} rows read in mini-batches, {hits:,} cached" in page


def test_of_a_smaller_cache_some_are_hits_and_all_others_misses(tmp_path: Path) -> None:
    found = counted(train(tmp_path / "run", **KEYS))
    assert 0 < found["hits"] < found["rows"] == found["hits"] + found["misses"]
    assert found["cpu_bytes"] == found["rows"] * 5 * 4


@pytest.mark.parametrize("more", [{}, {"secure_aggregation": "masked"}, {"local_steps": 2}])
def test_workers_that_share_messages_count_what_one_process_counts(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    keys = {**KEYS, "batch_nodes": 8, **more}
    one, other = train(tmp_path / "one", **keys), train_in_workers(tmp_path / "other", **keys)
    assert counted(other) == counted(one)
    assert model_bytes(other) == model_bytes(one)


@pytest.mark.system
@pytest.mark.parametrize("mode", ["none", "masked"])
@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.each_choice
def test_agents_tell_what_one_process_counts_or_nothing(
    tmp_path: Path, mode: str, tells: bool
) -> None:
    keys = {**KEYS, "batch_nodes": 8, "secure_aggregation": mode}
    config = configured(tmp_path / "deployed", **keys, engine="deployment")
    settings = {"allow-algorithms": ["drop"], "least-train-nodes": 1, "tell-sizes": tells}
    parts = make_parts(configured(tmp_path / "unused", **keys))
    with agents(tmp_path / "machines", parts, settings=settings) as machines:
        run = train_with(machines, config)
    if tells:
        assert counted(run) == counted(train(tmp_path / "here", **keys))
    else:
        assert "cached" not in (run / "metrics.jsonl").read_text()
        assert "cached" not in (run / "result.json").read_text()


def test_masked_sums_of_counts_are_those_in_the_clear(tmp_path: Path) -> None:
    keys = {**KEYS, "batch_nodes": 8}
    clear = train(tmp_path / "clear", **keys)
    masked = train(tmp_path / "masked", **keys, secure_aggregation="masked")
    assert counted(masked) == counted(clear)


def test_what_no_cache_has_read_takes_no_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[EvaluateAnswer] = []

    def seen(tally: Tally, own: tuple[float, ...], *more: Any) -> EvaluateAnswer:
        told.append(evaluate_answer(tally, own, *more))
        return told[-1]

    monkeypatch.setattr("retexo_fl.client.rounds.evaluate_answer", seen)
    run = train(tmp_path / "run", **KEYS | {"sampler": "neighbour"})
    assert len(told) == 6
    assert not any(answer.cached for answer in told)
    assert "cached" not in (run / "metrics.jsonl").read_text()
    assert "cached" not in (run / "result.json").read_text()
    assert "copied" not in page_of(run)
    cached = train(tmp_path / "cached", **ALL)
    # A key and five numbers of eight bytes, from each client once.
    control = [ledger_of(one).totals()["payload"]["control"] for one in (run, cached)]
    assert (control[1] or 0) - (control[0] or 0) == 3 * (len("cached") + 5 * 8)


def test_under_masks_a_run_without_caches_moves_what_it_did(tmp_path: Path) -> None:
    masked = {**KEYS, "secure_aggregation": "masked", "sampler": "neighbour"}
    totals = [
        ledger_of(train(tmp_path / name, **masked, **more)).sum(purpose="evaluate").payload
        for name, more in (("auto", {}), ("cpu", {"devices": "cpu"}))
    ]
    assert totals[0] == totals[1]
    gns = train(tmp_path / "gns", **ALL, secure_aggregation="masked")
    moved = ledger_of(gns).sum(purpose="evaluate").payload
    assert moved - totals[0] == 3 * 5 * 8


def test_a_resumed_run_counts_its_last_attempt(tmp_path: Path) -> None:
    whole = counted(train(tmp_path / "whole", **ALL))
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", stop_after(1), **ALL, checkpoint_every=1)
    run = train(tmp_path / "run", resume=str(tmp_path / "run"), **ALL, checkpoint_every=1)
    found = counted(run)
    rounds = found["batches"] // 3
    assert 0 < rounds < ROUNDS
    assert found == {name: count * rounds // ROUNDS for name, count in whole.items()}
