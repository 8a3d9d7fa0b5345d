"""SCAFFOLD against the algorithm written out, on quadratic losses that differ between clients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from retexo_fl.client.api import Ticket, TrainAnswer, TrainRequest
from retexo_fl.config import make_config
from retexo_fl.errors import ConfigurationError
from retexo_fl.federation.asking import WaitPolicy
from retexo_fl.federation.greeting import Participants
from retexo_fl.federation.rounds.clients import Clients
from retexo_fl.federation.rounds.stage_state import StageState
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.ledger import TrafficLedger
from retexo_fl.methods.pieces.local_steps.script import CorrectedStage
from retexo_fl.training.local_steps import take_steps
from retexo_fl.training.recipe import LocalSteps
from retexo_fl.training.rounds import Steps, run_alone, without_exchange
from retexo_fl.training.tally import PassSums, Tally
from retexo_fl.updates import PlainUpdates
from tests.support.promises import hello_of

SIZE = 4
STEPS, RATE = 5, 0.1
NODES = {0: 3, 1: 7, 2: 5}
KEYS = {
    "clients": 3,
    "dtype": "float64",
    "weight-decay": 0.01,
    "local-steps": STEPS,
    "local-optimizer": "sgd",
    "local-learning-rate": RATE,
    "local-correction": "scaffold",
}
TICKET = Ticket(job="job-0123456789ab", attempt=1, weights_digest=bytes(32))
#: By round, who does not answer; later everybody does.
ABSENT = {1: {1}, 3: {0, 2}, 4: {2}}


@dataclass(frozen=True)
class Quadratic:
    """A client's mean loss: ``(w - b)' A (w - b) / 2``, and half of 0.01 |w|^2."""

    curvature: np.ndarray
    minimum: np.ndarray

    def gradient(self, weights: np.ndarray) -> np.ndarray:
        found: np.ndarray = self.curvature @ (weights - self.minimum)
        return found


def quadratics() -> dict[int, Quadratic]:
    rng = np.random.default_rng(0)
    found = {}
    for client in NODES:
        root = rng.normal(size=(SIZE, SIZE))
        found[client] = Quadratic(root @ root.T / SIZE + 0.2 * np.eye(SIZE), rng.normal(size=SIZE))
    return found


def optimum(losses: dict[int, Quadratic]) -> np.ndarray:
    """Return the weights of smallest loss over all train nodes, with weight decay."""
    shares = {client: count / sum(NODES.values()) for client, count in NODES.items()}
    curvature = sum(shares[c] * loss.curvature for c, loss in losses.items()) + 0.01 * np.eye(SIZE)
    pull = sum(shares[c] * loss.curvature @ loss.minimum for c, loss in losses.items())
    return np.linalg.solve(curvature, pull)


def scaffold(losses: dict[int, Quadratic], rounds: int) -> Iterator[np.ndarray]:
    """Yield the weights after each round: Karimireddy et al., algorithm 1, option II.

    Each client keeps its own control variate; weighed by train nodes, with a global step of 1.
    """
    x, c, controls = np.ones(SIZE), np.zeros(SIZE), {client: np.zeros(SIZE) for client in NODES}
    everyone = sum(NODES.values())
    for number in range(1, rounds + 1):
        sampled = [client for client in NODES if client not in ABSENT.get(number, set())]
        changes, control_changes = {}, {}
        for client in sampled:
            y = x.copy()
            for _ in range(STEPS):
                gradient = losses[client].gradient(y) + 0.01 * y
                y = y - RATE * (gradient - controls[client] + c)
            renewed = controls[client] - c + (x - y) / (STEPS * RATE)
            changes[client], control_changes[client] = y - x, renewed - controls[client]
            controls[client] = renewed
        there = sum(NODES[client] for client in sampled)
        x = x + sum(NODES[client] * changes[client] for client in sampled) / there
        c = c + sum(NODES[client] * control_changes[client] for client in sampled) / everyone
        yield x


def stage(state: StageState | None = None, **keys: Any) -> CorrectedStage:
    hellos = {client: hello_of(client, train=count) for client, count in NODES.items()}
    return CorrectedStage(
        make_config({**KEYS, **keys}),
        TICKET,
        state or StageState.first(np.ones(SIZE)),
        clients=Clients(hellos=hellos, policy=WaitPolicy(timeout_s=9.0), ledger=TrafficLedger()),
        participants=Participants(
            training=(0, 1, 2), validation=(0, 1, 2), everyone=(0, 1, 2), updating=(0, 1, 2)
        ),
        codec=PlainUpdates(),
    )


def answer(loss: Quadratic, client: int, request: TrainRequest) -> TrainAnswer:
    """Take a client's steps as it takes them, from what is in the request alone."""
    weights, correction = request.weights[:SIZE], request.weights[SIZE:]
    assert len(request.weights) == (SIZE if request.ticket.round == 1 else 2 * SIZE)
    nodes = NODES[client]

    def sums(weights: np.ndarray, place: KeyedDropout | None = None) -> PassSums:
        del place
        return PassSums(gradient_sum=loss.gradient(weights) * nodes, train=Tally(count=nodes))

    def sums_at(weights: np.ndarray, place: KeyedDropout) -> Steps[PassSums]:
        return without_exchange(sums(weights, place))

    update = take_steps(
        LocalSteps(count=STEPS, optimizer="sgd", learning_rate=RATE, weight_decay=0.01),
        weights,
        sums(weights),
        KeyedDropout(rate=0.0, seed=0, stage=0, round=request.ticket.round),
        nodes=nodes,
        sums_at=sums_at,
        correction=correction if len(correction) else None,
    )
    return TrainAnswer(
        update_sum=run_alone(update),
        examples=nodes,
        loss_sum=1.0,
        validation_examples=3,
        validation_loss_sum=1.0,
        validation_correct=1,
    )


def trained(training: CorrectedStage, rounds: int) -> Iterator[np.ndarray]:
    """Yield the weights after each round of a stage."""
    losses = quadratics()
    for number in range(training.round + 1, rounds + 1):
        asking = training.train()
        there = [client for client in NODES if client not in ABSENT.get(number, set())]
        requests = next(asking).requests
        found = [(client, answer(losses[client], client, requests[client])) for client in there]  # type: ignore[arg-type]
        with pytest.raises(StopIteration):
            asking.send(iter(found))
        yield training.weights.copy()


def test_rounds_are_those_of_the_algorithm_where_clients_miss_some() -> None:
    expected = list(scaffold(quadratics(), 12))
    for number, found in enumerate(trained(stage(), 12)):
        np.testing.assert_allclose(found, expected[number], rtol=1e-11, atol=1e-13)


def test_corrected_steps_reach_the_optimum_and_averages_of_others_do_not() -> None:
    best = optimum(quadratics())
    *_, corrected = trained(stage(), 300)
    *_, averaged = trained_without(300)
    assert np.abs(corrected - best).max() < 1e-9
    assert np.abs(averaged - best).max() > 1e-2


def trained_without(rounds: int) -> Iterator[np.ndarray]:
    """Yield the weights of averaging without corrections."""
    losses, weights = quadratics(), np.ones(SIZE)
    for _ in range(rounds):
        request = TrainRequest(
            ticket=Ticket(job="job-0123456789ab", attempt=1, round=1), weights=weights
        )
        answers = [answer(losses[client], client, request) for client in NODES]
        everyone = sum(NODES.values())
        weights = weights + sum(found.update_sum for found in answers) / everyone
        yield weights


@pytest.mark.parametrize("cut", [1, 4])
def test_a_restored_stage_goes_on_with_the_same_bits(cut: int) -> None:
    whole = list(trained(stage(), 8))
    first = stage()
    list(trained(first, cut))
    assert sorted(first.state().controls) == ([0, 2] if cut == 1 else [0, 1, 2])
    for one, other in zip(trained(stage(first.state()), 8), whole[cut:], strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"local-steps": 1}, "local-correction: scaffold changes nothing with local-steps 1"),
        (
            {"local-optimizer": "adam"},
            "local-correction: .* local-optimizer 'adam'.*expected .*sgd",
        ),
        ({"proximal-mu": 0.1}, "local-correction: .* proximal-mu 0.1.*; expected proximal-mu 0"),
        ({"aggregator": "median"}, "local-correction: .* aggregator 'median'.*expected .*mean"),
        ({"weight-bits": 8}, "local-correction: .* weight-bits 8.*; expected weight-bits 32"),
    ],
)
def test_what_does_not_go_with_corrections_is_refused(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{told}"):
        make_config({**KEYS, **keys})
