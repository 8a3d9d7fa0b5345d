"""Of answers under masks neither length nor words follow from a client's data.

Two federations whose parts differ in everything, nodes, edges, features, labels and splits, are
asked the same; each answer is compared as it would leave its agent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.agent import wire
from retexo_fl.client import schema
from retexo_fl.client.api import (
    BasisRequest,
    CollectRequest,
    GramRequest,
    HelloRequest,
    KeysRequest,
    PredictRequest,
    PublishRequest,
    Request,
    chain_digest,
)
from retexo_fl.errors import RetexoError
from retexo_fl.masking.step import SharedStep
from retexo_fl.training.basis import Basis, BasisForm
from retexo_fl.training.stage_model import ModelShape, num_weights
from tests.support.adversary import Adversary

CLIENTS = 3
SPLITS = ("random:0.4/0.3/0.3", "random:0.2/0.2/0.6")
#: How the graph was cut.
GIVEN = {"partitioning"}
#: What two runs of the same client differ in, too: keys, signatures, masked numbers.
FRESH = {"mask-key", "mask-signature", "agreement", "digest", "beside", "moved"}


def _graph(seed: int) -> str:
    size = "nodes=150,edges=600" if seed else "nodes=210,edges=500"
    return f"synthetic:{size},classes=3,features=12,words={3 + 2 * seed},signal=0.5,seed={seed}"


def _server(folder: Path, seed: int, keys: dict[str, Any]) -> Adversary:
    """Return a federation of one of two graphs, with the same configuration as that of the other.

    Agents have their parts, and no run names their data.
    """
    folder.mkdir()
    data = {"dataset": _graph(seed), "split": SPLITS[seed]}
    return Adversary.in_one_process(folder, CLIENTS, {**keys, **data})


def _seen(ask: Callable[[], Any]) -> tuple[Any, ...]:
    """Return all of an answer that a server could tell apart: texts, lengths, clear values."""
    try:
        answer = ask()
    except RetexoError as error:
        # Digests that differ with the agreement are no data.
        return type(error).__name__, re.sub(r"\b[0-9a-f]{16,}\b", "DIGEST", str(error))
    values, array = schema.flatten(answer)
    told = {
        name: len(value) if name in FRESH else value
        for name, value in values.items()
        if name not in GIVEN
    }
    clear = len(b"".join(wire.encode_answer(answer))) if not GIVEN & {*values} else 0
    shape = None if array is None else (array.dtype.name, array.shape)
    return type(answer).__name__, told, shape, clear


def _with_weights(server: Adversary, values: np.ndarray) -> Iterator[tuple[str, Request[Any]]]:
    """Yield questions that are answered by sums, with weights that may make anything overflow."""
    server.weights = values
    number = int(np.isfinite(values).all()) + 2 * int(np.abs(values).max() > 1)
    yield "train", server.train(number=number + 1)
    for nodes in ("validation", "test"):
        yield nodes, server.evaluate(nodes, number=number + 1)


def _questions(server: Adversary) -> Iterator[tuple[str, Request[Any]]]:
    """Yield all questions of a training, and some that are refused."""
    ticket = server.ticket()
    yield "hello", HelloRequest(ticket=ticket)
    # Before there are keys.
    yield "labels too early", server.labels()
    server.greet(1)
    server.hand_out(1, range(CLIENTS))
    yield (
        "keys of fewer",
        KeysRequest(
            ticket=ticket,
            agreement=server.agreement.digest,
            cohort=(0, 1),
            keys=np.zeros(64, np.uint8),
        ),
    )
    yield "train too early", server.train()
    yield "counts", server.part_counts()
    yield "labels", server.labels(number=1)
    yield "publish", PublishRequest(ticket=ticket)
    yield "collect too early", CollectRequest(ticket=ticket)
    yield "close too early", CollectRequest(ticket=ticket, close=True)
    for client in server.clients:
        client.ask(PublishRequest(ticket=ticket))
    yield "collect", CollectRequest(ticket=ticket, close=True)
    for client in server.clients:
        client.ask(CollectRequest(ticket=ticket, close=True))
    size = len(server.weights)
    for values in (np.zeros(size), np.full(size, 1e30), np.full(size, np.nan)):
        yield from _with_weights(server, values.astype(np.float32))
    yield "an earlier place", server.train(number=1)
    yield "another attempt", server.train(attempt=0)
    yield "other weights", replace(server.train(number=9), weights=np.zeros(3, np.float32))
    yield "no stage", replace(server.train(), ticket=server.ticket(number=9, stage=7))
    yield "no predictions", PredictRequest(ticket=ticket, weights=server.weights, form="npz")
    yield "no basis", BasisRequest(ticket=ticket)
    yield "no products", GramRequest(ticket=ticket)
    weights = np.full(num_weights(ModelShape.of_part(server.config, server.parts[0]), 0), 1e30)
    for scale in (0.0, 1.0, np.nan):
        made = (scale * weights).astype(np.float32)
        stage = server.ticket(stage=1, digest=chain_digest(server.first(), made))
        asked = PublishRequest(ticket=stage, previous_digest=server.first(), weights=made)
        yield f"publish {scale}", asked
        yield f"collect {scale}", CollectRequest(ticket=stage)


def _of_a_basis(server: Adversary) -> Iterator[tuple[str, Request[Any]]]:
    """Yield questions for a basis, some with steps in which every sum overflows."""
    server.greet(1)
    server.hand_out(1, range(CLIENTS))
    yield "sums", BasisRequest(ticket=server.ticket())
    features = ModelShape.of_part(server.config, server.parts[0]).features
    form = BasisForm(features=features, dtype="float32", bits=server.config.basis_bits)
    for number, (exponent, width, scale) in enumerate(
        ((0, 0, 0.0), (-100, 0, 1.0), (-100, 2, 1.0), (0, 2, 1e30)), start=1
    ):
        mean, directions = np.full(features, scale), np.full((features, width), scale)
        made = Basis(mean=mean.astype("f4"), directions=directions.astype("f4"))
        yield (
            f"block {number}",
            BasisRequest(
                ticket=server.ticket(number=number),
                weights=form.encode(made),
                steps=SharedStep(32, exponent).told,
            ),
        )


def _of_products(server: Adversary) -> Iterator[tuple[str, Request[Any]]]:
    """Yield questions for products, with steps in which all fits, and none does."""
    server.greet(1)
    server.hand_out(1, range(CLIENTS))
    ticket = server.ticket()
    for asked in (PublishRequest(ticket=ticket), CollectRequest(ticket=ticket, close=True)):
        for client in server.clients:
            client.ask(asked)
    for number, exponent in enumerate((0, -100), start=1):
        steps = SharedStep(32, exponent).told
        yield f"products {number}", GramRequest(ticket=server.ticket(number=number), steps=steps)


def _all_seen(
    folder: Path,
    seed: int,
    keys: dict[str, Any],
    questions: Callable[[Adversary], Iterator[tuple[str, Request[Any]]]],
) -> list[tuple[str, Any]]:
    server = _server(folder, seed, keys)
    return [
        (name, _seen(partial(server.clients[0].ask, asked))) for name, asked in questions(server)
    ]


@pytest.mark.parametrize(
    ("keys", "questions", "kinds"),
    [
        (
            {"layers": 2},
            _questions,
            {"HelloAnswer", "MaskedAnswer", "PublishAnswer", "CollectAnswer"},
        ),
        (
            {"layers": 2, "codec": "fixed"},
            _questions,
            {"HelloAnswer", "MaskedAnswer", "PublishAnswer", "CollectAnswer"},
        ),
        ({"basis": "supervised", "basis-blocks": 4}, _of_a_basis, {"MaskedAnswer"}),
        ({"solver": "ridge"}, _of_products, {"MaskedAnswer"}),
    ],
)
def test_neither_length_nor_words_of_answers_follow_from_data(
    tmp_path: Path,
    keys: dict[str, Any],
    questions: Callable[[Adversary], Iterator[tuple[str, Request[Any]]]],
    kinds: set[str],
) -> None:
    one, other = (_all_seen(tmp_path / str(seed), seed, keys, questions) for seed in range(2))
    assert len(one) == len(other)
    for (name, seen), (_, as_well) in zip(one, other, strict=True):
        assert seen == as_well, name
    assert kinds <= {seen[0] for _, seen in one}
