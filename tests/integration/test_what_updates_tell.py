"""What `docs/security.md` says that a malicious server reads within an agent's default limits.

Weights are the server's choice, and an update is a known function of them and of the client's rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from retexo_fl.agent.admission import admit
from retexo_fl.agent.limits import Limits
from retexo_fl.client.api import CollectRequest, PublishRequest, Ticket, TrainRequest, chain_digest
from retexo_fl.client.factory import InProcessClients
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.graph import GraphPartition
from retexo_fl.training.stage_model import ModelShape, StageModel
from retexo_fl.updates import with_zeros

KEYS: dict[str, Any] = {"clients": 5, "layers": 1, "dropout": 0.0}
FEATURES, CLASSES = 64, 10
TICKET = Ticket(job="job-0123456789ab", attempt=1, weights_digest=chain_digest(b"", None))

#: From (128, 10) weights of own and neighbours' rows, and (10,) biases, to their gradients.
Ask = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


@pytest.fixture(scope="module")
def parts() -> list[GraphPartition]:
    return make_parts(make_config(KEYS))


def asking(parts: list[GraphPartition], client: int) -> Ask:
    """Return a server's rounds with one client whose owner has said nothing."""
    config = admit(KEYS, parts[client], Limits())
    clients = InProcessClients(parts, config)
    for each in range(len(parts)):
        clients.find(TICKET.job, each).publish(PublishRequest(ticket=TICKET))
    asked = clients.find(TICKET.job, client)
    assert asked.collect(CollectRequest(ticket=TICKET)).complete
    shape = ModelShape.of(config, inputs=FEATURES, classes=CLASSES)
    names = [name for name, _ in StageModel(shape, 0).named_parameters()]
    assert names == ["layer.weight", "layer.bias"]
    rounds = iter(range(1, 1000))

    def ask(weight: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        flat = np.concatenate([weight.ravel(), bias]).astype(np.float32)
        ticket = replace(TICKET, round=next(rounds))
        answer = asked.ask(TrainRequest(ticket=ticket, weights=flat))
        found = with_zeros(answer.update_sum)
        return found[: weight.size].reshape(weight.shape), found[weight.size :]

    return ask


@pytest.mark.parametrize("client", range(5))
def test_one_update_tells_how_many_train_nodes_of_each_class(
    parts: list[GraphPartition], client: int
) -> None:
    part = parts[client]
    _, bias = asking(parts, client)(np.zeros((2 * FEATURES, CLASSES)), np.zeros(CLASSES))
    labels = np.asarray(part.labels)[np.asarray(part.train_mask)]
    found = np.rint(len(labels) / CLASSES - bias).astype(int)
    np.testing.assert_array_equal(found, np.bincount(labels, minlength=CLASSES))


@pytest.mark.parametrize("client", range(5))
def test_some_rounds_tell_the_row_of_a_node(parts: list[GraphPartition], client: int) -> None:
    """One class for all nodes beyond a threshold along a direction, which halves until one is."""
    ask, rounds = asking(parts, client), 0
    direction = np.random.default_rng(client).normal(size=FEATURES)

    def beyond(threshold: float) -> tuple[np.ndarray, float]:
        weight, bias = np.zeros((2 * FEATURES, CLASSES)), np.zeros(CLASSES)
        weight[:FEATURES, 0], bias[0] = 1e4 * direction, -1e4 * threshold
        of_weight, of_bias = ask(weight, bias)
        return of_weight[:FEATURES, 0], of_bias[0]

    row_of_none, none = beyond(1e5)
    low, high = -1e3, 1e3
    while True:
        rounds += 1
        assert rounds < 20
        row, found = beyond((low + high) / 2)
        if abs(found - none - 1) < 0.1:
            break
        low, high = ((low + high) / 2, high) if found - none > 1 else (low, (low + high) / 2)
    part = parts[client]
    rows = np.asarray(part.features)[np.asarray(part.train_mask)]
    assert len(rows) > 60
    assert np.abs(rows - (row - row_of_none)).max(axis=1).min() < 1e-3
