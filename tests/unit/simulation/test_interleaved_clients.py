"""One round for all clients of a process, started by the first message of the round."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from retexo_fl.client.api import (
    CollectRequest,
    EvaluateRequest,
    PublishRequest,
    Ticket,
    TrainRequest,
    chain_digest,
)
from retexo_fl.client.factory import InProcessClients
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.simulation.interleaved_clients import InterleavedClients
from retexo_fl.training.schedule import Schedule
from retexo_fl.training.stage_model import ModelShape

CLIENTS, JOB = 3, "job"
TICKET = Ticket(job=JOB, attempt=1, weights_digest=chain_digest(b"", None))


class Counted:
    """Clients after their exchange, and the purposes of all exchanges inside rounds."""

    def __init__(self) -> None:
        config = make_config(
            {
                **{"dataset": "synthetic:nodes=40,edges=120,classes=3,features=5"},
                **{"clients": CLIENTS, "algorithm": "standard", "hidden": 6},
            }
        )
        parts = make_parts(config)
        shape = ModelShape.of(config, inputs=parts[0].num_features, classes=parts[0].num_classes)
        self.weights = Schedule(shape=shape).initial(0, seed=0)
        self.purposes: list[str] = []
        everyone = InterleavedClients(
            InProcessClients(parts, config).find,
            CLIENTS,
            watch=lambda blocks, purpose: self.purposes.append(purpose),
        )
        self.clients = [everyone.find(JOB, client) for client in range(CLIENTS)]
        for client in self.clients:
            client.ask(PublishRequest(ticket=TICKET))
        for client in self.clients:
            assert client.ask(CollectRequest(ticket=TICKET)).complete


@pytest.fixture
def counted() -> Counted:
    return Counted()


def test_the_first_message_runs_the_round_of_all(counted: Counted) -> None:
    request = TrainRequest(ticket=replace(TICKET, round=1), weights=counted.weights)
    # Forward, backward, and forward again to validate: once, not once for each client.
    for client in counted.clients:
        answer = client.ask(request)
        assert counted.purposes == ["train", "train", "evaluate"]
        trained, validated = answer.training_traffic, answer.validation_traffic
        # Backward goes a gradient for every row that came.
        ends = validated.sent.boundary.raw, validated.received.boundary.raw
        assert trained.sent.boundary.raw == trained.received.boundary.raw == sum(ends)
    evaluation = EvaluateRequest(ticket=TICKET, weights=counted.weights, nodes="test")
    for client in counted.clients:
        client.ask(evaluation)
    assert counted.purposes[3:] == ["evaluate"]


@pytest.mark.parametrize("changed", ["round", "attempt"])
def test_another_message_runs_another_round(counted: Counted, changed: str) -> None:
    request = TrainRequest(ticket=replace(TICKET, round=1), weights=counted.weights)
    other = {
        "round": replace(request, ticket=replace(TICKET, round=2)),
        "attempt": replace(request, ticket=replace(TICKET, round=1, attempt=2)),
    }[changed]
    counted.clients[0].ask(request)
    answers = [client.ask(other) for client in counted.clients]
    assert len(counted.purposes) == 2 * 3
    again = [client.ask(other) for client in counted.clients]
    for one, same in zip(answers, again, strict=True):
        np.testing.assert_array_equal(one.update_sum, same.update_sum)
