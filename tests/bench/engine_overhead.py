"""The in-process engine's own cost for each client and round.

The real ServerApp, ClientApp and grid run whole trainings, with checkpoints and ledger, against
clients that answer at once: what is left is the engine.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from flwr.app import Context, RecordDict

from retexo_fl.client.api import (
    MESSAGE_VERSION,
    Answering,
    ClientApi,
    CollectAnswer,
    CollectRequest,
    EvaluateAnswer,
    EvaluateRequest,
    HelloAnswer,
    HelloRequest,
    PredictAnswer,
    PredictRequest,
    PublishAnswer,
    PublishRequest,
    SparseSums,
    Ticket,
    TrainAnswer,
    TrainRequest,
)
from retexo_fl.config import config_values, make_config
from retexo_fl.federation.client_handlers import build_client_app, client_index
from retexo_fl.federation.server_app import make_server_app
from retexo_fl.ledger import Traffic
from retexo_fl.run_log.events import Event, RoundClosed, Started
from retexo_fl.simulation.inline_grid import InlineGrid
from tests.bench.measure import Spread, quotient
from tests.bench.outcome import Outcome, Row

#: The most milliseconds that a client may cost in a round.
_TARGET_MS: Final = 1.0
#: Widths of the input that give layers like those of ``digits`` and of Cora.
_WIDTHS: Final = {"5 k weights": 64, "92 k weights": 1433}
_HIDDEN, _CLASSES = 64, 10
#: One test node, of the first class, and found to be.
_REPORT = SparseSums.of(np.eye(1, _CLASSES**2)[0])


@dataclass(frozen=True, slots=True)
class IdleClient(Answering):
    """Answers every message with something that is ready.

    Attributes:
        client: Its index.
        clients: How many there are.
        features: Width of the input that it claims to have.
        updates: Fixed updates by their size, shared by all clients.
    """

    client: int
    clients: int
    features: int
    updates: dict[int, np.ndarray]

    def hello(self, request: HelloRequest) -> HelloAnswer:
        """See :class:`ClientApi`."""
        del request
        return HelloAnswer(
            version=MESSAGE_VERSION,
            client=self.client,
            num_clients=self.clients,
            partitioning="0" * 64,
            nodes=4,
            train=2,
            validation=1,
            test=1,
            features=self.features,
            classes=_CLASSES,
            vectors_out=0,
            vectors_in=0,
            # Train, validation and test nodes of every class.
            label_uses=(7,) * _CLASSES,
        )

    def publish(self, request: PublishRequest) -> PublishAnswer:
        """See :class:`ClientApi`."""
        del request
        return PublishAnswer(vectors=0, traffic=Traffic())

    def collect(self, request: CollectRequest) -> CollectAnswer:
        """See :class:`ClientApi`."""
        del request
        return CollectAnswer(complete=True, missing=0, missing_peers=0, traffic=Traffic())

    def train_layer(self, request: TrainRequest) -> TrainAnswer:
        """See :class:`ClientApi`."""
        size = len(request.weights)
        if size not in self.updates:
            self.updates[size] = np.full(size, 1e-3, dtype=request.weights.dtype)
        return TrainAnswer(
            update_sum=self.updates[size],
            examples=2,
            loss_sum=1.0,
            validation_examples=1,
            validation_loss_sum=0.5,
            validation_correct=1,
        )

    def evaluate_layer(self, request: EvaluateRequest) -> EvaluateAnswer:
        """See :class:`ClientApi`."""
        report = _REPORT if request.nodes == "test" else SparseSums()
        return EvaluateAnswer(examples=1, loss_sum=0.5, correct=1, report=report)

    def predict(self, request: PredictRequest) -> PredictAnswer:
        """See :class:`ClientApi`."""
        del request
        return PredictAnswer(
            nodes=4,
            train=2,
            train_correct=1,
            validation=1,
            validation_correct=1,
            test=1,
            test_correct=1,
        )


@dataclass(slots=True)
class RoundClock:
    """A listener that takes the time from round to round of the first stage.

    Attributes:
        cpu_s: CPU seconds of whole rounds, checkpoint and ledger included.
        wall_s: Their wall seconds, with what the disk takes.
    """

    cpu_s: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)
    _last: tuple[float, float] | None = None

    def __call__(self, event: Event) -> None:
        """Note a round; between two runs lies none."""
        if isinstance(event, Started):
            self._last = None
        if not isinstance(event, RoundClosed) or event.stage or event.round == event.rounds:
            return
        now = (time.process_time(), time.perf_counter())
        if self._last is not None:
            self.cpu_s.append(now[0] - self._last[0])
            self.wall_s.append(now[1] - self._last[1])
        self._last = now


def run(quick: bool, data_dir: Path | None) -> Outcome:
    """Time rounds of many idle clients, few idle clients, and many without checkpoints."""
    del data_dir
    many, few, rounds, turns = (6, 3, 5, 1) if quick else (1000, 100, 8, 2)
    ratios, times = [], []
    for label, width in _WIDTHS.items():
        clocks = {name: RoundClock() for name in ("many", "few", "unsaved")}
        for _ in range(turns):
            run_idle(clocks["many"], clients=many, features=width, rounds=rounds)
            run_idle(clocks["few"], clients=few, features=width, rounds=rounds)
            run_idle(clocks["unsaved"], clients=many, features=width, rounds=rounds, save=False)
        cost = per_client_ms(clocks["many"].cpu_s, many)
        wall = per_client_ms(clocks["many"].wall_s, many)
        fewer = per_client_ms(clocks["few"].cpu_s, few)
        unsaved = per_client_ms(clocks["unsaved"].cpu_s, many)
        each = f"{label}, {many} clients"
        times += [
            Row(metric=f"{each}, no checkpoints: CPU per client", unit="ms", spread=unsaved),
            Row(metric=f"{label}, {few} clients: CPU per client", unit="ms", spread=fewer),
        ]
        ratios += [
            _bounded(f"{each}: CPU per client", "ms", cost, _TARGET_MS),
            _bounded(f"{each}: wall time per client", "ms", wall, _TARGET_MS),
            Row(
                metric=f"{label}: per client, {many} / {few} clients",
                unit="x",
                spread=quotient(cost, fewer),
            ),
            Row(
                metric=f"{each}: with / without checkpoints",
                unit="x",
                spread=quotient(cost, unsaved),
            ),
        ]
    setting = {"clients": many, "hidden": _HIDDEN, "classes": _CLASSES, "model": "gcn"}
    return Outcome(name="engine_overhead", setting=setting, ratios=ratios, times=times)


def run_idle(
    clock: RoundClock, *, clients: int, features: int, rounds: int, save: bool = True
) -> None:
    """Run a whole training of idle clients."""
    updates: dict[int, np.ndarray] = {}
    idle = [IdleClient(client, clients, features, updates) for client in range(clients)]

    def find_client(context: Context, ticket: Ticket) -> ClientApi:
        del ticket
        return idle[client_index(context)]

    with tempfile.TemporaryDirectory() as folder:
        config = make_config(
            {
                "clients": clients,
                "model": "gcn",
                "hidden": _HIDDEN,
                "rounds": rounds,
                "checkpoint-every": 1 if save else rounds,
                "out": str(Path(folder) / "run"),
            }
        )
        values = config_values(config)
        grid = InlineGrid(build_client_app(find_client), clients, values)
        context = Context(
            run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=dict(values)
        )
        make_server_app([clock])(grid, context)


def per_client_ms(seconds: list[float], clients: int) -> Spread:
    """Summarise rounds as milliseconds for each client."""
    return Spread.of([1e3 * second / clients for second in seconds])


def _bounded(metric: str, unit: str, spread: Spread, target: float) -> Row:
    return Row(metric=metric, unit=unit, spread=spread, target=target, at_most=True)
