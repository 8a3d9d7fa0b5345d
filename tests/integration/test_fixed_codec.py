"""The codec ``fixed``: vectors on a grid, exact sums, and the same bits however they travel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.channels import Channel, MemoryChannel, SpoolChannel
from retexo_fl.client.api import (
    CollectRequest,
    PublishRequest,
    Ticket,
    TrainAnswer,
    TrainRequest,
    chain_digest,
)
from retexo_fl.client.inner_exchanges import RoundMessage, RoundRunner
from retexo_fl.client.mailbox import Mailbox
from retexo_fl.client.peer_exchange import RoundName
from retexo_fl.client.preparation import make_parts
from retexo_fl.client.store import MemoryStore
from retexo_fl.config import RunConfig
from retexo_fl.exchange import FixedVectors, Vectors, to_dense
from retexo_fl.graph import BoundaryPlan
from retexo_fl.methods.whole.answers import EndToEndClient
from retexo_fl.simulation.interleaved import run_round
from retexo_fl.training.stage_model import FlatParameters, ModelShape, StageModel
from tests.integration.test_missing_peers import LosingChannel
from tests.support.predictions import SMALL, write_small
from tests.support.runs import (
    configured,
    events_of,
    largest_difference,
    model_bytes,
    page_of,
    result_of,
    train,
    train_over,
)

EXCHANGING = [("lazy", "rows"), ("lazy", "cover"), ("standard", "rows"), ("standard", "cover")]
EXCHANGING = [*EXCHANGING, ("bns", "rows")]


@pytest.mark.parametrize(
    ("algorithm", "plan", "model"),
    [*((*way, "gcn") for way in EXCHANGING), *((*way, "sage") for way in EXCHANGING[1:3])],
)
@pytest.mark.each_choice
def test_weights_are_within_24_bits_of_those_of_lossless(
    tmp_path: Path, algorithm: str, plan: str, model: str
) -> None:
    write_small(tmp_path / "small.npz")
    keys = _small(tmp_path, algorithm=algorithm, boundary_plan=plan, model=model, layers=3)
    for clients in (1, 4):
        runs = [
            train(tmp_path / f"{codec}-{clients}", codec=codec, clients=clients, **keys)
            for codec in ("lossless", "fixed")
        ]
        difference = largest_difference(*runs)
        assert difference < 1e-5, clients
        assert (difference == 0) == (clients == 1)
        raw, other = (result_of(run)["bytes"]["raw"]["boundary"] for run in runs)
        assert raw == other


def test_a_run_tells_how_far_values_were_rounded(tmp_path: Path) -> None:
    write_small(tmp_path / "small.npz")
    bounds = {}
    for codec in ("lossless", "fixed"):
        run = train(tmp_path / codec, codec=codec, clients=3, **_small(tmp_path, layers=2))
        exchanges = [event for event in events_of(run) if event["event"] == "exchange"]
        bounds[codec] = [event.get("error_bound", 0.0) for event in exchanges]
        said = "rounded by" in page_of(run)
        assert said == (codec == "fixed")
    assert bounds["lossless"] == [0.0, 0.0]
    # Half a step: of features up to 4, and of what becomes of them.
    assert all(2.0**-30 < bound < 2.0**-20 for bound in bounds["fixed"])


LEAN: dict[str, Any] = {"clients": 4, "rounds": 3, "hidden": 32, "layers": 2}


@pytest.mark.parametrize("plan", ["rows", "cover"])
def test_lean_training_crosses_on_one_grid_in_a_byte_a_value(tmp_path: Path, plan: str) -> None:
    few = {"row_bits": 8, "update_bits": 8, "weight_bits": 8, "basis_bits": 8}
    keys = {**LEAN, **few, "basis": "supervised", "optimizer": "lbfgs", "warm_start": True}
    keys |= {"dropout": 0.0, "boundary_plan": plan}
    payload = {}
    for codec in ("lossless", "fixed"):
        run = train(tmp_path / codec, codec=codec, **keys)
        assert result_of(run)["test_accuracy"] > 0.8
        payload[codec] = result_of(run)["bytes"]["payload"]["boundary"]
    # A byte for each row instead of two; blocks leave out zeros of hidden rows besides.
    assert payload["lossless"] < payload["fixed"] < 1.3 * payload["lossless"]
    masked = train(tmp_path / "masked", codec="fixed", secure_aggregation="masked", **keys)
    assert result_of(masked)["test_accuracy"] > 0.8
    assert result_of(masked)["bytes"]["payload"]["boundary"] == payload["fixed"]


@pytest.mark.parametrize("bits", [32, 8])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.each_choice
def test_files_carry_the_bits_of_memory(tmp_path: Path, dtype: str, bits: int) -> None:
    write_small(tmp_path / "small.npz")
    keys = _small(tmp_path, boundary_plan="cover", codec="fixed", clients=4) | {"dtype": dtype}
    keys |= {"row_bits": bits}
    memory = train(tmp_path / "memory", **keys)
    train_over(configured(tmp_path / "files", **keys), SpoolChannel(tmp_path / "spool"))
    assert model_bytes(memory) == model_bytes(tmp_path / "files")


@pytest.mark.parametrize("plan", ["rows", "cover"])
def test_sums_of_peers_that_are_gone_leave_those_of_the_others(tmp_path: Path, plan: str) -> None:
    """The peer that is gone is the first one, in whose place a sum would stand."""
    write_small(tmp_path / "small.npz")
    keys = _small(tmp_path, boundary_plan=plan, clients=4, layers=2)
    for codec in ("lossless", "fixed"):
        config = configured(
            tmp_path / codec, codec=codec, missing_peers="drop", exchange_deadline_s=0.1, **keys
        )
        train_over(config, LosingChannel(0))
        assert result_of(tmp_path / codec)["missing_rows"] > 0
    assert largest_difference(tmp_path / "lossless", tmp_path / "fixed") < 1e-5


@pytest.mark.parametrize("codec", ["fixed", "fixed8"])
@pytest.mark.parametrize("sparse", [True, False])
def test_what_is_received_is_the_exact_sum_of_what_was_sent(
    tmp_path: Path, sparse: bool, codec: str
) -> None:
    write_small(tmp_path / "small.npz")
    parts = make_parts(configured(tmp_path / "run", **_small(tmp_path, clients=5)))
    plans = [BoundaryPlan.from_partition(part, "cover") for part in parts]
    rng = np.random.default_rng(0)
    channel, ticket = MemoryChannel(), Ticket(job="job", attempt=1, weights_digest=bytes(32))
    mailboxes = [Mailbox(c, "job", plan, channel, codec=codec) for c, plan in enumerate(plans)]
    sent: list[FixedVectors] = []
    for part, mailbox in zip(parts, mailboxes, strict=True):
        rows = rng.normal(size=(part.num_inner, 40)).astype(np.float32) * 10.0**part.client
        rows *= rng.random(rows.shape) < (0.05 if sparse else 0.9)
        mailbox.send(ticket, rows.astype(np.float32))
        sent.append(mailbox.fixed(rows.astype(np.float32)))
    shared = 0
    for plan, mailbox in zip(plans, mailboxes, strict=True):
        mailbox.receive(ticket, 40, "float32")
        block = mailbox.vectors(40, "float32", closed_without=())
        assert isinstance(block, np.ndarray) is not sparse
        shared += _check_sums(plan, sent, to_dense(block))
    assert shared > 0


@pytest.mark.parametrize(("algorithm", "plan"), EXCHANGING[2:])
def test_rounds_over_a_channel_have_the_bits_of_interleaved_ones(
    tmp_path: Path, algorithm: str, plan: str
) -> None:
    write_small(tmp_path / "small.npz")
    keys = _small(tmp_path, algorithm=algorithm, boundary_plan=plan, codec="fixed", clients=4)
    config = configured(tmp_path / "run", **keys)
    ticket = Ticket(job="job", attempt=1, round=1, weights_digest=chain_digest(b"", None))
    request = TrainRequest(ticket=ticket, weights=_weights(config))
    channel = MemoryChannel()
    clients = _after_exchange(config, channel, ticket)
    steps = {c: client.train_steps(request) for c, client in enumerate(clients)}
    together = run_round(steps, RoundName(job="job", codec="fixed")).results
    message = RoundMessage.of(request, codec="fixed")
    runners = [
        RoundRunner(client.train_steps(request), message, c, channel, watch=lambda *told: None)
        for c, client in enumerate(clients)
    ]
    while _advanced(runners):
        pass
    for c, runner in enumerate(runners):
        assert runner.answer.update_sum.tobytes() == together[c].update_sum.tobytes()


def _small(folder: Path, **keys: Any) -> dict[str, Any]:
    # Adam would make much of gradients that are all but zero.
    return {**SMALL, "data_dir": folder, "hidden": 8, "rounds": 3, "dtype": "float64"} | keys


def _weights(config: RunConfig) -> np.ndarray:
    part = make_parts(config)[0]
    shape = ModelShape.of(config, inputs=part.num_features, classes=part.num_classes)
    size = sum(FlatParameters(StageModel(shape, stage)).size for stage in range(shape.layers))
    return np.random.default_rng(1).normal(size=size, scale=0.3).astype(config.dtype)


def _after_exchange(config: RunConfig, channel: Channel, ticket: Ticket) -> list[EndToEndClient]:
    clients = [
        EndToEndClient(part, config, job="job", channel=channel, store=MemoryStore())
        for part in make_parts(config)
    ]
    for client in clients:
        client.publish(PublishRequest(ticket=ticket))
    for client in clients:
        assert client.collect(CollectRequest(ticket=ticket)).complete
    return clients


def _advanced(runners: list[RoundRunner[TrainAnswer]]) -> bool:
    """Let every runner send before the first one looks at what has come."""
    awaited = [runner.advance() for runner in runners]
    return any(awaited)


def _check_sums(plan: BoundaryPlan, sent: list[FixedVectors], block: np.ndarray) -> int:
    """Check a received block against integers; return how many sums had several senders."""
    incoming = plan.incoming_targets
    assert incoming is not None
    expected: dict[int, list[np.ndarray]] = {}
    found = np.zeros((plan.edges.num_nodes, block.shape[1]))
    for item in plan.peers:
        targets, vectors = incoming[item.peer], sent[item.peer]
        exact = vectors.integers(plan.client) * 2.0**-vectors.exponent
        of_peer: Vectors = block[item.receive.slots]
        assert (of_peer[targets < 0] == exact[targets < 0]).all()
        for place in np.flatnonzero(targets >= 0):
            expected.setdefault(int(targets[place]), []).append(exact[place])
            found[targets[place]] += of_peer[place]
    for target, vectors_of in expected.items():
        # Exact in float64: 24 bits each, on grids that are 2**14 apart at most.
        assert (found[target] == np.sum(vectors_of, axis=0).astype(np.float32)).all()
    return sum(len(vectors_of) > 1 for vectors_of in expected.values())
