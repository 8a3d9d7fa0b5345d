"""The strategy trains by Flower's hooks, in any ServerApp to what ``retexo run`` trains."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from retexo_fl.client.api import ClientApi, HelloAnswer, HelloRequest, Ticket
from retexo_fl.client.factory import InProcessClients
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import RunConfig, config_values
from retexo_fl.errors import ConfigurationError, LocalProtocolError, RoundIncomplete
from retexo_fl.federation import training as training_module
from retexo_fl.federation.asking import Ask, Round
from retexo_fl.federation.client_handlers import build_client_app, in_simulation
from retexo_fl.federation.records import read_answer, weights_record
from retexo_fl.federation.rounds.stage import StageTraining
from retexo_fl.federation.strategy import LazyMessagePassing
from retexo_fl.federation.trained_model import read_trained_model
from retexo_fl.simulation.inline_grid import InlineGrid
from retexo_fl.simulation.interleaved_clients import InterleavedClients
from retexo_fl.training.selection import Score
from retexo_fl.updates import UpdateCodec, UpdateKey
from tests.support.predictions import SMALL, write_small
from tests.support.runs import configured, ledger_of, result_of, stop_after, train
from tests.support.ways import way

ONE_SHOT: dict[str, Any] = {
    **{"solver": "ridge", "basis": "supervised", "basis_rows": "sums", "basis_blocks": 2},
    **{"row_bits": 8, "dropout": 0.0},
}
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
    {"algorithm": "lazy", "patience": 1, "rounds": 12},
    {"algorithm": "lazy", "min_clients": 2, "round_deadline_s": 9.0},
    {"secure_aggregation": "masked", "update_bits": 8, "weight_bits": 8},
    ONE_SHOT,
]


def _grid(config: RunConfig, codec: UpdateCodec | None = None) -> InlineGrid:
    clients = InProcessClients(make_parts(config), config)

    def coded(job: str, client: int) -> ClientApi:
        made = clients.find(job, client)
        made.weights.updates = made.weights.updates if codec is None else codec
        return made

    found = coded
    if config.traits.exchanges_in_rounds:
        found = InterleavedClients(coded, config.clients, codec=config.codec).find

    return InlineGrid(build_client_app(in_simulation(found)), config.clients, config_values(config))


def _config(folder: Path, **keys: Any) -> RunConfig:
    write_small(folder / "small.npz")
    return configured(folder / "run", **_keys(folder, **keys))


def _keys(folder: Path, **keys: Any) -> dict[str, Any]:
    return {**SMALL, "data_dir": folder, "clients": 3, "rounds": 4, "hidden": 8, **keys}


@pytest.mark.parametrize(
    "keys", [*map(way, TRAININGS)], ids=lambda keys: " ".join(map(str, keys.values()))
)
def test_a_server_app_trains_the_weights_of_a_run(tmp_path: Path, keys: dict[str, Any]) -> None:
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
        rounds = 0 if config.solver == "ridge" else outcome.rounds
        assert sorted(result.train_metrics_clientapp) == [*range(1, rounds + 1)]
        assert not result.evaluate_metrics_clientapp
        assert outcome.best_round == stage["best_round"]
    # Every byte, too: what clients exchanged, and every message.
    assert [*strategy.ledger.lines()] == [*ledger_of(run).lines()]


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
    monkeypatch.setattr(training_module, "StageTraining", AskingTwice)
    by_flower = LazyMessagePassing(config).start(grid=_grid(config))
    run = train(tmp_path / "run", **_keys(tmp_path, layers=1))
    rounds = [(number, client) for number in (1, 2, 3, 4) for client in (2, 0)]
    assert asked_again == 2 * rounds
    assert np.array_equal(plain.arrays["weights"].numpy(), by_flower.arrays["weights"].numpy())
    assert read_trained_model(run).weights[0].tobytes() == plain.arrays["weights"].numpy().tobytes()


class Inverted:
    """Sends weights with all bits the other way round."""

    sends_changes = False

    def encode(self, weights: np.ndarray, held: np.ndarray | None) -> np.ndarray:
        assert held is None
        return ~weights.view(np.uint8)

    def changed(self, coded: np.ndarray) -> bytes:
        return b""

    def decode(self, coded: np.ndarray, held: np.ndarray | None = None) -> np.ndarray:
        return (~coded).view(np.float32)


class Scrambled:
    """Sends bytes in an order that follows from the key: a codec whose ends must agree."""

    def __init__(self) -> None:
        self.weights, self.cut_share = Inverted(), 0.0
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

    def without(self, steps: bytes, blocks: np.ndarray) -> bytes:
        return steps

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


HOOKS = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate")
#: A training, and how many rounds it has in each stage.
WAYS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "by the paper's schedule": ({}, [4, 4]),
    "lean": (TRAININGS[8], [4, 4]),
    "one-shot": (ONE_SHOT, [0, 0]),
    "masked": ({"secure_aggregation": "masked"}, [4, 4]),
    "with patience": ({"patience": 1, "rounds": 12}, [-1, -1]),
    "end to end": ({"algorithm": "standard"}, [4]),
}


class Counted:
    """Counts calls of a strategy's hooks; they are told the round first of all."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.rounds: dict[str, list[int]] = {name: [] for name in HOOKS}
        for name in HOOKS:
            plain = getattr(LazyMessagePassing, name)

            def hook(
                strategy: LazyMessagePassing,
                server_round: int,
                *rest: Any,
                name: str = name,
                plain: Any = plain,
            ) -> Any:
                self.rounds[name].append(server_round)
                return plain(strategy, server_round, *rest)

            patch.setattr(LazyMessagePassing, name, hook)


@pytest.mark.parametrize("way", WAYS)
def test_every_round_of_a_run_goes_through_the_hooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    keys, rounds = WAYS[way]
    write_small(tmp_path / "small.npz")
    counted = Counted(monkeypatch)
    run = train(tmp_path / "run", **_keys(tmp_path, **keys))
    stages = result_of(run)["stages"]
    rounds = [
        stage["rounds"] if count < 0 else count for stage, count in zip(stages, rounds, strict=True)
    ]
    trained = [number for count in rounds for number in range(1, count + 1)]
    assert counted.rounds["configure_train"] == counted.rounds["aggregate_train"] == trained
    # After each round; for a stage's last weights, unless patience was lost; for the test.
    last = [0 if keys.get("patience") else stage["rounds"] for stage in stages]
    evaluated = [
        number
        for count, validated in zip(rounds, last, strict=True)
        for number in [*range(1, count + 1), *filter(None, [validated])]
    ]
    assert counted.rounds["configure_evaluate"] == [*evaluated, 0]
    assert counted.rounds["aggregate_evaluate"] == [*evaluated, 0]


def test_a_resumed_round_goes_through_the_hooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = _keys(tmp_path, layers=2, rounds=4)
    write_small(tmp_path / "small.npz")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", stop_after(2, stage=1), **keys)
    counted = Counted(monkeypatch)
    train(tmp_path / "run", resume=str(tmp_path / "run"), **keys)
    done = counted.rounds["configure_train"]
    assert done == [*range(done[0], 5)]
    assert 1 < done[0] <= 4
    assert counted.rounds["aggregate_train"] == done
    assert counted.rounds["configure_evaluate"] == [*done, 4, 0]


def test_a_subclass_changes_what_is_trained_on(tmp_path: Path) -> None:
    class Halved(LazyMessagePassing):
        def aggregate_train(
            self, server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord, MetricRecord]:
            arrays, metrics = super().aggregate_train(server_round, replies)
            half = arrays["weights"].numpy() / 2
            return weights_record(half), metrics

    config = _config(tmp_path, layers=1, rounds=2, optimizer="sgd", dropout=0.0)
    plain, halved = LazyMessagePassing(config), Halved(config)
    seen: dict[int, np.ndarray] = {}

    def look(number: int, arrays: ArrayRecord) -> None:
        seen[number] = arrays["weights"].numpy()

    plain.start(grid=_grid(config), num_rounds=1)
    halved.start(grid=_grid(config), evaluate_fn=look)
    assert sorted(seen) == [0, 1, 2]
    assert np.array_equal(seen[1], plain.training.stage.weights / 2)
    # The second round's step begins there.
    other = LazyMessagePassing(config)
    other.start(grid=_grid(config), num_rounds=1, initial_arrays=weights_record(seen[1]))
    assert np.array_equal(2 * seen[2], other.training.stage.weights)
    # What is validated last, and kept in a checkpoint, are the arrays that it has returned.
    assert np.array_equal(halved.training.stage.state().weights, seen[2])


class LeavesOut(LazyMessagePassing):
    """Asks client 1 for nothing."""

    def configure_train(self, *args: Any) -> Iterable[Message]:
        messages = list(super().configure_train(*args))
        return [m for m in reversed(messages) if m.metadata.dst_node_id != 3]


class LetsGo(LazyMessagePassing):
    """Believes nothing of what client 1 replies, and sees replies from the last to the first."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        kept = [reply for reply in replies if reply.metadata.src_node_id != 3]
        return super().aggregate_train(server_round, kept[::-1])


@pytest.mark.parametrize("kind", [LeavesOut, LetsGo])
def test_a_client_that_a_subclass_leaves_out_is_absent(
    tmp_path: Path, kind: type[LazyMessagePassing]
) -> None:
    config = _config(tmp_path, layers=1, min_clients=2, round_deadline_s=9.0)
    strategy = kind(config)
    strategy.start(grid=_grid(config))
    assert strategy.training.stage.absent == (1,)
    config = _config(tmp_path, layers=1)
    told = "no message to client 1; expected one to all that are asked, or min-clients"
    error: type[Exception] = ConfigurationError
    if kind is LetsGo:
        told, error = "stage 0, round 1: no answer from client 1 in time$", RoundIncomplete
    with pytest.raises(error, match=told):
        kind(config).start(grid=_grid(config))


def test_under_masks_nobody_of_a_cohort_can_be_left_out(tmp_path: Path) -> None:
    masked = {"secure_aggregation": "masked", "clients": 6, "cohort_size": 3}
    config = _config(tmp_path, **masked, layers=1, min_clients=3, round_deadline_s=9.0)
    with pytest.raises(ConfigurationError, match=r"no message to client 1; expected one to all cl"):
        LeavesOut(config).start(grid=_grid(config))


class AsksItsOwn(LazyMessagePassing):
    """Returns no arrays, so that none are trained, and evaluates by messages of its own."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        super().aggregate_train(server_round, replies)
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.is_own = not config
        if config:
            return super().configure_evaluate(server_round, arrays, config, grid)
        hello = HelloRequest(ticket=Ticket(job=self.joined.job.job, attempt=1))
        return self.joined.messenger.addressed([2, 4], hello)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        if not self.is_own:
            return super().aggregate_evaluate(server_round, replies)
        answers = [read_answer(HelloAnswer, reply) for reply in replies]
        return MetricRecord({"nodes": sum(answer.nodes for answer in answers)})


def test_a_subclass_may_keep_to_itself_what_it_returns(tmp_path: Path) -> None:
    config = _config(tmp_path, layers=1)
    plain, own = LazyMessagePassing(config), AsksItsOwn(config)
    plain.join(_grid(config))
    result = own.start(grid=_grid(config))
    assert np.array_equal(result.arrays["weights"].numpy(), plain.training.initial(0))
    assert np.array_equal(own.training.stage.weights, plain.training.initial(0))
    assert not result.train_metrics_clientapp
    nodes = sum(plain.joined.clients.hellos[client].nodes for client in (0, 2))
    assert {
        n: told["nodes"] for n, told in result.evaluate_metrics_clientapp.items()
    } == dict.fromkeys((1, 2, 3, 4), nodes)


def test_a_time_out_is_that_of_every_message(tmp_path: Path) -> None:
    config = _config(tmp_path, layers=1)
    grid, ttls = _grid(config), set[float]()
    push = grid.push_messages

    def see(messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        ttls.update(message.metadata.ttl for message in sent)
        return push(sent)

    strategy = LazyMessagePassing(config)
    strategy.join(grid)
    grid.push_messages = see  # type: ignore[method-assign]
    strategy.start(grid=grid, timeout=77.0)
    assert ttls == {77.0}


def test_there_are_no_more_stages_than_layers(tmp_path: Path) -> None:
    config = _config(tmp_path, layers=1)
    strategy, grid = LazyMessagePassing(config), _grid(config)
    strategy.start(grid=grid)
    with pytest.raises(ConfigurationError, match="all 1 stage are trained"):
        strategy.start(grid=grid)


def test_a_test_comes_last_and_nothing_goes_on_after_a_failure(tmp_path: Path) -> None:
    config = _config(tmp_path)
    strategy, grid = LetsGo(config), _grid(config)
    with pytest.raises(ConfigurationError, match="layers: 2 stages left to train"):
        strategy.test(grid)
    with pytest.raises(RoundIncomplete):
        strategy.start(grid=grid)
    with pytest.raises(ConfigurationError, match="has failed; expected a new strategy"):
        strategy.start(grid=grid)
