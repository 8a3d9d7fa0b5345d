"""All benches by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch

from tests.bench import (
    activations,
    agent_channels,
    engine_overhead,
    flower_rounds,
    masked_sums,
    precomputed_aggregate,
    samplers,
    segment_max,
    slow_links,
    sparse_input,
    unified,
)
from tests.bench.outcome import Outcome
from tests.bench.peers import compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A bench: what it shows, and its call with (quick, data folder or None)."""

    purpose: str
    run: Callable[[bool, Path | None], Outcome]


BENCHES: Final = {
    "sparse_input": Bench(
        purpose="a stage-1 client step on Cora with sparse input against dense",
        run=sparse_input.run,
    ),
    "precomputed_aggregate": Bench(
        purpose="an epoch with the aggregate computed once against recomputing it",
        run=precomputed_aggregate.run,
    ),
    "segment_max": Bench(
        purpose="the maximum over neighbours with its gradient against PyTorch's own",
        run=segment_max.run,
    ),
    "activations": Bench(
        purpose="memory and time of end-to-end training, activations recomputed against kept",
        run=activations.run,
    ),
    "samplers": Bench(
        purpose="samplers, induced subgraphs and gathering beside PyTorch, SciPy, PyG and DGL",
        run=samplers.run,
    ),
    "engine_overhead": Bench(
        purpose="the in-process engine's own cost for each client and round",
        run=engine_overhead.run,
    ),
    "flower_rounds": Bench(
        purpose="rounds on Flower's simulation beside an app of Flower's own",
        run=flower_rounds.run,
    ),
    "agent_channels": Bench(
        purpose="whole agents that exchange by TCP, by datagrams, and by the kernel path",
        run=agent_channels.run,
    ),
    "slow_links": Bench(
        purpose="deployments over links with a delay beside the prediction of `retexo plan`",
        run=slow_links.run,
    ),
    "masked_sums": Bench(
        purpose="masked sums: clients, server, bytes, and rounds with masks against without",
        run=masked_sums.run,
    ),
    "peers": Bench(
        purpose="as accurate as PyG in one process, and as FedAvg of PyG models on Flower",
        run=compared.run,
    ),
    "unified": Bench(
        purpose="two CPU devices of known speeds training together against each alone",
        run=unified.run,
    ),
}


def run_bench(name: str, *, quick: bool, data_dir: Path | None) -> Outcome:
    """Run a bench on one thread; quick sizes are judged by no target."""
    torch.set_num_threads(1)
    outcome = BENCHES[name].run(quick, data_dir)
    if not quick:
        return outcome
    return replace(outcome, ratios=[replace(row, target=None) for row in outcome.ratios])
