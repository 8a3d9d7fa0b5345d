from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from retexo_fl.training.layer_trainer import LayerTrainer, NodeSets
from retexo_fl.training.stage_model import ModelShape, initial_weights
from tests.bench import cora_parts
from tests.bench.__main__ import main as bench_main
from tests.bench.catalogue import BENCHES
from tests.bench.measure import Spread, Timings, interleaved
from tests.bench.outcome import Row
from tests.bench.precomputed_aggregate import power_law_input
from tests.support.kernel import require_bpf

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

REPOSITORY = Path(__file__).resolve().parents[2]
#: What each bench must report, whatever it measures.
RATIOS = {
    "sparse_input": {"gcn: dense / sparse", "sage: dense / sparse", "gat: dense / sparse"},
    "precomputed_aggregate": {
        f"{model}, {rows}: recomputed / computed once"
        for model in ("gcn", "sage")
        for rows in ("all rows", "10 % of rows")
    },
    "segment_max": {
        f"{degree} entries a segment: {rival} / segment_max"
        for degree in (20, 200)
        for rival in ("torch.segment_reduce", "torch.scatter_reduce")
    },
    "activations": {
        "peak memory beyond the data: kept / recomputed",
        "CPU time of training: recomputed / kept",
    },
    "samplers": {
        "16 roots: PyTorch / NeighbourSampler",
        "joint subgraph: SciPy A[n][:, n] / induced_block",
        "features: fresh tensor / reused buffer",
    },
    "engine_overhead": {
        f"{size}, 6 clients: {what} per client"
        for size in ("5 k weights", "92 k weights")
        for what in ("CPU", "wall time")
    },
    "flower_rounds": {
        f"4 clients, {kind} of a round: ours / Flower's app" for kind in ("wall", "CPU")
    },
    "agent_channels": {
        "standard, 2 clients, 2 rounds: udp / tcp",
        "standard, 2 clients, 2 rounds: xdp / tcp",
    },
    "slow_links": {
        "one-shot, 50 ms: measured / predicted",
        "one-shot, 50 ms: delays one after the other",
    },
    "masked_sums": {
        "cohorts of 5: client of SecAgg+ / ours",
        "rounds of 10 clients, 8 bits: masked / not",
    },
    "peers": {
        f"synthetic, {what} until as accurate: PyG / {name}"
        for what in ("CPU", "wall")
        for name in ("standard, 1 client", "standard")
    },
    "unified": {
        "shadow, 1:2: together / sum of speeds alone",
        "gain of preparing beside computing / its bound",
        "1000 values: gloo / shared memory",
    },
}
#: Those that begin with seconds of other processes' imports.
STARTS_PROCESSES = {"agent_channels", "flower_rounds", "slow_links", "unified"}
#: Those that measure their process; others need none of their own.
MEASURES_ITSELF = STARTS_PROCESSES | {"activations"}


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", "tests.bench", *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return done.stdout


def test_bench_without_a_name_lists_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tests.bench"])
    assert bench_main() == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == sorted(BENCHES) == sorted(RATIOS)


# Said once in a process, by PyTorch, of what PyTorch Geometric and our use of it call.
@pytest.mark.filterwarnings("ignore:Sparse .*:UserWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("name", sorted(RATIOS))
def test_bench_reports_its_ratios_and_their_origin(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if name == "agent_channels":
        require_bpf()
    file = tmp_path / "outcome.json"
    arguments = (name, "--quick", "--json", str(file))
    if name in MEASURES_ITSELF:
        printed = run(*arguments)
    else:
        monkeypatch.setattr(sys, "argv", ["tests.bench", *arguments])
        assert bench_main() == 0
        printed = capsys.readouterr().out
    facts: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    ratios = {row["metric"]: row for row in facts["ratios"]}
    assert RATIOS[name] <= set(ratios)
    assert all(0 < row["low"] <= row["median"] <= row["high"] for row in ratios.values())
    assert all(metric in printed for metric in ratios)
    assert facts["command"] == f"python -m tests.bench {name} --quick --json {file}"
    assert facts["hardware"]["cpu"]
    assert facts["versions"]["torch"]
    assert facts["commit"]


@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_recomputing_layer_has_the_gradient_of_the_librarys(model: str) -> None:
    inputs = power_law_input(60, 400, 5)
    none = np.zeros(0, np.int64)
    labels = np.arange(60) % 4
    nodes = NodeSets(train=np.arange(0, 60, 3), validation=none, test=none, labels=labels)
    gradients = []
    for name in (model, f"tests.bench.precomputed_aggregate:Recomputing{model.capitalize()}"):
        shape = ModelShape(
            model=name, layers=2, inputs=5, hidden=6, heads=1, classes=4, dtype="float32"
        )
        weights = initial_weights(shape, 0, seed=0)
        trainer = LayerTrainer(shape, 0, inputs, nodes, seed=0)
        gradients.append(trainer.update(weights, round_number=1, dropout=0.3).update_sum)
    assert np.abs(gradients[0]).max() > 0.01
    np.testing.assert_allclose(gradients[0], gradients[1], rtol=1e-4, atol=1e-5)


def test_stage_input_without_cora_has_its_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETEXO_TEST_DATA", str(tmp_path))
    parts, origin = cora_parts.load_parts(None)
    inputs = cora_parts.stage_input(parts, "sage")
    assert "synthetic" in origin
    assert sum(part.num_inner for part in parts) == 2708
    assert not isinstance(inputs.own, torch.Tensor)
    assert inputs.own.shape == (parts[0].num_inner, 1433)
    assert not isinstance(inputs.received, torch.Tensor)
    assert inputs.received.shape == (parts[0].num_boundary, 1433)


def test_received_rows_are_those_of_the_boundary_nodes() -> None:
    parts, _ = cora_parts.load_parts(None)
    received = cora_parts.stage_input(parts, "sage").received
    assert not isinstance(received, torch.Tensor)
    peer = {key: place for place, key in enumerate(parts[1].node_keys.tolist())}
    rows = [peer[key] for key in parts[0].boundary_keys.tolist()]
    assert (received - parts[1].features[rows]).nnz == 0


def test_interleaved_warms_up_and_then_takes_turns() -> None:
    calls: list[str] = []
    timings = interleaved(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=4, least_s=0.0
    )
    # A warm-up and a measured call tell how many calls make a sample: one.
    assert calls == ["a", "a", "b", "b", "a", "b", "b", "a", "a", "b", "b", "a"]
    assert len(timings.seconds["a"]) == 4


def test_ratio_is_taken_turn_by_turn() -> None:
    timings = Timings(seconds={"slow": [2.0, 40.0, 6.0], "fast": [1.0, 10.0, 3.0]})
    assert timings.ratio("slow", "fast").median == 2.0
    assert timings.spread("slow", scale=10).median == 60.0


@pytest.mark.parametrize(
    ("at_most", "median", "met"),
    [(False, 4.0, True), (False, 3.9, False), (True, 1.0, True), (True, 1.1, False)],
)
def test_row_is_judged_by_its_median(at_most: bool, median: float, met: bool) -> None:
    spread = Spread(median=median, low=0.0, high=9.0, samples=7)
    target = 1.0 if at_most else 4.0
    row = Row(metric="m", unit="x", spread=spread, target=target, at_most=at_most)
    assert row.met is met
