"""The strategy trains by Flower's own loop to the weights and the bytes of ``retexo run``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message

from retexo_fl.client.api import ClientApi, HelloRequest, Ticket
from retexo_fl.client.factory import InProcessClients
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import RunConfig, config_values
from retexo_fl.errors import ConfigurationError, LocalProtocolError, RoundIncomplete
from retexo_fl.federation import strategy as strategy_module
from retexo_fl.federation.asking import Ask, Round
from retexo_fl.federation.client_app import client_index
from retexo_fl.federation.client_handlers import build_client_app
from retexo_fl.federation.rounds.stage import StageTraining
from retexo_fl.federation.strategy import LazyMessagePassing
from retexo_fl.federation.trained_model import read_trained_model
from retexo_fl.ledger import Account, TrafficLedger, Volume
from retexo_fl.simulation.inline_grid import InlineGrid
from retexo_fl.simulation.interleaved_clients import InterleavedClients
from retexo_fl.training.selection import Score
from retexo_fl.updates import UpdateCodec, UpdateKey
from tests.support.predictions import SMALL, write_small
from tests.support.runs import configured, ledger_of, result_of, train

TRAININGS: list[dict[str, Any]] = [
    {"algorithm": "lazy", "model": "sage"},
    {"algorithm": "lazy", "model": "gcn", "codec": "fixed", "boundary_plan": "cover"},
    {"algorithm": "lazy", "layers": 3, "dtype": "float64"},
    {"algorithm": "drop", "sampler": "neighbour", "batch_nodes": 8},
    {"algorithm": "standard", "model": "gcn"},
    {"algorithm": "standard", "model": "sage", "update_bits": 8, "weight_bits": 4},
    {"algorithm": "lazy", "aggregator": "median", "local_steps": 2},
    {
        "algorithm": "lazy",
        "local_steps": 2,
        "local_optimizer": "sgd",
        "local_correction": "scaffold",
    },
    {
        **{"model": "gcn", "optimizer": "lbfgs", "warm_start": True, "dropout": 0.0},
        **{"basis": "supervised", "basis_bits": 8},
        **{"update_bits": 8, "weight_bits": 8, "row_bits": 8},
    },
]


class Grid(InlineGrid):
    """Hands replies out from the last to the first, without some."""

    silent: frozenset[int] = frozenset()

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        replies = list(super().send_and_receive(messages, timeout=timeout))[::-1]
        return [reply for reply in replies if reply.metadata.src_node_id not in self.silent]


def _grid(config: RunConfig, codec: UpdateCodec | None = None) -> Grid:
    parts = InProcessClients(make_parts(config), config, codec=codec).find
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
    for result, outcome, stage in zip(
        results, strategy.joined.job.outcomes, told["stages"], strict=True
    ):
        assert sorted(result.train_metrics_clientapp) == [1, 2, 3, 4]
        assert not result.evaluate_metrics_clientapp
        assert outcome.best_round == stage["best_round"]
    # Every byte, too: what clients exchanged and what Flower's loop carried. There, an exchange has
    # messages of its own.
    along = {"collect"} if config.weight_bits < 32 else set()
    assert _entries(strategy.ledger, along) == _entries(ledger_of(run), along)


def _entries(ledger: TrafficLedger, without: set[str]) -> list[tuple[Account, Volume]]:
    return [entry for entry in ledger.lines() if entry[0].purpose not in without]


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


def test_a_round_that_asks_again_is_carried_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_again: list[tuple[int, int]] = []

    class AskingTwice(StageTraining):
        def train(self, weights: np.ndarray | None = None) -> Round[Score]:
            score = yield from super().train(weights)
            request = HelloRequest(ticket=self.ticket)
            answers = yield Ask.of([2, 0], request, stage=0, purpose="hello")
            asked_again.extend((self.round, client) for client, _ in answers)
            return score

    config = _config(tmp_path, layers=1)
    plain = LazyMessagePassing(config).start(grid=_grid(config))
    monkeypatch.setattr(strategy_module, "StageTraining", AskingTwice)
    by_flower = LazyMessagePassing(config).start(grid=_grid(config))
    run = train(tmp_path / "run", **_keys(tmp_path, layers=1))
    rounds = [(number, client) for number in (1, 2, 3, 4) for client in (2, 0)]
    assert asked_again == 2 * rounds
    assert np.array_equal(plain.arrays["weights"].numpy(), by_flower.arrays["weights"].numpy())
    assert read_trained_model(run).weights[0].tobytes() == plain.arrays["weights"].numpy().tobytes()


class Scrambled:
    """Sends bytes in an order that follows from the key: a codec whose ends must agree."""

    def __init__(self) -> None:
        self.keys: set[UpdateKey] = set()
        self.steps_of: dict[tuple[int, int], set[bytes]] = {}
        self.last = b""

    def first_steps(self, size: int, *, most_train: int, terms: int) -> bytes:
        return b""

    def measure(self, update: np.ndarray, coded: np.ndarray) -> np.ndarray:
        assert coded.dtype == np.uint8
        found: np.ndarray = np.abs(update[:2])
        return found

    def steps(self, largest: np.ndarray, before: bytes) -> bytes:
        assert before in {b"", self.last}
        self.last = largest.tobytes()
        return self.last

    def most_cut(self, values: int) -> int:
        return 0

    def encode_update(
        self,
        update_sum: np.ndarray,
        key: UpdateKey,
        steps: bytes,
        spans: np.ndarray | None = None,
    ) -> np.ndarray:
        self.keys.add(key)
        self.steps_of.setdefault((key.stage, key.round), set()).add(steps)
        coded: np.ndarray = update_sum.view(np.uint8)[self._order(update_sum.nbytes, key)]
        return coded

    def decode_update(self, coded: np.ndarray, key: UpdateKey, steps: bytes) -> np.ndarray:
        assert steps in self.steps_of[key.stage, key.round]
        assert coded.dtype == np.uint8
        plain = np.empty_like(coded)
        plain[self._order(coded.nbytes, key)] = coded
        return plain.view(np.float32)

    def groups(self, coded: np.ndarray) -> None:
        del coded

    sends_changes = False

    def encode_weights(
        self, weights: np.ndarray, key: UpdateKey, held: np.ndarray | None
    ) -> np.ndarray:
        assert held is None
        return ~weights.view(np.uint8)

    def changed(self, coded: np.ndarray) -> bytes:
        return b""

    def decode_weights(self, coded: np.ndarray, held: np.ndarray | None = None) -> np.ndarray:
        return (~coded).view(np.float32)

    def _order(self, size: int, key: UpdateKey) -> np.ndarray:
        words = (key.seed, key.stage, key.round, key.client, *key.job.encode())
        return np.random.default_rng(words).permutation(size)


@pytest.mark.parametrize("algorithm", ["lazy", "standard"])
def test_updates_and_weights_travel_as_their_codec_has_them(tmp_path: Path, algorithm: str) -> None:
    config = _config(tmp_path, algorithm=algorithm)
    codec = Scrambled()
    plain = LazyMessagePassing(config)
    coded = LazyMessagePassing(config, codec=codec)
    grids = _grid(config), _grid(config, codec=codec)
    for _ in range(plain.stages):
        expected = plain.start(grid=grids[0])
        found = coded.start(grid=grids[1])
        assert (
            found.arrays["weights"].numpy().tobytes()
            == expected.arrays["weights"].numpy().tobytes()
        )
    assert dict(coded.test(grids[1])) == dict(plain.test(grids[0]))
    told = {(key.stage, key.round, key.client) for key in codec.keys}
    assert told == {(s, r, c) for s in range(plain.stages) for r in (1, 2, 3, 4) for c in (0, 1, 2)}
    # A round's clients have the same, and the first round of a stage none.
    assert {len(steps) for steps in codec.steps_of.values()} == {1}
    assert all((steps == {b""}) == (n == 1) for (_, n), steps in codec.steps_of.items())
    with pytest.raises(LocalProtocolError, match="got uint8 weights"):
        LazyMessagePassing(config, codec=codec).start(grid=_grid(config))


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
