"""Whole trainings with every built-in aggregator, one of ten clients against them.

The full experiment, with more seeds and rounds, is the recipe ``poisoned_client`` of ``sims``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import Bulyan

from retexo_fl.client.api import Request, TrainRequest
from retexo_fl.config import Scalar
from retexo_fl.errors import ConfigurationError
from retexo_fl.graph import Graph, Split
from retexo_fl.updates import UpdateKey, update_codec
from sims.poisoning import poisoning
from sims.recipes.poisoned_client import FACTOR, ROBUST, VICTIM
from sims.training import train
from tests.support.cli import CommandLine
from tests.support.runs import largest_difference, model_bytes, result_of, stop_after
from tests.support.runs import train as train_to

#: Few rounds, so that a seed of all aggregators takes seconds.
SHORT: dict[str, Scalar] = {
    **{"clients": 10, "model": "gcn", "hidden": 32},
    "split": "random-unstratified:0.2/0.1/0.7",
}
#: More than in the recipe: after few rounds, Krum's pairs of clients lag behind. `mean` loses half.
ALLOWED = 0.08


def accuracy(keys: dict[str, Scalar], aggregator: str, *, poisoned: bool) -> float:
    change = poisoning(VICTIM, FACTOR) if poisoned else None
    return float(train({**keys, "aggregator": aggregator}, change)["test_accuracy"])


@pytest.mark.slow
def test_one_poisoned_client_of_ten_leads_only_the_mean_astray() -> None:
    keys = {**SHORT, "rounds": 20}
    clean = accuracy(keys, "mean", poisoned=False)
    assert accuracy(keys, "mean", poisoned=True) < 0.7 * clean
    found = {aggregator: accuracy(keys, aggregator, poisoned=True) for aggregator in ROBUST}
    assert {name: clean - value for name, value in found.items() if clean - value > ALLOWED} == {}


def coded_poison(index: int, request: Request[Any], answer: Any) -> Any:
    """One client sends the contrary of every update, as large as it can be coded."""
    if index != VICTIM or not isinstance(request, TrainRequest):
        return answer
    codec = update_codec(update_bits=8, weight_bits=32)
    ticket, steps = request.ticket, request.steps or b""
    key = UpdateKey(seed=0, job=ticket.job, stage=ticket.stage, round=ticket.round, client=VICTIM)
    decoded = codec.decode_update(answer.update_sum, key, steps)
    assert isinstance(decoded, np.ndarray)
    update = -1e4 * np.sign(decoded)
    return replace(answer, update_sum=codec.encode_update(update.astype(np.float32), key, steps))


@pytest.mark.slow
@pytest.mark.parametrize("aggregator", ["median", "trimmed-mean:0.2"])
def test_one_client_does_not_make_everybodys_steps_coarse(aggregator: str) -> None:
    keys: dict[str, Scalar] = {**SHORT, "rounds": 20, "aggregator": aggregator, "update-bits": 8}
    clean = float(train(keys)["test_accuracy"])
    poisoned = train(keys, coded_poison)
    assert float(poisoned["test_accuracy"]) > clean - ALLOWED


def test_aggregator_needs_more_clients_than_there_are(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = CommandLine(capfd).refused("run", "--aggregator", "krum:2", "--clients", "6")
    assert re.fullmatch("aggregator: 'krum:2' .*7 clients .*train nodes.*; got 6", told)
    assert list(tmp_path.iterdir()) == []


def train_at_three(graph: Graph, assignment: np.ndarray, seed: int) -> Split:
    """Only the nodes of clients 0, 1 and 2 train."""
    del seed
    train_nodes = assignment < 3
    turn = np.arange(graph.num_nodes) % 2 == 0
    return Split(train=train_nodes, val=~train_nodes & turn, test=~train_nodes & ~turn)


def test_only_clients_with_train_nodes_count_for_an_aggregator(tmp_path: Path) -> None:
    keys = {"split": f"{__name__}:train_at_three", "clients": 8, "rounds": 2, "hidden": 8}
    with pytest.raises(ConfigurationError, match=r"'krum:1' needs .* 5 clients .* got 3$"):
        train_to(tmp_path / "run", aggregator="krum:1", **keys)
    assert list(tmp_path.iterdir()) == []
    assert model_bytes(train_to(tmp_path / "run", aggregator="median", **keys))


@pytest.mark.parametrize("local_steps", [1, 3])
def test_flowers_average_trains_the_weights_of_the_mean(tmp_path: Path, local_steps: int) -> None:
    keys = {"dtype": "float64", "rounds": 4, "hidden": 8, "local_steps": local_steps}
    ours = train_to(tmp_path / "ours", aggregator="mean", **keys)
    theirs = train_to(tmp_path / "theirs", aggregator="flwr.serverapp.strategy:FedAvg", **keys)
    assert largest_difference(ours, theirs) < 1e-9


def bulyan() -> Bulyan:
    """Make Flower's Bulyan as for one liar."""
    return Bulyan(num_malicious_nodes=1)


@pytest.mark.parametrize(
    "aggregator",
    [
        "flwr.serverapp.strategy:FedMedian",
        "flwr.serverapp.strategy:Krum",
        f"{__name__}:bulyan",
    ],
)
def test_flowers_strategies_train(tmp_path: Path, aggregator: str) -> None:
    keys = {"clients": 8, "rounds": 30, "hidden": 32, "layers": 1, "learning_rate": 0.03}
    run = train_to(tmp_path / "run", aggregator=aggregator, **keys)
    assert result_of(run)["test_accuracy"] > 0.8


def test_a_strategy_with_more_than_an_aggregation_is_refused_before_a_round(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = CommandLine(capfd).refused("run", "--aggregator", "flwr.serverapp.strategy:FedProx")
    assert re.fullmatch(
        "aggregator FedProx: .*; expected proximal-mu with local-steps above 1", told
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("aggregator", ["median", "krum:1"])
def test_resume_with_robust_aggregator_equals_undisturbed_run(
    tmp_path: Path, aggregator: str
) -> None:
    # Krum draws pairs of clients in every round: they depend on the round, not on the process.
    keys = {"aggregator": aggregator, "clients": 7, "rounds": 4, "hidden": 8}

    whole = train_to(tmp_path / "whole", **keys)
    with pytest.raises(KeyboardInterrupt):
        train_to(tmp_path / "run", stop_after(3, stage=1), **keys)
    train_to(tmp_path / "run", **keys, resume=tmp_path / "run")
    assert model_bytes(tmp_path / "run") == model_bytes(whole)
