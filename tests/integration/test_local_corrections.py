"""FedProx and SCAFFOLD in whole trainings: every algorithm and engine that takes local steps."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.api.plan_exchanges import PlannedParts
from retexo_fl.api.plan_facts import plan_facts
from retexo_fl.channels import MemoryChannel
from retexo_fl.client.api import Ticket, TrainRequest
from retexo_fl.client.preparation import load_parts
from retexo_fl.client.store import MemoryStore
from retexo_fl.errors import LocalProtocolError
from retexo_fl.methods.lazy.answers import LazyClient
from retexo_fl.training.schedule import Schedule
from tests.support.cli import CommandLine
from tests.support.predictions import SMALL, write_small
from tests.support.runs import (
    Interrupter,
    configured,
    events_of,
    ledger_of,
    model_bytes,
    model_weights,
    result_of,
    train,
)
from tests.support.ways import way

KEYS: dict[str, Any] = {"clients": 4, "hidden": 16, "rounds": 6, "local_steps": 4}
SGD: dict[str, Any] = {"local_optimizer": "sgd", "local_learning_rate": 0.2}
SCAFFOLD: dict[str, Any] = {**SGD, "local_correction": "scaffold"}
#: What takes local steps, by mini-batches, too.
ALGORITHMS: list[dict[str, Any]] = [
    {"algorithm": "lazy"},
    {"algorithm": "lazy", "model": "gat"},
    {"algorithm": "drop"},
    {"algorithm": "drop", "sampler": "neighbour", "batch_nodes": 16},
    {"algorithm": "central", "clients": 1},
]


def name_of(keys: dict[str, Any]) -> str:
    return " ".join(map(str, keys.values()))


def losses(run: Path) -> list[float]:
    """Return the loss of every round of a run."""
    return [event["loss"] for event in events_of(run) if event["event"] == "round"]


def distance(run: Path, start: Path) -> float:
    """Return how far the weights of a run are from those of another."""
    one, other = model_weights(run), model_weights(start)
    return float(sum(np.square(one[name] - other[name]).sum() for name in one))


def test_no_pull_is_none_to_the_bit_and_a_strong_one_holds_weights(tmp_path: Path) -> None:
    keys = {**KEYS, "layers": 1, "rounds": 1, "dropout": 0.0}
    plain = train(tmp_path / "plain", **keys)
    runs = {mu: train(tmp_path / str(mu), **keys, proximal_mu=mu) for mu in (0.0, 1.0, 100.0)}
    assert model_bytes(runs[0.0]) == model_bytes(plain)
    start = train(tmp_path / "start", **{**keys, "local_learning_rate": 1e-12})
    distances = [distance(run, start) for run in runs.values()]
    assert distances[0] > distances[1] > distances[2] > 0


@pytest.mark.parametrize("algorithm", ["lazy", "drop", "central"])
def test_scaffold_with_one_client_is_local_steps_to_the_bit(tmp_path: Path, algorithm: str) -> None:
    write_small(tmp_path / "small.npz", nodes=80)
    keys = {**KEYS, **SMALL, "data_dir": tmp_path, "clients": 1, "algorithm": algorithm}
    plain = train(tmp_path / "plain", **keys, **SGD)
    assert model_bytes(train(tmp_path / "run", **keys, **SCAFFOLD)) == model_bytes(plain)


@pytest.mark.parametrize("algorithm", [*map(way, ALGORITHMS[:4])], ids=name_of)
@pytest.mark.each_choice
def test_corrections_begin_with_the_second_round(tmp_path: Path, algorithm: dict[str, Any]) -> None:
    write_small(tmp_path / "small.npz", nodes=80)
    keys = {**KEYS, **SMALL, "data_dir": tmp_path, **algorithm, "rounds": 3, "layers": 2}
    plain = losses(train(tmp_path / "plain", **keys, **SGD))
    corrected = losses(train(tmp_path / "run", **keys, **SCAFFOLD))
    # A round's loss is that of the weights that it begins with.
    assert corrected[:2] == plain[:2]
    assert corrected[2] != plain[2]


# A pull has no state of its own that could be lost.
@pytest.mark.parametrize("algorithm", [*map(way, ALGORITHMS)], ids=name_of)
@pytest.mark.each_choice
def test_a_resumed_run_equals_the_undisturbed_one(
    tmp_path: Path, algorithm: dict[str, Any]
) -> None:
    write_small(tmp_path / "small.npz", nodes=80)
    keys = {**KEYS, **SMALL, "data_dir": tmp_path, **algorithm, **SCAFFOLD}
    whole = train(tmp_path / "whole", **keys)
    assert losses(whole)[5] < losses(whole)[0]
    out = tmp_path / "run"
    for event in (3, 6):
        with pytest.raises(KeyboardInterrupt):
            train(out, Interrupter(event), **keys, **({"resume": out} if event == 6 else {}))
    train(out, **keys, resume=out)
    assert result_of(out)["attempts"] == 3
    assert model_bytes(out) == model_bytes(whole)


@pytest.mark.parametrize("more", [{"update_bits": 8}, {"codec": "fixed"}, {"basis": "supervised"}])
def test_scaffold_learns_with_whatever_else_moves(tmp_path: Path, more: dict[str, Any]) -> None:
    keys = {**KEYS, "rounds": 20, "model": "gcn", "hidden": 32, "local_learning_rate": 0.5}
    run = train(tmp_path / "run", **{**SCAFFOLD, **keys}, **more)
    assert result_of(run)["test_accuracy"] > 0.9


@pytest.mark.parametrize("algorithm", ["lazy", "drop", "central"])
def test_corrections_take_the_bytes_that_were_predicted(tmp_path: Path, algorithm: str) -> None:
    write_small(tmp_path / "small.npz", nodes=80)
    clients = 1 if algorithm == "central" else 4
    keys = {**KEYS, **SMALL, "data_dir": tmp_path, "clients": clients, "algorithm": algorithm}
    plain = ledger_of(train(tmp_path / "plain", **keys, **SGD))
    run = train(tmp_path / "run", **keys, **SCAFFOLD)
    moved = result_of(run)["bytes"]["raw"]
    config = configured(Path("unused"), **keys, **SCAFFOLD)
    facts = plan_facts(config, PlannedParts(load_parts(config)))
    predicted = facts["plans"]["rows"]["algorithms"][algorithm]
    for kind in ("updates_up", "weights_down", "total"):
        assert moved[kind] == predicted[kind] == result_of(run)["plan"]["predicted_raw"][kind], kind
    # Beside the weights of all rounds but the first of each stage.
    down = plain.sum(kind="weights_down", purpose="train").raw
    rounds = KEYS["rounds"]
    expected = down * (2 * rounds - 1) // rounds
    assert ledger_of(run).sum(kind="weights_down", purpose="train").raw == expected


def test_a_client_that_is_sent_no_correction_says_so(tmp_path: Path) -> None:
    config = configured(tmp_path, **{**KEYS, "clients": 1, "layers": 1}, **SCAFFOLD)
    (part,) = load_parts(config)
    client = LazyClient(part, config, job="job", channel=MemoryChannel(), store=MemoryStore())
    ticket = Ticket(job="job", attempt=1, round=2)
    client._store.close_exchange(0, b"", ())
    weights = Schedule(shape=client.shape).initial(0, seed=0)
    with pytest.raises(
        LocalProtocolError, match=rf"expected float32 of shape \({2 * len(weights)},"
    ):
        client.train_layer(TrainRequest(ticket=ticket, weights=weights))


@pytest.mark.parametrize("algorithm", ["standard", "bns"])
def test_algorithms_without_local_steps_refuse_by_name(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    algorithm: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["run", "--algorithm", algorithm, "--local-steps", "2", "--local-optimizer", "sgd"]
    told = CommandLine(capfd).refused(*words, "--local-correction", "scaffold")
    assert re.match(f"local-steps: 2 does not go with algorithm {algorithm}", told)
    told = CommandLine(capfd).refused("run", "--proximal-mu", "0.1")
    assert re.fullmatch("proximal-mu: 0.1 changes nothing with local-steps 1.*; expected 0.*", told)
    assert list(tmp_path.iterdir()) == []
