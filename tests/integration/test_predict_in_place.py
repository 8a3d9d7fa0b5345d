"""Agents predict on their own parts: the files stay with them, the server gets counts."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.agent.predictions import PredictionSets
from retexo_fl.agent.remote import RemoteClient
from retexo_fl.client.api import (
    BasisRequest,
    ChoiceRequest,
    EvaluateRequest,
    GramRequest,
    HelloRequest,
    PredictedRequest,
    PredictRequest,
    Ticket,
    TrainRequest,
)
from retexo_fl.client.preparation import open_parts
from retexo_fl.config import RunConfig, Scalar, config_values, make_config
from retexo_fl.errors import (
    CheckpointError,
    ConfigurationError,
    LocalProtocolError,
    PartitionError,
    RoundIncomplete,
)
from retexo_fl.federation.prediction_in_place import InPlaceTask
from retexo_fl.federation.trained_model import read_trained_model
from retexo_fl.graph import GraphPartition
from retexo_fl.run_log.events import Answered, Event, ExchangeClosed, Predicted, PredictionStarted
from retexo_fl.run_status import write_status
from tests.support.agents import AgentProcess, agents, predict_in_place_with
from tests.support.cli import CommandLine
from tests.support.limits import PERMISSIVE
from tests.support.part import wait_until
from tests.support.predictions import SMALL, cut, files_in, summary_of, write_small
from tests.support.runs import train

CLIENTS = 3
SETTINGS = {**PERMISSIVE, "predictions": "predictions"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train on a small graph, whose parts lie in ``parts`` beside the run."""
    folder = tmp_path_factory.mktemp("trained")
    write_small(folder / "small.npz")
    keys = {**SMALL, "data_dir": folder, "clients": CLIENTS}
    cut(folder / "parts", **keys)
    return train(folder / "run", **keys, rounds=3, hidden=8, metric="macro-f1")


@pytest.fixture(scope="module")
def parts(trained: Path) -> list[GraphPartition]:
    return open_parts(trained.with_name("parts"))


@pytest.fixture(scope="module")
def started(
    tmp_path_factory: pytest.TempPathFactory, parts: list[GraphPartition]
) -> Iterator[list[AgentProcess]]:
    with agents(tmp_path_factory.mktemp("agents"), parts, settings=SETTINGS) as made:
        yield made


@pytest.fixture
def run(trained: Path) -> Path:
    """A run that nothing was predicted with."""
    shutil.rmtree(trained / "predictions", ignore_errors=True)
    shutil.rmtree(trained.with_name("here"), ignore_errors=True)
    return trained


@pytest.fixture
def made(started: list[AgentProcess]) -> list[AgentProcess]:
    """Agents that have predicted nothing."""
    for agent in started:
        # What the server of the test before asked for may still be written.
        wait_until(partial(_removed, agent.folder / "predictions"), "predictions are still written")
    return started


def _removed(place: Path) -> bool:
    shutil.rmtree(place, ignore_errors=True)
    if place.is_file():
        place.unlink()
    return not place.exists()


def config_of(run: Path, **more: Any) -> RunConfig:
    values = config_values(read_trained_model(run).config)
    return make_config({**values, "clients": CLIENTS, "dataset": "digits", "data-dir": "", **more})


def task_of(run: Path, **more: Any) -> InPlaceTask:
    place = {"run": str(run), "folder": str(run / "predictions"), "form": "csv"}
    return InPlaceTask(**{**place, **more})


def kept(agent: AgentProcess, run: Path, form: str = "csv") -> Path:
    """Return where an agent keeps its file of a run's model."""
    digits = read_trained_model(run).digest[:16]
    return agent.folder / "predictions" / digits / f"predictions-{agent.client}.{form}"


def marks(made: list[AgentProcess], run: Path) -> list[int]:
    """Return when each file was written: the number of one that is gone may be another's."""
    return [kept(agent, run).stat().st_mtime_ns for agent in made]


def running(made: list[AgentProcess], run: Path) -> list[str]:
    """Return the jobs under way that predict with a run's model."""
    name = f"predict-{read_trained_model(run).digest[:6]}"
    jobs = [job["job"] for agent in made for job in agent.status()["jobs"]]
    return [job for job in jobs if job.startswith(name)]


def predicted_here(
    run: Path, parts: Path, capfd: pytest.CaptureFixture[str], form: str = "csv"
) -> dict[str, bytes]:
    """Return what `retexo predict` makes of the same parts."""
    out = run.with_name("here")
    command = ("predict", run, "--partitions", parts, "--out", out, "--format", form, "--quiet")
    CommandLine(capfd).done(*command)
    return {name: content for name, content in files_in(out).items() if name.endswith(form)}


@pytest.mark.parametrize("form", ["csv", "npz"])
def test_agents_write_what_retexo_predict_writes_and_the_server_gets_counts(
    run: Path, made: list[AgentProcess], capfd: pytest.CaptureFixture[str], form: str
) -> None:
    summary = predict_in_place_with(made, config_of(run), task_of(run, form=form))
    expected = predicted_here(run, run.with_name("parts"), capfd, form)
    assert len(expected) == CLIENTS
    for agent in made:
        path = kept(agent, run, form)
        assert path.read_bytes() == expected[path.name]
        names = {f"{path.parent.name}/{path.name}{ending}" for ending in ("", ".json")}
        assert {*files_in(agent.folder / "predictions")} == names
    assert summary == summary_of(run / "predictions")
    here = summary_of(run.with_name("here"))
    for name in ("nodes", "labelled", "metric", "missing_rows", "model_digest"):
        assert summary[name] == here[name]
    server = files_in(run / "predictions")
    assert server.keys() == {"status.json", "events.jsonl", "predictions.json"}
    keys = [key for part in open_parts(run.with_name("parts")) for key in part.node_keys.tolist()]
    assert not [key for key in keys for text in server.values() if b'"%s"' % key in text]
    assert not running(made, run)


@pytest.mark.parametrize(
    "graph",
    [
        {},
        {"relation": "bought", "model": "rel-gat", "heads": 2},
        pytest.param(
            {"relation": "knows", "model": "rel-sage", "edges_are": "directed"},
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda keys: keys.get("model", "gcn"),
)
def test_suggested_links_are_those_of_retexo_predict(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], graph: dict[str, Any]
) -> None:
    if graph:
        graph = {**graph, "dataset": "tests.integration.test_typed_links:market"}
    keys: dict[str, Any] = {"task": "links", "clients": 2, "rounds": 2, "hidden": 8, **graph}
    cut(tmp_path / "parts", clients=2, task="links", **graph)
    run = train(tmp_path / "run", **keys)
    expected = predicted_here(run, tmp_path / "parts", capfd)
    parts = open_parts(tmp_path / "parts")
    with agents(tmp_path / "agents", parts, settings=SETTINGS) as made:
        summary = predict_in_place_with(made, config_of(run, clients=2), task_of(run))
        for agent in made:
            path = kept(agent, run)
            assert path.read_bytes() == expected[path.name]
            assert path.read_bytes().startswith(b"key,other,p\n")
    # Of types users rank others.
    ranking = [part.num_inner if part.kinds is None else (part.kinds == 0).sum() for part in parts]
    assert summary["nodes"] == sum(ranking)


def test_a_complete_set_is_made_again_only_with_overwrite(
    run: Path, made: list[AgentProcess], tmp_path: Path
) -> None:
    config, task = config_of(run), task_of(run)
    events: list[Event] = []
    first = predict_in_place_with(made, config, task)
    before, contents = marks(made, run), [kept(agent, run).read_bytes() for agent in made]
    assert predict_in_place_with(made, config, task, [events.append]) == first
    assert (events, marks(made, run)) == ([], before)
    again = predict_in_place_with(made, config, replace(task, overwrite=True))
    assert again["job"] != first["job"]
    assert not {*marks(made, run)} & {*before}
    # Of another model: beside it. In another form, for the same folder of the server: refused.
    keys = {**SMALL, "data_dir": run.parent, "clients": CLIENTS}
    other = train(tmp_path / "other", **keys, rounds=1, hidden=8, seed=1)
    predict_in_place_with(made, config_of(other), task_of(other))
    with pytest.raises(ConfigurationError, match=r"^out: .*format 'csv', not 'npz'.*--overwrite$"):
        predict_in_place_with(made, config, replace(task, form="npz"))
    assert [kept(agent, run).read_bytes() for agent in made] == contents
    # What one client has lost, or altered, is made again by all.
    kept(made[1], run).unlink()
    assert predict_in_place_with(made, config, task)["job"] != again["job"]
    assert [kept(agent, run).read_bytes() for agent in made] == contents


def test_what_was_predicted_of_an_earlier_part_counts_as_missing(run: Path, tmp_path: Path) -> None:
    parts = run.with_name("parts")
    sets = PredictionSets.of(tmp_path, 0, parts / "part-0")
    ticket, name = Ticket(job="predict-000000000000", attempt=1), "0" * 16
    asked = PredictedRequest(ticket=ticket, form="csv", set_name=name)
    assert not sets.is_there(asked)
    (tmp_path / name).mkdir(exist_ok=True)
    (tmp_path / name / "predictions-0.csv").write_text("key,class\n")
    sets.note(PredictRequest(ticket=ticket, weights=np.zeros(0), form="csv", set_name=name))
    assert sets.is_there(asked)
    assert not PredictionSets.of(tmp_path, 0, parts / "part-1").is_there(asked)
    assert not sets.is_there(replace(asked, ticket=replace(ticket, job="predict-000000000001")))
    (tmp_path / name / "predictions-0.csv").write_text("key,class\n1,2\n")
    assert not sets.is_there(asked)


def test_without_a_folder_an_agent_makes_no_predictions_and_says_so(
    run: Path, tmp_path: Path, parts: list[GraphPartition]
) -> None:
    with agents(tmp_path / "agents", parts, settings=PERMISSIVE) as made:
        for overwrite in (False, True):
            with pytest.raises(ConfigurationError, match=r"client \d: makes no predictions; .*ag"):
                predict_in_place_with(made, config_of(run), task_of(run, overwrite=overwrite))
            # As if there were a set, which it is then asked for.
            (run / "predictions" / "predictions.json").write_text(
                f'{{"model_digest": "{read_trained_model(run).digest}", "missing_peers": "wait", '
                '"format": "csv", "job": "predict-000000000000"}'
            )
        assert not any(agent.status()["jobs"] for agent in made)


@pytest.mark.parametrize("at", [PredictionStarted, ExchangeClosed])
def test_an_agent_that_is_killed_is_waited_for(
    run: Path, made: list[AgentProcess], capfd: pytest.CaptureFixture[str], at: type[Event]
) -> None:
    killed = threading.Event()

    def restart() -> None:
        made[1].kill()
        made[1].start()

    def kill_once(event: Event) -> None:
        if isinstance(event, at) and not killed.is_set():
            killed.set()
            threading.Thread(target=restart).start()

    predict_in_place_with(made, config_of(run), task_of(run), [kill_once])
    assert killed.is_set()
    expected = predicted_here(run, run.with_name("parts"), capfd)
    assert [kept(agent, run).read_bytes() for agent in made] == [*expected.values()]


class _ServerEndedError(BaseException):
    """Ends the server where it stands, as a signal does."""


@pytest.mark.parametrize("at", [PredictionStarted, ExchangeClosed, Predicted])
def test_the_same_command_finishes_what_a_killed_server_began(
    run: Path, made: list[AgentProcess], capfd: pytest.CaptureFixture[str], at: type[Event]
) -> None:
    def end(event: Event) -> None:
        if isinstance(event, at):
            raise _ServerEndedError

    with pytest.raises(_ServerEndedError):
        predict_in_place_with(made, config_of(run), task_of(run), [end])
    assert '"interrupted"' in (run / "predictions" / "status.json").read_text()
    assert not (run / "predictions" / "predictions.json").exists()
    write_status(run / "predictions", "running")  # a process that was killed wrote no other
    summary = predict_in_place_with(made, config_of(run), task_of(run))
    expected = predicted_here(run, run.with_name("parts"), capfd)
    assert [kept(agent, run).read_bytes() for agent in made] == [*expected.values()]
    assert summary["job"]
    # The job that has lost its server is gone with it.
    assert not running(made, run)


def test_a_set_that_is_cut_off_leaves_the_one_before_readable(
    run: Path, made: list[AgentProcess]
) -> None:
    first = predict_in_place_with(made, config_of(run), task_of(run))
    contents = [kept(agent, run).read_bytes() for agent in made]

    def end(event: Event) -> None:
        if isinstance(event, Answered):
            raise _ServerEndedError

    with pytest.raises(_ServerEndedError):
        predict_in_place_with(made, config_of(run), task_of(run, overwrite=True), [end])
    assert [kept(agent, run).read_bytes() for agent in made] == contents
    assert predict_in_place_with(made, config_of(run), task_of(run)) == first


def test_a_client_that_is_away_is_named_when_the_time_is_over(
    run: Path, made: list[AgentProcess]
) -> None:
    config = config_of(run, **{"message-timeout-s": 8.0})
    with pytest.raises(RoundIncomplete, match=r"connected: 2 of 3 .*; missing: client 2$"):
        predict_in_place_with(made[:2], config, task_of(run))
    assert '"failed"' in (run / "predictions" / "status.json").read_text()
    assert not list(made[0].folder.rglob("predictions-*"))


def test_parts_of_other_sizes_are_refused_by_name(
    run: Path, tmp_path: Path, made: list[AgentProcess]
) -> None:
    other = train(tmp_path / "digits", clients=CLIENTS, rounds=1, hidden=4)
    with pytest.raises(PartitionError, match=r"^clients: the parts have 6 features; expected 64,"):
        predict_in_place_with(made, config_of(other), task_of(other))


def test_no_path_of_a_client_reaches_the_server(run: Path, made: list[AgentProcess]) -> None:
    (made[1].folder / "predictions").write_text("no folder")
    with pytest.raises(CheckpointError, match=r"^client 1: predictions/\w{16}: ") as caught:
        predict_in_place_with(made, config_of(run), task_of(run))
    assert str(made[1].folder) not in str(caught.value)
    assert str(made[1].folder / "predictions") in made[1].log


@pytest.mark.parametrize(
    "changes", [{"form": "../../x"}, {"set_name": "../../../../tmp/xyz0"}, {"set_name": "a/b"}]
)
def test_nothing_that_a_server_names_becomes_a_path(
    run: Path, made: list[AgentProcess], changes: dict[str, str]
) -> None:
    client = RemoteClient(made[0].socket, config_values(config_of(run)))
    fields = {"form": "csv", "set_name": "0" * 16, **changes}
    request = PredictedRequest(ticket=Ticket(job="predict-000000000000", attempt=1), **fields)
    with pytest.raises(LocalProtocolError, match="expected"):
        client.ask(request)


def test_a_job_that_predicts_trains_nothing_whatever_its_configuration_says(
    run: Path, made: list[AgentProcess]
) -> None:
    """Which keys go together is not looked at there: noise without masks would add nothing."""
    contradicting: dict[str, Scalar] = {"update-dp": 2.0, "solver": "ridge", "basis": "supervised"}
    values = config_values(config_of(run)) | contradicting
    client = RemoteClient(made[0].socket, values)
    ticket, weights = Ticket(job="predict-00000000000a", attempt=1), np.zeros(1, np.float32)
    client.ask(HelloRequest(ticket=ticket))
    for request in (
        TrainRequest(ticket=replace(ticket, round=1), weights=weights),
        EvaluateRequest(ticket=ticket, weights=weights, nodes="test"),
        BasisRequest(ticket=ticket),
        ChoiceRequest(ticket=ticket, weights=weights),
        GramRequest(ticket=replace(ticket, stage=1)),
    ):
        with pytest.raises(LocalProtocolError, match="^client 0: asked to train in a job that pre"):
            client.ask(request)


def test_a_run_is_no_folder_for_the_server(run: Path, made: list[AgentProcess]) -> None:
    before = files_in(run)
    with pytest.raises(ConfigurationError, match=r"^out: .*/run is a run; expected another"):
        predict_in_place_with(made, config_of(run), task_of(run, folder=str(run)))
    assert files_in(run) == before


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--partitions", "x"), "partitions: cannot be given with superlink; clients predict on "),
        (("--nodes", "x"), "nodes: cannot be given with superlink; clients predict on their own"),
        (("--engine", "flower"), "engine: 'flower' does not go with --superlink; "),
        (("--format", "xlsx"), "format: got 'xlsx'; expected one of csv, "),
    ],
)
def test_options_that_contradict_a_superlink_are_refused(
    run: Path, capfd: pytest.CaptureFixture[str], options: tuple[str, str], told: str
) -> None:
    command = ("predict", run, "--superlink", "127.0.0.1:1", "--insecure")
    assert CommandLine(capfd).refused(*command, *options).startswith(told)
    assert not (run / "predictions").exists()


@pytest.mark.parametrize("option", [("--clients", "2"), ("--secure-aggregation", "none")])
def test_options_of_a_superlink_are_for_it_alone(
    run: Path, capfd: pytest.CaptureFixture[str], option: tuple[str, str]
) -> None:
    command = ("predict", run, "--partitions", run.with_name("parts"), *option)
    told = CommandLine(capfd).refused(*command)
    assert told == f"{option[0][2:]}: expected only with --superlink HOST:PORT"
