"""Predictions with a model whose training was masked.

In place the server gets one sum; with all parts here nobody is hidden from anybody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from retexo_fl.api.predicting import config_in_place
from retexo_fl.client import api
from retexo_fl.client.answers import sum_facts
from retexo_fl.client.masked_answers import COUNTER
from retexo_fl.client.preparation import open_parts
from retexo_fl.config import RunConfig
from retexo_fl.errors import ConfigurationError
from retexo_fl.federation.prediction_in_place import InPlaceTask
from retexo_fl.federation.trained_model import read_trained_model
from retexo_fl.line_log import LineLog
from tests.support.agents import AgentProcess, agents, predict_in_place_with
from tests.support.cli import CommandLine
from tests.support.limits import PERMISSIVE
from tests.support.predictions import SMALL, cut, files_in, write_small
from tests.support.runs import train
from tests.support.thread_grid import FIRST_NODE, ThreadGrid

CLIENTS = 4
SETTINGS = {**PERMISSIVE, "predictions": "predictions"}
METRIC = "macro-f1"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a masked run on a small graph, whose parts lie in ``parts`` beside the run."""
    folder = tmp_path_factory.mktemp("trained")
    write_small(folder / "small.npz")
    keys = {**SMALL, "data_dir": folder, "clients": CLIENTS}
    cut(folder / "parts", **keys)
    more = {"rounds": 3, "hidden": 8, "metric": METRIC, "secure_aggregation": "masked"}
    return train(folder / "run", **keys, **more)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, run: Path) -> Iterator[list[AgentProcess]]:
    parts = open_parts(run.with_name("parts"))
    with agents(tmp_path_factory.mktemp("agents"), parts, settings=SETTINGS) as started:
        yield started


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[dict[str, Any]]]:
    """Note, by client, the values of what the server is sent beside hellos."""
    found: dict[int, list[dict[str, Any]]] = {}
    pull = ThreadGrid.pull_messages

    def noted(self: ThreadGrid, names: Any) -> Any:
        replies = list(pull(self, names))
        for reply in replies:
            if reply.metadata.message_type != api.HELLO.message_type:
                found.setdefault(reply.metadata.src_node_id - FIRST_NODE, []).append(_values(reply))
        return replies

    monkeypatch.setattr(ThreadGrid, "pull_messages", noted)
    return found


def _values(reply: Message) -> dict[str, Any]:
    content = reply.content
    return {
        key: value
        for records in (content.config_records, content.metric_records)
        for record in records.values()
        for key, value in record.items()
    }


def _config(run: Path, **more: Any) -> RunConfig:
    values = {"engine": "deployment", "dataset": "digits", **more}
    return config_in_place(values, read_trained_model(run), 0)


def _predict(
    made: list[AgentProcess], run: Path, folder: Path, config: RunConfig
) -> tuple[dict[str, Any], list[dict[str, bytes]]]:
    """Return the summary, and each agent's files."""
    task = InPlaceTask(run=str(run), folder=str(folder), form="csv", overwrite=True)
    summary = predict_in_place_with(made, config, task)
    return summary, [
        {
            name: content
            for name, content in files_in(agent.folder / "predictions").items()
            if name.endswith(".csv")
        }
        for agent in made
    ]


def test_the_server_gets_the_sum_of_counts_that_it_would_get_from_each(
    run: Path, made: list[AgentProcess], sent: dict[int, list[dict[str, Any]]], tmp_path: Path
) -> None:
    masked = _config(run)
    assert masked.secure_aggregation == "masked"
    summary, files = _predict(made, run, tmp_path / "masked", masked)
    # The last answer says that the job is forgotten.
    hidden = {client: values[-2] for client, values in sorted(sent.items())}
    told = [values for all_values in sent.values() for values in all_values]
    sent.clear()
    plain = replace(masked, secure_aggregation="none")
    expected, plain_files = _predict(made, run, tmp_path / "plain", plain)
    clear = {client: values[-1] for client, values in sorted(sent.items())}

    assert all(len(of_agent) == 1 for of_agent in files)
    assert files == plain_files
    for agent in made:
        lines = LineLog(agent.state / "questions.jsonl").read()
        *_, counts_told, predicted, in_the_clear = [(a["question"], a["masked"]) for a in lines]
        assert (counts_told, predicted) == (("counts", True), ("predict", True))
        assert in_the_clear == ("predict", False)
    names = ("labelled", "metric", "nodes", "missing_rows", "model_digest")
    assert {name: summary[name] for name in names} == {name: expected[name] for name in names}

    counts = (
        "nodes",
        *(use + of for use in ("train", "validation", "test") for of in ("", "-correct")),
    )
    assert len(hidden) == len(clear) == CLIENTS
    assert not any({*counts} & values.keys() for values in told)
    # Those of the metric, for validation and for test nodes, are counts, too.
    more = 2 * (sum_facts(masked, read_trained_model(run).shape.classes).metric or 0)
    # Behind them stands how many were cut.
    numbers = {
        c: COUNTER.unpack(values["beside"][:-8], len(counts) + more) for c, values in hidden.items()
    }
    total = np.zeros(len(counts) + more, COUNTER.dtype)
    for client, values in clear.items():
        own = [values[name] for name in counts]
        assert own != numbers[client][: len(counts)].tolist()
        COUNTER.cut(np.add(total, numbers[client], out=total))
    assert total[: len(counts)].tolist() == [
        sum(values[name] for values in clear.values()) for name in counts
    ]


def test_an_agent_that_had_a_masked_job_tells_no_bytes_at_its_socket(
    run: Path, made: list[AgentProcess], tmp_path: Path
) -> None:
    _predict(made, run, tmp_path / "masked", _config(run))
    for agent in made:
        status = agent.status()
        assert status["peers"]
        for peer in status["peers"]:
            assert (peer["layers"], peer["owed"]["bytes"]) == ([], None)
            counters = list(peer["channels"].values())
            assert counters
            assert {each["wire_bytes_sent"] for each in counters} == {None}


@pytest.mark.system
def test_an_owner_who_insists_on_masks_takes_part(run: Path, tmp_path: Path) -> None:
    parts = open_parts(run.with_name("parts"))
    settings = {**SETTINGS, "require-secure-aggregation": True, "least-clients": CLIENTS}
    with agents(tmp_path / "agents", parts, settings=settings) as insisting:
        _, files = _predict(insisting, run, tmp_path / "masked", _config(run))
        assert all(files)
        plain = replace(_config(run), secure_aggregation="none")
        with pytest.raises(ConfigurationError, match="secure-aggregation: none; expected masked"):
            _predict(insisting, run, tmp_path / "plain", plain)


def test_two_clients_predict_without_masks_if_the_user_says_so(
    run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    retexo = CommandLine(capfd)
    command = ("predict", run, "--superlink", "127.0.0.1:1", "--insecure", "--clients", "2")
    assert "clients 2; expected 3 clients at least, or secure-aggregation none" in retexo.refused(
        *command
    )
    # Now nothing but a SuperLink is missing; the run's own choice needs no option.
    for more in ((*command, "--secure-aggregation", "none"), command[:-2]):
        assert retexo.refused(*more).startswith("superlink: ")


def test_clients_without_train_nodes_predict_under_masks(run: Path, tmp_path: Path) -> None:
    parts = [
        replace(part, train_mask=np.zeros_like(part.train_mask))
        for part in open_parts(run.with_name("parts"))
    ]
    with agents(tmp_path / "agents", parts, settings=SETTINGS) as made:
        summary, files = _predict(made, run, tmp_path / "masked", _config(run))
    assert all(files)
    assert summary["labelled"]["train"]["nodes"] == 0
    assert summary["labelled"]["test"]["nodes"] > 0


@pytest.mark.parametrize("clients", [1, 2, CLIENTS])
def test_parts_here_are_predicted_however_many_they_are(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], clients: int
) -> None:
    keys = {**SMALL, "data_dir": run.parent, "clients": clients}
    cut(tmp_path / "parts", **keys)
    out = tmp_path / "out"
    CommandLine(capfd).done(
        "predict", run, "--partitions", tmp_path / "parts", "--out", out, "--quiet"
    )
    assert len([name for name in files_in(out) if name.endswith(".csv")]) == clients
