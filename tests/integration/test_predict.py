"""``retexo predict``: many partitions predict what one does, on old graphs and on new ones."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from pyarrow import parquet

from retexo_fl.channels import Channel, SpoolChannel
from retexo_fl.client.api import Ticket
from retexo_fl.client.client import GraphClient
from retexo_fl.client.preparation import open_parts
from retexo_fl.client.store import MemoryStore
from retexo_fl.config import config_values, make_config
from retexo_fl.errors import ExchangeIncomplete
from retexo_fl.federation.client_handlers import build_client_app, client_index
from retexo_fl.federation.trained_model import read_trained_model
from retexo_fl.graph import BoundaryPlan, hash_keys, write_partitions
from retexo_fl.methods.lazy.answers import LazyClient
from retexo_fl.methods.predict.script import PredictionLoop, PredictionOutcome
from retexo_fl.simulation.inline_grid import InlineGrid
from tests.integration.test_missing_peers import LosingChannel
from tests.support.cli import PROGRAM, CommandLine, environment
from tests.support.data import cora_dir
from tests.support.each_choice import by_day
from tests.support.predictions import (
    LAYERS,
    SMALL,
    cut,
    files_in,
    read_csv,
    read_npz,
    summary_of,
    write_small,
)
from tests.support.runs import result_of, train

TOLERANCE = 1e-6


@pytest.fixture
def small_run(tmp_path: Path) -> Path:
    """A run on a small graph, over 2 clients whose parts lie in ``parts``."""
    write_small(tmp_path / "small.npz")
    keys = {**SMALL, "data_dir": tmp_path, "clients": 2}
    cut(tmp_path / "parts", **keys)
    return train(tmp_path / "run", **keys, rounds=3, hidden=8)


# ---- what is predicted --------------------------------------------------------------------------


# One node a client is the hardest cut: all layers are tried with that, below.
@pytest.mark.parametrize("model", ["sage", "gat"])
def test_predictions_do_not_depend_on_the_partition(
    tmp_path: Path, retexo: CommandLine, model: str
) -> None:
    keys = {"dataset": "cora", "data_dir": cora_dir()}
    run = train(tmp_path / "run", **keys, model=model, clients=1, hidden=16, rounds=4)
    expected = None
    for clients, partitioner in ((1, "random"), (2, "random"), (5, "metis")):
        parts = cut(tmp_path / f"{clients}", **keys, clients=clients, partitioner=partitioner)
        retexo.done("predict", run, "--partitions", parts, "--format", "npz")
        found = read_npz(parts)
        expected = expected or found
        assert found.keys == expected.keys
        assert np.abs(found.probabilities - expected.probabilities).max() < TOLERANCE
        np.testing.assert_allclose(found.probabilities.sum(axis=1), 1.0, atol=1e-6)
        test = summary_of(parts)["labelled"]["test"]
        if clients == 1:
            # The parts of the training: the same arithmetic, so the same accuracy to the bit.
            assert test["right"] / test["nodes"] == result_of(run)["test_accuracy"]
        assert summary_of(parts)["nodes"] == len(found.keys) == 2708
        shutil.rmtree(parts)


@pytest.mark.parametrize("model", by_day(LAYERS, "gcn", "gat", others=pytest.mark.slow))
def test_one_node_per_client_predicts_what_one_client_does(
    tmp_path: Path, retexo: CommandLine, model: str
) -> None:
    write_small(tmp_path / "small.npz", nodes=24)
    keys = {**SMALL, "data_dir": tmp_path}
    run = train(tmp_path / "run", **keys, model=model, layers=3, clients=3, hidden=16, rounds=3)
    whole = cut(tmp_path / "whole", **keys, clients=1)
    single = cut(tmp_path / "single", **keys, clients=24, partitioner="one-node")
    for parts in (whole, single):
        retexo.done("predict", run, "--partitions", parts, "--quiet")
    one, many = read_csv(whole), read_csv(single)
    assert one.keys == many.keys
    assert np.abs(one.probabilities - many.probabilities).max() < TOLERANCE
    assert summary_of(single)["clients"] == 24


@pytest.mark.parametrize("algorithm", ["standard", "bns", "central"])
def test_models_trained_end_to_end_predict_over_any_parts(
    tmp_path: Path, retexo: CommandLine, algorithm: str
) -> None:
    write_small(tmp_path / "small.npz")
    keys = {**SMALL, "data_dir": tmp_path}
    clients = 1 if algorithm == "central" else 3
    run = train(tmp_path / "run", **keys, algorithm=algorithm, clients=clients, hidden=8, rounds=3)
    found = []
    for number in (1, 3):
        parts = cut(tmp_path / f"{number}", **keys, clients=number)
        # What training demands of its peers, predicting does not.
        retexo.done("predict", run, "--partitions", parts, "--missing-peers", "drop")
        found.append(read_csv(parts))
        test = summary_of(parts)["labelled"]["test"]
        assert test["right"] / test["nodes"] == result_of(run)["test_accuracy"]
    assert found[0].keys == found[1].keys
    assert np.abs(found[0].probabilities - found[1].probabilities).max() < TOLERANCE


def test_a_model_that_drops_edges_predicts_without_them(
    tmp_path: Path, retexo: CommandLine
) -> None:
    write_small(tmp_path / "small.npz")
    keys = {**SMALL, "data_dir": tmp_path}
    parts = cut(tmp_path / "parts", **keys, clients=3)
    found = []
    # On one client both train the same weights, yet they predict differently over three.
    for algorithm in ("central", "drop"):
        run = train(
            tmp_path / algorithm, **keys, algorithm=algorithm, clients=1, hidden=8, rounds=3
        )
        told = retexo.done("predict", run, "--partitions", parts, "--overwrite")
        found.append(read_csv(parts))
    assert "of which between clients 0 B" in told
    assert np.abs(found[0].probabilities - found[1].probabilities).max() > 1e-3
    refused = retexo.refused("predict", tmp_path / "central", "--partitions", parts)
    assert "--overwrite" in refused


def test_training_parts_give_the_accuracy_of_the_run(
    tmp_path: Path, retexo: CommandLine, small_run: Path
) -> None:
    told = retexo.done("predict", small_run, "--partitions", "parts")
    accuracy = result_of(small_run)["test_accuracy"]
    assert f"test accuracy   {accuracy:.4f} of " in told
    summary, found = summary_of(tmp_path / "parts"), read_csv(tmp_path / "parts")
    assert summary["labelled"]["test"]["right"] / summary["labelled"]["test"]["nodes"] == accuracy
    for use, mask in (("train", "train_mask"), ("validation", "val_mask"), ("test", "test_mask")):
        right = nodes = 0
        for part in open_parts(tmp_path / "parts"):
            rows = np.flatnonzero(getattr(part, mask))
            place = [found.keys.index(key) for key in part.node_keys[rows].tolist()]
            right += int((found.classes[place] == part.labels[rows]).sum())
            nodes += len(rows)
        assert summary["labelled"][use] == {"nodes": nodes, "right": right}
    np.testing.assert_array_equal(found.classes, found.probabilities.argmax(axis=1))


@pytest.mark.parametrize("metric", ["roc-auc", "macro-f1", "log-loss"])
def test_training_parts_give_the_metric_of_the_run(
    tmp_path: Path, retexo: CommandLine, metric: str
) -> None:
    write_small(tmp_path / "small.npz")
    keys = {**SMALL, "data_dir": tmp_path, "clients": 2}
    cut(tmp_path / "parts", **keys)
    run = train(tmp_path / "run", **keys, metric=metric, rounds=3, hidden=8)
    told = retexo.done("predict", run, "--partitions", "parts", "--quiet")
    value = result_of(run)["metric"]["value"]
    found = summary_of(tmp_path / "parts")["metric"]
    assert found["name"] == metric
    assert found["test"] == pytest.approx(value, abs=1e-12)
    assert f"{f'test {metric}':<15} {value:.4f} of " in told
    assert f"validation {metric} {found['validation']:.4f} of " in told


def test_graph_with_new_nodes_and_edges_is_predicted(
    tmp_path: Path, retexo: CommandLine, small_run: Path
) -> None:
    (tmp_path / "new").mkdir()
    write_small(tmp_path / "new" / "small.npz", more=9)
    found = []
    for clients in (1, 3, 7):
        parts = cut(
            tmp_path / f"new-{clients}", **SMALL, data_dir=tmp_path / "new", clients=clients
        )
        retexo.done("predict", small_run, "--partitions", parts, "--quiet")
        found.append(read_csv(parts))
    assert len(found[0].keys) == 49
    for other in found[1:]:
        assert other.keys == found[0].keys
        assert np.abs(other.probabilities - found[0].probabilities).max() < TOLERANCE
    retexo.done("predict", small_run, "--partitions", "parts", "--quiet")
    before = read_csv(tmp_path / "parts")
    same = [found[0].keys.index(key) for key in before.keys]
    moved = np.abs(found[0].probabilities[same] - before.probabilities).max(axis=1)
    # New neighbours change what is said of some old nodes, and of those far away nothing.
    assert (moved > 1e-3).any()
    assert (moved < TOLERANCE).any()


# ---- what is left on disk -----------------------------------------------------------------------


def test_inputs_are_only_read_and_the_summary_names_every_file(
    tmp_path: Path, retexo: CommandLine, small_run: Path
) -> None:
    before, parts_before = files_in(small_run), files_in(tmp_path / "parts")
    told = retexo.done("predict", small_run, "--partitions", "parts")
    assert files_in(small_run) == before
    after = files_in(tmp_path / "parts")
    assert {name: after[name] for name in parts_before} == parts_before
    new = set(after) - set(parts_before)
    assert new == {"predictions-0.csv", "predictions-1.csv", "predictions.json"}
    retexo.done("partition", "check", "parts/part-0", "parts/part-1")
    summary = summary_of(tmp_path / "parts")
    for client, entry in enumerate(summary["files"]):
        content = after[entry["file"]]
        assert entry["client"] == client
        assert entry["sha256"] == hashlib.sha256(content).hexdigest()
        assert (entry["bytes"], entry["rows"]) == (len(content), content.count(b"\n") - 1)
    payload = summary["bytes"]["payload"]
    assert payload["boundary"] > 0
    assert payload["updates_up"] == 0
    # Layer 0 goes out with the second exchange, layer 1 with the last message; to two clients each.
    stored = [read_trained_model(small_run).weights[stage].nbytes for stage in (0, 1)]
    assert payload["weights_down"] == summary["bytes"]["raw"]["weights_down"] == 2 * sum(stored)
    vectors = [BoundaryPlan.from_partition(p).num_send for p in open_parts(tmp_path / "parts")]
    assert summary["bytes"]["raw"]["boundary"] == sum(vectors) * (6 + 8) * 4
    assert "bytes moved" in told


def test_all_forms_hold_the_same(tmp_path: Path, retexo: CommandLine, small_run: Path) -> None:
    for form in ("csv", "npz", "parquet"):
        retexo.done(
            *("predict", small_run, "--partitions", "parts", "--quiet"),
            *("--format", form, "--out", f"out/{form}"),
        )
    texts, arrays = read_csv(tmp_path / "out/csv"), read_npz(tmp_path / "out/npz")
    assert texts.keys == arrays.keys
    np.testing.assert_array_equal(texts.classes, arrays.classes)
    np.testing.assert_array_equal(texts.probabilities.astype(np.float32), arrays.probabilities)
    tables = [parquet.read_table(tmp_path / f"out/parquet/predictions-{c}.parquet") for c in (0, 1)]
    assert tables[0].column_names == ["key", "class", "p0", "p1", "p2"]
    keys = [key.encode() for table in tables for key in table["key"].to_pylist()]
    place = [arrays.keys.index(key) for key in keys]
    for name, expected in (("class", arrays.classes), ("p1", arrays.probabilities[:, 1])):
        column = np.concatenate([table[name].to_numpy() for table in tables])
        np.testing.assert_array_equal(column, expected[place])
    assert not list((tmp_path / "parts").glob("predictions*"))


def test_keys_are_marked_for_spreadsheets_when_asked(
    tmp_path: Path, retexo: CommandLine, small_run: Path
) -> None:
    write_small(tmp_path / "small.npz")
    cut(tmp_path / "one", **SMALL, data_dir=tmp_path, clients=1)
    (part,) = open_parts(tmp_path / "one")
    keys = np.array([b"=%d" % row for row in range(10, 50)])
    write_partitions([replace(part, node_keys=keys, node_hashes=hash_keys(keys))], tmp_path / "eq")
    command = ("predict", small_run, "--partitions", "eq", "--quiet")
    retexo.done(*command)
    assert read_csv(tmp_path / "eq").keys == keys.tolist()
    assert "expected none" in retexo.refused(*command, "--spreadsheet-safe")
    told = retexo.done(*command, "--spreadsheet-safe", "--overwrite")
    assert "eq/predictions-*.csv" in told
    assert read_csv(tmp_path / "eq").keys == [b"'" + key for key in keys.tolist()]
    told = retexo.refused(*command, "--spreadsheet-safe", "--format", "npz")
    assert told == "spreadsheet-safe: is for csv; got --format npz"


def test_predictions_that_are_there_are_kept_unless_told(
    tmp_path: Path, retexo: CommandLine, small_run: Path
) -> None:
    command = ("predict", small_run, "--partitions", "parts", "--quiet")
    first = retexo.done(*command)
    made = files_in(tmp_path / "parts")
    marks = {path: path.stat().st_ino for path in (tmp_path / "parts").glob("predictions*")}
    assert retexo.done(*command) == f"made already; --overwrite makes them again\n{first}"
    assert {path: path.stat().st_ino for path in marks} == marks
    other = train(
        tmp_path / "other", **SMALL, data_dir=tmp_path, clients=2, rounds=1, hidden=4, seed=1
    )
    told = retexo.refused("predict", other, "--partitions", "parts")
    assert re.fullmatch("out: parts .*other predictions; .*--out, .*--overwrite", told)
    assert files_in(tmp_path / "parts") == made
    path = tmp_path / "parts" / "predictions-1.csv"
    path.write_bytes(path.read_bytes()[:-1])
    told = retexo.refused(*command)
    assert re.fullmatch("out: parts/predictions-1.csv .*altered; .*--out, .*--overwrite", told)
    retexo.done(*command, "--overwrite")
    assert files_in(tmp_path / "parts") == made
    retexo.done("predict", other, "--partitions", "parts", "--format", "npz", "--overwrite")
    names = sorted(path.name for path in (tmp_path / "parts").glob("predictions*"))
    assert names == ["predictions-0.npz", "predictions-1.npz", "predictions.json"]


def test_files_of_that_name_that_are_not_ours_are_kept(
    tmp_path: Path, retexo: CommandLine, small_run: Path
) -> None:
    own = tmp_path / "parts" / "predictions-7.csv"
    own.write_text("mine")
    told = retexo.refused("predict", small_run, "--partitions", "parts")
    assert re.match(
        "out: parts/predictions-7.csv .*without a predictions.json; expected none", told
    )
    assert own.read_text() == "mine"


def test_keys_that_are_no_text_are_told_for_csv_and_kept_in_npz(
    tmp_path: Path, retexo: CommandLine, small_run: Path
) -> None:
    write_small(tmp_path / "small.npz")
    cut(tmp_path / "one", **SMALL, data_dir=tmp_path, clients=1)
    (part,) = open_parts(tmp_path / "one")
    keys = np.array([b'a,"b\n%d' % row for row in range(10, 49)] + [b"z\xff"])
    write_partitions([replace(part, node_keys=keys, node_hashes=hash_keys(keys))], tmp_path / "odd")
    told = retexo.refused("predict", small_run, "--partitions", "odd")
    assert re.fullmatch(r"odd/part-0: node_keys: row 39 is not UTF-8; expected text, .*npz.*", told)
    assert not list((tmp_path / "odd").glob("*predictions*"))
    retexo.done("predict", small_run, "--partitions", "odd", "--format", "npz")
    assert read_npz(tmp_path / "odd").keys == keys.tolist()
    keys[-1] = "zoé ".encode()
    write_partitions(
        [replace(part, node_keys=keys, node_hashes=hash_keys(keys))], tmp_path / "text"
    )
    retexo.done("predict", small_run, "--partitions", "text")
    assert read_csv(tmp_path / "text").keys == keys.tolist()


# ---- bad input ----------------------------------------------------------------------------------


def test_parts_of_another_width_or_other_classes_are_refused(
    tmp_path: Path, retexo: CommandLine, small_run: Path
) -> None:
    digits = cut(tmp_path / "digits", clients=2)
    run = re.escape(str(small_run))
    told = retexo.refused("predict", small_run, "--partitions", "digits")
    assert re.fullmatch(f"digits: .*64 features; expected 6, .*{run} .*", told)
    with np.load(tmp_path / "small.npz") as arrays:
        changed = {**arrays, "y": np.minimum(arrays["y"], 1)}
    np.savez(tmp_path / "small.npz", **changed)
    cut(tmp_path / "two", **SMALL, data_dir=tmp_path, clients=2)
    told = retexo.refused("predict", small_run, "--partitions", "two")
    assert re.fullmatch(f"two: .*2 classes; expected 3, .*{run} .*", told)
    assert not [*digits.glob("*predictions*"), *(tmp_path / "two").glob("*predictions*")]


def test_runs_that_cannot_predict_are_refused(
    tmp_path: Path, retexo: CommandLine, small_run: Path
) -> None:
    predict = ("predict", "run", "--partitions", "parts")
    told = retexo.refused("predict", "none", "--partitions", "parts")
    assert re.fullmatch("none: .*config.toml is missing.*; expected a run directory", told)
    layer = small_run / "model" / "layer-1.safetensors"
    whole = layer.read_bytes()
    for place in (3, 60, len(whole) - 5):
        layer.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert retexo.refused(*predict).startswith("run/model/layer-1.safetensors: damaged")
    layer.unlink()
    assert retexo.refused(*predict) == (
        "run/model/layer-1.safetensors: cannot be read (No such file or directory)"
    )
    shutil.copy(small_run / "model" / "layer-0.safetensors", layer)
    assert retexo.refused(*predict).startswith(
        "run/model/layer-1.safetensors: is LayerFacts(stage=0"
    )
    layer.write_bytes(whole)
    settings = (small_run / "config.toml").read_text()
    (small_run / "config.toml").write_text(settings.replace("hidden = 8", "hidden = 9"))
    told = retexo.refused(*predict)
    assert told.startswith("run/model/layer-0.safetensors: ")
    assert "; expected " in told
    assert "config.toml" in told
    (small_run / "config.toml").write_text(settings.replace('"sage"', '"no_such_module:Layer"'))
    assert "cannot import 'no_such_module'" in retexo.refused(*predict, "--allow-plugins")
    (small_run / "config.toml").write_text(settings)
    (small_run / "result.json").unlink()
    told = retexo.refused(*predict)
    assert told.startswith("run: ")
    assert "result.json is missing" in told
    assert told.endswith("`retexo run --resume run`")
    assert not list((tmp_path / "parts").glob("*predictions*"))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--partitions", "none"), "none: no folder part-0; expected one made by"),
        (("--partitions", "parts", "--format", "xls"), "format: got 'xls'; expected one of csv, "),
        (("--partitions", "parts", "--engine", "x"), "engine: got 'x'; expected one of inline, "),
        (
            ("--partitions", "parts", "--engine", "deployment"),
            "engine: a deployment predicts where",
        ),
        (("--partitions", "parts", "--out", "run"), "out: run is a run; expected another folder"),
        (("--partitions", "parts", "--out", "parts/part-1"), "out: parts/part-1 is a part; "),
        (("--partitions", "parts", "--out", "small.npz"), "out: small.npz cannot be written to; "),
        (("--partitions", "parts", "--missing-peers", "x"), "missing-peers: got 'x'; expected "),
        ((), "partitions: missing; expected it, or --nodes and --edges"),
        (("--partitions", "parts", "--rounds", "3"), "--rounds: unknown option"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    tmp_path: Path,
    retexo: CommandLine,
    small_run: Path,
    options: tuple[str, ...],
    expected: str,
) -> None:
    before = files_in(tmp_path)
    assert retexo.refused("predict", small_run.name, *options).startswith(expected)
    assert files_in(tmp_path) == before


def test_a_run_of_a_deployment_predicts_over_local_parts(
    tmp_path: Path, retexo: CommandLine, small_run: Path
) -> None:
    """What concerned its clients' machines does not concern the parts here, which may be fewer."""
    settings = (small_run / "config.toml").read_text()
    deployed = re.sub(
        r"(?m)^(engine|introductions|relay|min-clients|round-d|data-dir).*\n", "", settings
    )
    (small_run / "config.toml").write_text(
        'engine = "deployment"\nintroductions = true\nrelay = true\nmin-clients = 2\n'
        f"round-deadline-s = 5.0\n{deployed}"
    )
    cut(tmp_path / "one", **{**SMALL, "data_dir": tmp_path, "clients": 1})
    retexo("predict", small_run, "--partitions", "one")
    assert summary_of(tmp_path / "one")["clients"] == 1


def test_damaged_parts_are_refused(tmp_path: Path, retexo: CommandLine, small_run: Path) -> None:
    path = tmp_path / "parts" / "part-1" / "indices.npy"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\1")
    told = retexo.refused("predict", small_run, "--partitions", "parts")
    assert told.startswith("parts/part-1/indices.npy: altered; expected SHA-256 ")


def test_help_has_an_example(retexo: CommandLine) -> None:
    told = retexo.done("predict", "--help")
    assert "$ retexo predict runs/first --partitions parts" in told
    assert "[default: as the run has it]" in told


# ---- what the server is told, and peers that are missing ----------------------------------------


class Listening(InlineGrid):
    """Keeps what clients answer."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.replies: list[RecordDict] = []

    def pull_messages(self, message_ids: Sequence[str]) -> list[Message]:  # type: ignore[override]
        replies = list(super().pull_messages(message_ids))
        self.replies += [reply.content for reply in replies]
        return replies


def predict_with(
    run: Path, parts_folder: Path, out: Path, channel: Channel, **keys: Any
) -> tuple[PredictionOutcome, Listening]:
    model, parts = read_trained_model(run), open_parts(parts_folder)
    config = make_config(
        {**config_values(model.config), **{k.replace("_", "-"): v for k, v in keys.items()}}
    )
    clients: dict[int, GraphClient] = {}
    out.mkdir()

    def find(context: Context, ticket: Ticket) -> GraphClient:
        index = client_index(context)
        if index not in clients:
            clients[index] = LazyClient(
                parts[index],
                config,
                job=ticket.job,
                channel=channel,
                store=MemoryStore(),
                predictions=out,
            )
        return clients[index]

    grid = Listening(build_client_app(find), len(parts), config_values(config))
    loop = PredictionLoop(
        grid=grid, config=config, model=model, form="npz", tell=lambda event: None
    )
    return loop.run(), grid


def test_server_is_told_counts_only(tmp_path: Path, small_run: Path) -> None:
    channel = SpoolChannel(tmp_path / "spool")
    outcome, grid = predict_with(small_run, tmp_path / "parts", tmp_path / "out", channel)
    answers = grid.replies[-2:]
    for content, answer in zip(answers, outcome.answers.values(), strict=True):
        (metrics,) = content.metric_records.values()
        assert len(content) == 1
        assert len(metrics) == 7
        assert all(type(value) is int for value in metrics.values())
        assert metrics["nodes"] == answer.nodes
    keys = [key for part in open_parts(tmp_path / "parts") for key in part.node_keys.tolist()]
    assert sum(answer.nodes for answer in outcome.answers.values()) == len(keys)
    assert not [c for c in grid.replies if c.array_records]
    # Clients have forgotten the job: no block is left.
    assert files_in(tmp_path / "spool") == {}


def test_missing_peer_follows_the_policy(tmp_path: Path) -> None:
    write_small(tmp_path / "small.npz")
    keys = {**SMALL, "data_dir": tmp_path, "clients": 3}
    parts = cut(tmp_path / "parts", **keys)
    run = train(
        *(tmp_path / "run",),
        **keys,
        rounds=2,
        hidden=8,
        missing_peers="drop",
        exchange_deadline_s=0.1,
    )
    plans = [BoundaryPlan.from_partition(part) for part in open_parts(parts)]
    lost = sum(plan.peer(2).receive.count for plan in plans[:2])
    outcome, _ = predict_with(run, parts, tmp_path / "drop", LosingChannel(2))
    assert outcome.missing == 2 * lost
    assert len(read_npz(tmp_path / "drop").keys) == 40
    with pytest.raises(ExchangeIncomplete, match="client 0 lacks .* client 1 lacks"):
        predict_with(*(run, parts, tmp_path / "wait", LosingChannel(2)), missing_peers="wait")
    assert list((tmp_path / "wait").iterdir()) == []


# ---- progress and stopping ----------------------------------------------------------------------


def test_progress_is_told_by_lines_in_a_pipe(
    tmp_path: Path, retexo: CommandLine, small_run: Path
) -> None:
    ended = retexo("predict", small_run, "--partitions", "parts")
    lines = ended.err.splitlines()
    assert lines[0] == "parts, sage, 2 clients, engine inline"
    assert lines[1].startswith("exchange 0: closed, ")
    assert lines[2].startswith("exchange 1: closed, ")
    assert lines[3].startswith("done: 40 nodes predicted, ")
    assert len(lines) == 4


@pytest.mark.system
def test_stopped_prediction_says_how_to_go_on_and_leaves_nothing(
    tmp_path: Path, retexo: CommandLine
) -> None:
    write_small(tmp_path / "small.npz", nodes=60)
    keys = {**SMALL, "data_dir": tmp_path}
    train(tmp_path / "run", **keys, clients=2, rounds=1, hidden=8)
    parts = cut(tmp_path / "a part", **keys, clients=60, partitioner="one-node")
    before = set(files_in(parts))
    command = ["predict", "run", "--partitions", "a part", "--quiet"]
    with subprocess.Popen(
        [*PROGRAM, *command], env=environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 60
        while not list(parts.glob(".predictions-*.part/server/events.jsonl")):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=500)
    assert process.returncode == 130
    again = f"retexo predict {tmp_path / 'run'} --partitions 'a part'"
    assert err == f"retexo: interrupted; start again with: {again}\n"
    assert set(files_in(parts)) == before
    retexo.done(*command)
    assert json.loads((parts / "predictions.json").read_text())["nodes"] == 60
