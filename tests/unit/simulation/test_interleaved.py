"""A small algorithm that exchanges inside a round: two steps of a distributed random walk."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from retexo_fl.client.peer_exchange import RoundName
from retexo_fl.errors import LocalProtocolError
from retexo_fl.simulation.interleaved import run_round
from retexo_fl.training.rounds import InnerExchange, Steps

NODES, WIDTH = 12, 3
OWNER = np.arange(NODES) % 3


def adjacency() -> np.ndarray:
    rng = np.random.default_rng(0)
    upper = np.triu(rng.random((NODES, NODES)) < 0.4, k=1)
    return (upper | upper.T).astype(float)


class WalkStep:
    """Multiplies the client's rows by the adjacency twice, fetching peers' rows in between."""

    def __init__(self, client: int, labels: tuple[str, ...] = ("hop-1", "hop-2")) -> None:
        self.client, self.labels = client, labels
        self.inner = np.flatnonzero(client == OWNER)

    def needed(self, by: int, of: int) -> np.ndarray:
        reached = adjacency()[by == OWNER].any(axis=0)
        return np.flatnonzero(reached & (of == OWNER))

    def __call__(self, weights: np.ndarray, round_number: int) -> Steps[np.ndarray]:
        rows = np.zeros((NODES, len(weights)))
        rows[self.inner] = np.outer(self.inner + round_number, weights)
        peers = [peer for peer in range(3) if peer != self.client]
        for label in self.labels:
            received = yield InnerExchange(
                label=label,
                purpose="train" if label == "hop-1" else "evaluate",
                outgoing={p: rows[self.needed(p, self.client)] for p in peers},
                expected={p: len(self.needed(self.client, p)) for p in peers},
                width=len(weights),
            )
            for peer, vectors in received.items():
                rows[self.needed(self.client, peer)] = vectors
            product = adjacency() @ rows
            rows = np.zeros_like(rows)
            rows[self.inner] = product[self.inner]
        return rows[self.inner]


def walk(client: int) -> Callable[[np.ndarray, int], Steps[np.ndarray]]:
    return WalkStep(client)


def test_run_round_equals_the_walk_on_the_whole_graph() -> None:
    weights = np.array([1.0, -2.0, 0.5])
    steps = {client: walk(client)(weights, 4) for client in range(3)}
    outcome = run_round(steps, RoundName(job="walk"))
    whole = adjacency() @ adjacency() @ np.outer(np.arange(NODES) + 4, weights)
    for client, rows in outcome.results.items():
        np.testing.assert_array_equal(rows, whole[client == OWNER])


def test_run_round_counts_what_each_client_sent() -> None:
    steps = {client: walk(client)(np.ones(WIDTH), 1) for client in range(3)}
    outcome = run_round(steps, RoundName(job="walk"))
    for client in range(3):
        vectors = sum(len(WalkStep(client).needed(p, client)) for p in range(3) if p != client)
        for purpose in ("train", "evaluate"):
            sent = outcome.moved[client][purpose].sent.boundary
            assert (sent.raw, sent.messages) == (vectors * WIDTH * 8, 2)
    for purpose in ("train", "evaluate"):
        ends = [outcome.moved[client][purpose] for client in range(3)]
        sent_bytes = sum(end.sent.boundary.payload for end in ends)
        assert sent_bytes == sum(end.received.boundary.payload for end in ends)


def test_run_round_tells_of_every_exchange() -> None:
    steps = {client: walk(client)(np.ones(WIDTH), 1) for client in range(3)}
    seen: list[Mapping[tuple[int, int], int]] = []
    purposes: list[str] = []

    def watch(blocks: Mapping[tuple[int, int], int], purpose: str) -> None:
        seen.append(blocks)
        purposes.append(purpose)

    outcome = run_round(steps, RoundName(job="walk"), watch)
    assert purposes == ["train", "evaluate"]
    wire = [
        sum(getattr(outcome.moved[c][purpose].sent, kind).wire for c in range(3))
        for purpose in ("train", "evaluate")
        for kind in ("boundary", "control")
    ]
    assert [sum(blocks.values()) for blocks in seen] == [sum(wire[:2]), sum(wire[2:])]


def test_run_round_refuses_clients_that_disagree() -> None:
    steps = {
        c: WalkStep(c, ("hop-1", "other" if c == 2 else "hop-2"))(np.ones(2), 1) for c in range(3)
    }
    with pytest.raises(LocalProtocolError, match="disagree on the next exchange"):
        run_round(steps, RoundName(job="walk"))


def test_run_round_refuses_a_client_that_ends_early() -> None:
    steps = {
        c: WalkStep(c, ("hop-1",) if c == 1 else ("hop-1", "hop-2"))(np.ones(2), 1)
        for c in range(3)
    }
    with pytest.raises(LocalProtocolError, match=r"clients \[1\] ended their round"):
        run_round(steps, RoundName(job="walk"))


def test_run_round_refuses_vectors_that_were_not_agreed() -> None:
    def step(client: int) -> Steps[None]:
        other = 1 - client
        yield InnerExchange(
            label="x",
            purpose="train",
            outgoing={other: np.ones((2, 3))},
            expected={other: 2 + client},
            width=3,
        )

    with pytest.raises(LocalProtocolError, match="client 0 sends .* expects 3 of width 3"):
        run_round({0: step(0), 1: step(1)}, RoundName(job="walk"))


def test_run_round_refuses_a_client_that_sends_too_little() -> None:
    def step(client: int) -> Steps[None]:
        other = 1 - client
        outgoing = {other: np.ones((2, 3))} if client else {}
        yield InnerExchange(
            label="x", purpose="train", outgoing=outgoing, expected={other: 2}, width=3
        )

    with pytest.raises(LocalProtocolError, match=r"client 1 expects vectors of clients \[0\]"):
        run_round({0: step(0), 1: step(1)}, RoundName(job="walk"))
