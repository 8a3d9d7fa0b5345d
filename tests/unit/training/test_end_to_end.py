"""The distributed gradient, and the sampled one, against what they stand for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array

from retexo_fl.client.api import (
    CollectRequest,
    PublishRequest,
    Ticket,
    TrainAnswer,
    TrainRequest,
    chain_digest,
)
from retexo_fl.client.factory import InProcessClients
from retexo_fl.client.peer_exchange import RoundName
from retexo_fl.client.preparation import make_parts
from retexo_fl.client.stage_rows import stage_input
from retexo_fl.config import make_config
from retexo_fl.errors import RemoteProtocolError, TrainingDiverged
from retexo_fl.graph import BoundaryPlan, make_split
from retexo_fl.graph.sources.synthetic import make_synthetic
from retexo_fl.layers.base import LayerShape, StageInput
from retexo_fl.layers.gcn import GcnLayer
from retexo_fl.layers.sage import SageLayer
from retexo_fl.methods.whole.answers import EndToEndClient
from retexo_fl.simulation.interleaved import run_round
from retexo_fl.training.boundary_rows import BoundaryRows
from retexo_fl.training.boundary_sampling import BoundarySampling, read_numbers
from retexo_fl.training.rounds import Steps
from retexo_fl.training.schedule import Schedule
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.updates import with_zeros

GRAPH = "synthetic:nodes=40,edges=120,classes=3,features=5"
CLIENTS = 3
JOB = "gradients"


class Federation:
    """Clients of a small graph after their only exchange, and the sum of a round over them."""

    def __init__(self, **keys: Any) -> None:
        values = {name.replace("_", "-"): value for name, value in keys.items()}
        self.config = make_config(
            {
                **{"dataset": GRAPH, "clients": CLIENTS, "algorithm": "standard", "hidden": 6},
                **{"heads": 2, "dtype": "float64", "split": "random:0.5/0.2/0.3", **values},
            }
        )
        parts = make_parts(self.config)
        self.shape = ModelShape.of(
            self.config, inputs=parts[0].num_features, classes=parts[0].num_classes
        )
        find = InProcessClients(parts, self.config).find
        self.ticket = Ticket(job=JOB, attempt=1, weights_digest=chain_digest(b"", None))
        self.clients: list[EndToEndClient] = []
        for index in range(CLIENTS):
            client = find(JOB, index)
            assert isinstance(client, EndToEndClient)
            client.publish(PublishRequest(ticket=self.ticket))
            self.clients.append(client)
        for client in self.clients:
            assert client.collect(CollectRequest(ticket=self.ticket)).complete

    def weights(self) -> np.ndarray:
        """Return initial weights whose zeros are drawn as well."""
        drawn = Schedule(shape=self.shape).initial(0, seed=0)
        noise = np.random.default_rng(1).normal(scale=0.1, size=drawn.shape)
        return np.where(drawn == 0, noise, drawn)

    def round(self, weights: np.ndarray, number: int = 1) -> list[TrainAnswer]:
        """Return every client's answer to one round."""
        # A client computes a round of an attempt with one content.
        self.ticket = replace(self.ticket, attempt=self.ticket.attempt + 1)
        ticket = replace(self.ticket, round=number)
        request = TrainRequest(ticket=ticket, weights=weights)
        steps = {c: client.train_steps(request) for c, client in enumerate(self.clients)}
        outcome = run_round(steps, RoundName(job=JOB))
        return [outcome.results[client] for client in range(CLIENTS)]


@pytest.mark.parametrize("model", ["gcn", "sage", "gat", "gin", "sage-pool"])
def test_distributed_gradient_equals_finite_differences(model: str) -> None:
    federation = Federation(model=model, layers=3)
    weights = federation.weights()
    gradient = np.sum(
        [with_zeros(answer.update_sum) for answer in federation.round(weights)], axis=0
    )
    rng = np.random.default_rng(2)
    for _ in range(3):
        direction = rng.normal(size=weights.shape)
        direction /= np.linalg.norm(direction)
        step = 1e-5
        ends = [
            sum(answer.loss_sum for answer in federation.round(weights + sign * step * direction))
            for sign in (1, -1)
        ]
        numeric = (ends[0] - ends[1]) / (2 * step)
        assert numeric == pytest.approx(float(gradient @ direction), rel=2e-5, abs=1e-6)


def test_a_client_without_train_nodes_hands_on_peers_gradients(tmp_path: Path) -> None:
    path = tmp_path / "owners.txt"
    path.write_text("\n".join(map(str, owners_without_train_nodes())))
    federation = Federation(model="gcn", partitioner=f"file:{path}")
    answer = federation.round(federation.weights())[2]
    assert answer.examples == 0
    assert np.abs(with_zeros(answer.update_sum)).max() > 1e-3


def mean_based(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """A sum over nodes that is no number for none."""
    return F.cross_entropy(logits, labels) * len(labels)


def test_a_loss_is_not_asked_what_no_nodes_cost(tmp_path: Path) -> None:
    path = tmp_path / "owners.txt"
    path.write_text("\n".join(map(str, owners_without_train_nodes())))
    keys = {"model": "gcn", "partitioner": f"file:{path}"}
    federations = Federation(**keys), Federation(**keys, loss=f"{__name__}:mean_based")
    first, second = (each.round(each.weights()) for each in federations)
    for plain, own in zip(first, second, strict=True):
        updates = with_zeros(own.update_sum), with_zeros(plain.update_sum)
        np.testing.assert_allclose(*updates, rtol=0, atol=1e-12)
        assert own.loss_sum == pytest.approx(plain.loss_sum, abs=1e-12)
        assert own.validation_loss_sum == pytest.approx(plain.validation_loss_sum, abs=1e-12)
    assert (second[2].examples, second[2].validation_examples) == (0, 0)


def test_a_diverged_training_is_named() -> None:
    federation = Federation(model="gcn")
    weights = federation.weights()
    weights[:] = np.inf
    with pytest.raises(TrainingDiverged, match="learning-rate"):
        federation.round(weights)


@pytest.mark.parametrize(("layer", "rate"), [(GcnLayer, 0.02), (SageLayer, 0.4)])
def test_sampled_aggregates_are_unbiased(
    layer: type[GcnLayer] | type[SageLayer], rate: float
) -> None:
    """Monte Carlo: the mean over rounds lies within three standard errors of the whole sum."""
    parts = make_parts(make_config({"dataset": GRAPH, "clients": CLIENTS}))
    plans = [BoundaryPlan.from_partition(part) for part in parts]
    rng = np.random.default_rng(5)
    rows = [rng.normal(size=(part.num_inner, 2)) + 1 for part in parts]
    inputs = [
        stage_input(part, plan, row, no_rows(plan), ())
        for part, plan, row in zip(parts, plans, rows, strict=True)
    ]
    scales = [layer.message_scale(each.degrees) for each in inputs]

    def aggregates(sampling: BoundarySampling | None, number: int) -> np.ndarray:
        ends = [BoundaryRows(p, s, sampling) for p, s in zip(plans, scales, strict=True)]
        steps = {c: received(ends[c], inputs[c], rows[c], number) for c in range(CLIENTS)}
        blocks = run_round(steps, RoundName(job=JOB)).results
        operators = [operator_of(layer, each) for each in inputs]
        return np.concatenate(
            [operators[c] @ np.concatenate([rows[c], blocks[c]]) for c in range(CLIENTS)]
        )

    # A scale that is off by a twentieth shows where errors are small; of few rows, in none of both.
    rounds = 300 if rate > 0.1 else 100
    sampling = BoundarySampling(rate=rate, scaled=True, seed=3)
    drawn = np.stack([aggregates(sampling, number) for number in range(1, rounds + 1)])
    whole = aggregates(None, 0)
    errors = drawn.std(axis=0, ddof=1) / np.sqrt(rounds)
    moving = errors > 1e-12
    assert moving.any()
    np.testing.assert_allclose(drawn.mean(axis=0)[~moving], whole[~moving], atol=1e-12)
    scores = ((drawn.mean(axis=0) - whole)[moving]) / errors[moving]
    # Of normal scores 0.27 % lie beyond three; of biased ones nearly all would.
    assert np.mean(np.abs(scores) > 3) < 0.03
    assert abs(scores.mean()) < 3 / np.sqrt(len(scores)) * np.sqrt(len(parts))
    assert scores.std() == pytest.approx(1, abs=0.35)


def test_samples_are_keyed_by_seed_round_and_client() -> None:
    part = make_parts(make_config({"dataset": GRAPH, "clients": CLIENTS}))[0]
    plan = BoundaryPlan.from_partition(part)
    sampling = BoundarySampling(rate=0.5, scaled=True, seed=3)

    def drawn(sampling: BoundarySampling, number: int) -> list[list[int]]:
        return [d.tolist() for d in sampling.draw(plan, part.boundary_hashes, number).values()]

    assert drawn(sampling, 1) == drawn(sampling, 1)
    assert drawn(sampling, 1) != drawn(sampling, 2)
    assert drawn(sampling, 1) != drawn(BoundarySampling(rate=0.5, scaled=True, seed=4), 1)
    for peer, numbers in sampling.draw(plan, part.boundary_hashes, 1).items():
        vectors = plan.peer(peer).receive.count
        assert len(numbers) == sampling.size(vectors) == max(1, vectors // 2)


@pytest.mark.parametrize("numbers", [[2.0, 1.0], [0.5, 1.0], [1.0, 1.0], [-1.0], [5.0], []])
def test_a_peer_that_asks_for_absent_vectors_is_refused(numbers: list[float]) -> None:
    with pytest.raises(RemoteProtocolError, match="client 4: requested vectors"):
        read_numbers(np.array(numbers).reshape(-1, 1), vectors=5, peer=4)


def owners_without_train_nodes() -> np.ndarray:
    """Return each node's owner; client 2 owns the test nodes."""
    graph = make_synthetic(GRAPH)
    nobody = np.zeros(graph.num_nodes, dtype=np.int64)
    split = make_split(graph, nobody, split="random:0.5/0.2/0.3", seed=0)
    return np.where(split.test, 2, np.arange(graph.num_nodes) % 2)


def no_rows(plan: BoundaryPlan) -> np.ndarray:
    return np.zeros((plan.num_slots, 2))


def operator_of(layer: type[GcnLayer] | type[SageLayer], inputs: StageInput) -> csr_array:
    built = layer(LayerShape(inputs=2, outputs=2, hidden=2))
    return built.operator(inputs)


def received(
    end: BoundaryRows, inputs: StageInput, rows: np.ndarray, number: int
) -> Steps[np.ndarray]:
    draw = yield from end.draw(inputs.slot_hashes, number)
    block = yield from end.forward(rows, draw, label="forward-1", purpose="train")
    return block
