"""The strategy trains by Flower's own loop to the weights and the bytes of ``retexo run``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message

from retexo_fl.agent.api import ClientApi, Ticket
from retexo_fl.agent.factory import InProcessClients
from retexo_fl.agent.preparation import make_parts
from retexo_fl.config import RunConfig, config_values
from retexo_fl.errors import ConfigurationError, RoundIncomplete
from retexo_fl.federation.client_app import client_index
from retexo_fl.federation.client_handlers import build_client_app
from retexo_fl.federation.strategy import LazyMessagePassing
from retexo_fl.federation.trained_model import read_trained_model
from retexo_fl.simulation.inline_grid import InlineGrid
from retexo_fl.simulation.interleaved_clients import InterleavedClients
from tests.support.predictions import SMALL, write_small
from tests.support.runs import configured, ledger_of, result_of, train

TRAININGS: list[dict[str, Any]] = [
    {"algorithm": "lazy", "model": "sage"},
    {"algorithm": "lazy", "model": "gcn", "codec": "fixed", "boundary_plan": "cover"},
    {"algorithm": "lazy", "layers": 3, "dtype": "float64"},
    {"algorithm": "drop", "sampler": "neighbour", "batch_nodes": 8},
    {"algorithm": "standard", "model": "gcn"},
    {"algorithm": "lazy", "aggregator": "median", "local_steps": 2},
]


class Grid(InlineGrid):
    """Hands replies out from the last to the first, without some."""

    silent: frozenset[int] = frozenset()

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        replies = list(super().send_and_receive(messages, timeout=timeout))[::-1]
        return [reply for reply in replies if reply.metadata.src_node_id not in self.silent]


def _grid(config: RunConfig) -> Grid:
    parts = InProcessClients(make_parts(config), config).find
    found = parts
    if config.traits.exchanges_in_rounds:
        found = InterleavedClients(parts, config.clients, codec=config.codec).find  # type: ignore[assignment]

    def find(context: Context, ticket: Ticket) -> ClientApi:
        return found(ticket.job, client_index(context))

    return Grid(build_client_app(find), config.clients, config_values(config))


def _config(folder: Path, **keys: Any) -> RunConfig:
    write_small(folder / "small.npz")
    return configured(folder / "run", **_keys(folder, **keys))


def _keys(folder: Path, **keys: Any) -> dict[str, Any]:
    return {**SMALL, "data_dir": folder, "clients": 3, "rounds": 4, "hidden": 8, **keys}


@pytest.mark.parametrize("keys", TRAININGS, ids=lambda keys: " ".join(map(str, keys.values())))
def test_flowers_loop_trains_the_weights_of_a_run(tmp_path: Path, keys: dict[str, Any]) -> None:
    config = _config(tmp_path, **keys)
    strategy, grid = LazyMessagePassing(config), _grid(config)
    results = [strategy.start(grid=grid) for _ in range(strategy.stages)]
    tested = strategy.test(grid)
    run = train(tmp_path / "run", **_keys(tmp_path, **keys))
    told = result_of(run)
    trained = np.concatenate([result.arrays["weights"].numpy() for result in results])
    expected = np.concatenate(read_trained_model(run).weights)
    assert trained.tobytes() == expected.tobytes()
    assert tested["correct"] == round(told["test_accuracy"] * tested["examples"])
    for result, outcome, stage in zip(results, strategy.job.outcomes, told["stages"], strict=True):
        assert sorted(result.train_metrics_clientapp) == [1, 2, 3, 4]
        assert not result.evaluate_metrics_clientapp
        assert outcome.best_round == stage["best_round"]
    # Every byte, too: what clients exchanged and what Flower's loop carried.
    assert strategy.ledger.to_csv() == ledger_of(run).to_csv()


def test_every_round_can_be_evaluated_as_flower_does(tmp_path: Path) -> None:
    config = _config(tmp_path)
    strategy, grid = LazyMessagePassing(config), _grid(config)
    result = strategy.start(grid=grid, evaluate_config=ConfigRecord({"nodes": "validation"}))
    evaluated = result.evaluate_metrics_clientapp
    assert sorted(evaluated) == [1, 2, 3, 4]
    for number in (1, 2, 3):
        # A round validates the weights of the one before.
        later = result.train_metrics_clientapp[number + 1]
        for name in ("examples", "correct", "loss-sum"):
            assert evaluated[number][name] == pytest.approx(later[f"validation-{name}"])


def test_a_stage_can_begin_with_weights_of_its_users(tmp_path: Path) -> None:
    config = _config(tmp_path)
    strategy, grid = LazyMessagePassing(config), _grid(config)
    first = strategy.start(grid=grid, num_rounds=1)
    again, grid = LazyMessagePassing(config), _grid(config)
    second = again.start(grid=grid, num_rounds=1, initial_arrays=first.arrays)
    assert not np.array_equal(first.arrays["weights"].numpy(), second.arrays["weights"].numpy())


def test_clients_that_do_not_answer_are_named(tmp_path: Path) -> None:
    config = _config(tmp_path)
    strategy, grid = LazyMessagePassing(config), _grid(config)
    grid.silent = frozenset({3, 4})
    with pytest.raises(
        RoundIncomplete, match="stage 0, round 1: no answer from clients 1, 2 in time$"
    ):
        strategy.start(grid=grid)


def test_what_flowers_loop_cannot_do_is_refused(tmp_path: Path) -> None:
    for refused in ({"patience": 3}, {"min_clients": 2, "round_deadline_s": 9}):
        config = _config(tmp_path, **refused)
        key, value = next(iter(refused.items()))
        told = rf"^{key.replace('_', '-')}: {value}, but Flower's loop .*; expected 0$"
        with pytest.raises(ConfigurationError, match=told):
            LazyMessagePassing(config).start(grid=_grid(config))
    config = _config(tmp_path, layers=1)
    strategy, grid = LazyMessagePassing(config), _grid(config)
    strategy.start(grid=grid)
    with pytest.raises(ConfigurationError, match="all 1 stage are trained"):
        strategy.start(grid=grid)
