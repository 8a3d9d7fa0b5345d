"""A trained model against a ridge regression of rows that crossed anyway: the better is kept."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from safetensors.numpy import load_file

import retexo_fl
from retexo_fl.api.plan_exchanges import PlannedParts
from retexo_fl.api.plan_facts import profile_facts_of
from retexo_fl.client.api import GramRequest, Ticket
from retexo_fl.client.client import GraphClient
from retexo_fl.client.factory import InProcessClients
from retexo_fl.client.preparation import load_parts, make_parts
from retexo_fl.errors import LocalProtocolError
from retexo_fl.federation.run_directory import RUN
from retexo_fl.federation.trained_model import read_trained_model
from retexo_fl.graph import write_partitions
from retexo_fl.replacing import check_replaceable
from retexo_fl.training.layer_trainer import StageTrainer
from tests.support.cli import CommandLine
from tests.support.predictions import summary_of
from tests.support.runs import (
    Interrupter,
    configured,
    events_of,
    ledger_of,
    model_bytes,
    result_of,
    train,
)
from tests.support.ways import profile_keys

CLASSES: Final = 3
KEYS: Final[dict[str, Any]] = {
    **profile_keys("lean"),
    "dataset": "synthetic:nodes=200,edges=600,classes=3,features=60,words=6,signal=0.6",
    "split": "random-unstratified:0.3/0.3/0.4",
    **{"clients": 4, "hidden": 64, "boundary_plan": "rows", "floor": "one-shot"},
}
#: One round fits less than a regression does.
POOR: Final = {**KEYS, "rounds": 1, "learning_rate": 1e-4}
BASES: Final = [("gcn", "sums"), ("sage", "own"), ("sage", "sums")]


def without(keys: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of the same run without a floor."""
    return {**keys, "floor": "none"}


@pytest.mark.parametrize(("model", "rows"), BASES)
@pytest.mark.each_choice
def test_what_is_kept_is_what_is_tested_and_predicts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], model: str, rows: str
) -> None:
    keys = {**POOR, "model": model, "basis_rows": rows}
    run, parts, retexo = train(tmp_path / "run", **keys), tmp_path / "parts", CommandLine(capfd)
    result = result_of(run)
    floor = result["floor"]
    assert floor["kept"] == "floor"
    assert floor["floor"] == result["val_accuracy"] > floor["trained"]
    assert floor["trained"] == result["stages"][-1]["val_accuracy"]
    write_partitions(load_parts(configured(tmp_path / "x", **keys)), parts)
    retexo.done("predict", run, "--partitions", parts, "--quiet")
    labelled = summary_of(parts)["labelled"]
    for use, accuracy in (("test", "test_accuracy"), ("validation", "val_accuracy")):
        assert labelled[use]["right"] / labelled[use]["nodes"] == result[accuracy]
    assert read_trained_model(run).shape.passes_sums
    retexo.done("report", run)
    line = "kept a ridge regression of the same rows, by validation nodes: accuracy"
    assert line in (run / "report.html").read_text()
    # What was trained stays as it is without a floor.
    plain = model_bytes(train(tmp_path / "plain", **without(keys)))
    assert {name: model_bytes(run)[name] for name in plain} == plain


def test_a_model_that_was_better_than_its_floor_predicts_itself(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    keys = {**KEYS, "model": "gcn", "basis_rows": "sums"}
    run, parts, retexo = train(tmp_path / "run", **keys), tmp_path / "parts", CommandLine(capfd)
    result = result_of(run)
    assert result["floor"]["kept"] == "trained"
    write_partitions(load_parts(configured(tmp_path / "x", **keys)), parts)
    retexo.done("predict", run, "--partitions", parts, "--quiet")
    of_test = summary_of(parts)["labelled"]["test"]
    assert of_test["right"] / of_test["nodes"] == result["test_accuracy"]


def test_a_run_with_a_floor_gives_way_to_another(tmp_path: Path) -> None:
    run = train(tmp_path / "run", **POOR, model="gcn", basis_rows="sums")
    assert result_of(run)["floor"]["kept"] == "floor"
    check_replaceable(run, RUN)


@pytest.mark.parametrize(("model", "rows"), BASES)
def test_it_takes_two_questions_and_nothing_between_clients(
    tmp_path: Path, model: str, rows: str
) -> None:
    keys = {**POOR, "model": model, "basis_rows": rows, "codec": "lossless"}
    run, plain = train(tmp_path / "run", **keys), train(tmp_path / "plain", **without(keys))
    ours, others = ledger_of(run), ledger_of(plain)
    assert ours.sum(kind="boundary") == others.sum(kind="boundary")
    # Of three blocks z, M z and M M z, as far as the layer reads them, beside a one.
    width = 3 * CLASSES * (3 if model == "sage" else 1)
    products = (width + 1) * (width + 2) // 2 + (width + 1) * CLASSES
    gram = ours.sum(kind="updates_up", purpose="gram")
    assert gram.raw == 4 * 4 * (2 * products + 1)
    assert ours.sum(purpose="gram", direction="in").messages == 4
    for stage in (0, 1):
        for purpose in ("train", "publish", "collect"):
            assert ours.sum(layer=stage, purpose=purpose) == others.sum(
                layer=stage, purpose=purpose
            )
    weights = load_file(run / "model" / "floor.safetensors")["layer.weight"]
    read = np.abs(weights).sum(axis=1) > 0
    assert 0 < read.sum() <= width
    blocks = weights.reshape(-1, read_trained_model(run).shape.inputs, CLASSES)
    assert not blocks[:, 3 * CLASSES :].any()


def test_a_model_that_is_better_is_kept_with_all_its_bytes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    keys = {
        **KEYS,
        "dataset": "digits",
        "split": "random:0.3/0.2/0.5",
        "model": "sage",
        "hidden": 256,
        "seed": 1,
    }
    run, plain = train(tmp_path / "run", **keys), train(tmp_path / "plain", **without(keys))
    ours, others = result_of(run), result_of(plain)
    assert ours["floor"]["kept"] == "trained"
    assert ours["floor"]["floor"] < ours["floor"]["trained"] == ours["val_accuracy"]
    assert model_bytes(run) == model_bytes(plain)
    assert ours["test_accuracy"] == others["test_accuracy"]
    # The test names what clients hold: the floor did not take its place.
    asked = {"purpose": "evaluate", "layer": 1, "kind": "weights_down"}
    assert ledger_of(run).sum(**asked) == ledger_of(plain).sum(**asked)
    CommandLine(capfd).done("report", run)
    line = "kept the model, by validation nodes: accuracy"
    assert line in (run / "report.html").read_text()


@pytest.mark.parametrize(("model", "rows"), BASES)
def test_masked_sums_find_the_same(tmp_path: Path, model: str, rows: str) -> None:
    # A basis in few bits is of sums that are drawn otherwise under masks.
    keys = {**POOR, "model": model, "basis_rows": rows, "basis_bits": 32}
    plain = train(tmp_path / "plain", **keys)
    masked = train(tmp_path / "masked", **keys, secure_aggregation="masked")
    ours, theirs = (result_of(run)["floor"] for run in (masked, plain))
    assert ours["kept"] == theirs["kept"] == "floor"
    found, other = (load_file(run / "model" / "floor.safetensors") for run in (masked, plain))
    scale = np.abs(other["layer.weight"]).max()
    assert np.abs(found["layer.weight"] - other["layer.weight"]).max() < 0.01 * scale


def test_a_resumed_run_keeps_the_same(tmp_path: Path) -> None:
    keys = {**POOR, "rounds": 2, "model": "sage", "basis_rows": "sums", "checkpoint_every": 1}
    whole = train(tmp_path / "whole", **keys)
    names = [event["event"] for event in events_of(whole)]
    assert names[-2:] == ["floor", "finish"]
    for event in range(names.index("round"), len(names)):
        out = tmp_path / str(event)
        with pytest.raises(KeyboardInterrupt):
            train(out, Interrupter(event), **keys)
        again = {"resume": out} if (out / "checkpoint.safetensors").exists() else {}
        train(out, **keys, **again) if again else train(tmp_path / f"{event}-anew", **keys)
        found = out if again else tmp_path / f"{event}-anew"
        assert model_bytes(found) == model_bytes(whole)
        assert result_of(found)["floor"] == result_of(whole)["floor"]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"boundary_plan": "cover"}, "boundary-plan cover"),
        ({"row_bits": 32}, "row-bits 32"),
        ({"layers": 3}, "layers 3"),
        ({"model": "gin"}, "model gin"),
        ({"basis": "none"}, "basis none"),
        ({"hidden": 8}, "hidden 8, which is not wider than what the first layer reads"),
        ({"class_weights": "balanced"}, "class-weights balanced"),
        ({"loss": "focal:2"}, "loss focal:2"),
        ({"min_clients": 3, "round_deadline_s": 9.0}, "min-clients 3"),
        ({"solver": "ridge"}, "solver ridge"),
    ],
)
def test_where_peers_lack_its_rows_there_is_none_and_a_line_says_why(
    tmp_path: Path, more: dict[str, Any], why: str
) -> None:
    keys = {**POOR, "model": "sage", **more}
    run = retexo_fl.run(out=tmp_path / "run", profile="lean", quiet=True, **keys)
    assert run.result.profile is not None
    told = run.result.profile.sentence
    assert told.endswith(
        f"no floor, since one-shot does not go with {why}, so that what is trained is kept"
    )
    assert run.result.floor is None
    if more.get("solver") != "ridge":
        assert not ledger_of(run.path).sum(purpose="gram").messages


@pytest.mark.parametrize("more", [{}, {"layers": 3, "floor": "none"}])
def test_no_line_says_why_where_there_is_one_or_none_is_asked_for(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    keys = {**POOR, "model": "sage", **more}
    profile = retexo_fl.run(out=tmp_path / "run", quiet=True, **keys).result.profile
    assert profile is not None
    assert "no floor" not in profile.sentence


def test_no_line_says_why_where_nobody_chose_one(tmp_path: Path) -> None:
    keys = {"dataset": KEYS["dataset"], "hidden": 8, "rounds": 1}
    run = retexo_fl.run(out=tmp_path / "run", quiet=True, **keys)
    assert run.config.floor == "one-shot"
    assert run.result.profile is not None
    assert "no floor" not in run.result.profile.sentence


def test_its_questions_are_planned(tmp_path: Path) -> None:
    # As many bytes as values, and nothing that patience could end earlier.
    keys = {**POOR, "model": "sage", "update_bits": 32, "weight_bits": 32}
    keys |= {"basis_bits": 32, "patience": 0, "candidates": "none"}
    run, config = train(tmp_path / "run", **keys), configured(tmp_path / "unused", **keys)
    planned = PlannedParts(make_parts(config))
    facts = profile_facts_of(config, planned)
    others = profile_facts_of(replace(config, floor="none"), planned)
    assert facts["messages"] == others["messages"] + 2
    result = result_of(run)
    payload, raw = (result["bytes"][measure] for measure in ("payload", "raw"))
    assert result["plan"]["predicted_raw"].items() <= raw.items()
    assert others["payload_at_most"] < facts["payload_at_most"]
    assert payload["total"] - payload["control"] <= facts["payload_at_most"]


def test_a_client_answers_no_products_of_another_stage(tmp_path: Path) -> None:
    config = configured(tmp_path / "run", **POOR)
    clients = InProcessClients(make_parts(config), config)
    ticket = Ticket(job="job-0123456789ab", attempt=1, stage=1)
    for stage in (0, 1, 3):
        with pytest.raises(LocalProtocolError, match=f"stage {stage}: asked for sums of products"):
            clients.find(ticket.job, 0).ask(GramRequest(ticket=replace(ticket, stage=stage)))


def test_what_a_stage_reads_is_made_once_for_each_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Counter[int] = Counter()
    new_trainer = GraphClient._new_trainer

    def counted(client: GraphClient, stage: int, digest: bytes) -> StageTrainer:
        made[stage] += 1
        return new_trainer(client, stage, digest)

    monkeypatch.setattr(GraphClient, "_new_trainer", counted)
    result = result_of(train(tmp_path / "run", **{**KEYS, "model": "gcn", "basis_rows": "sums"}))
    assert result["floor"]["kept"] == "trained"
    # The last is the floor's, for its sums and its judging; the trained model is tested after it.
    assert made == {0: KEYS["clients"], 1: KEYS["clients"], 2: KEYS["clients"]}
