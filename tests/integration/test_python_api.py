"""Trainings that Python starts are those of the command, and their runs can be looked into."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import retexo_fl
from retexo_fl.errors import (
    ConfigurationError,
    DatasetError,
    Interrupted,
    PluginError,
    RunDirectoryError,
)
from retexo_fl.federation.aggregators import Aggregator
from retexo_fl.graph import load_dataset, open_partition
from retexo_fl.layers.sage import SageLayer
from retexo_fl.plugins import load_plugin
from tests.support.cli import CommandLine, environment
from tests.support.runs import Interrupter, events_of, model_bytes, result_of
from tests.support.ways import way

with warnings.catch_warnings():
    # PyTorch deprecates what PyG does when it is imported.
    warnings.simplefilter("ignore")
    from torch_geometric.data import Data

#: Seconds, and what follows from them.
TIMES = frozenset({"time_s", "seconds", "waited_s", "open_s"})
#: Three rounds a stage: nothing else is tried.
SMALL: dict[str, Any] = {"clients": 3, "hidden": 8, "rounds": 3, "candidates": "none"}
SMALL |= {"quiet": True}
OPTIONS = ("--clients", "3", "--hidden", "8", "--rounds", "3", "--candidates", "none", "--quiet")


class OwnLayer(SageLayer):
    """A layer of this module."""


class OwnMean:
    """An aggregator of this module."""

    def __init__(self) -> None:
        self.made = True


def summed_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """A loss of this module."""
    return torch.nn.functional.cross_entropy(logits, labels, reduction="sum")


@pytest.fixture
def retexo(capfd: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capfd)


def history_of(run: Path, but: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the events of a run without what its clock says."""
    left_out = {*TIMES, *but}
    return [{k: v for k, v in event.items() if k not in left_out} for event in events_of(run)]


def same(one: Path, other: Path, but: Sequence[str] = ()) -> None:
    """Compare model, account and history of two runs."""
    assert model_bytes(one) == model_bytes(other)
    assert (one / "ledger.csv").read_bytes() == (other / "ledger.csv").read_bytes()
    assert history_of(one, but) == history_of(other, but)


# ---- run ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "options"),
    [
        ({}, ()),
        (
            {"profile": "retexo", "learning_rate": 1},
            ("--profile", "retexo", "--learning-rate", "1"),
        ),
        (
            {"model": "gat", "heads": np.int64(4), "partitioner": "louvain", "basis_bits": None},
            ("--model", "gat", "--heads", "4", "--partitioner", "louvain"),
        ),
        way(
            {"algorithm": "drop", "sampler": "neighbour", "fanouts": [4, 3], "learning_rate": 1},
            (
                *("--algorithm", "drop", "--sampler", "neighbour", "--fanouts", "4/3"),
                *("--learning-rate", "1"),
            ),
        ),
    ],
    ids=["default", "profile", "keys", "list"],
)
def test_run_leaves_the_bytes_of_the_command(
    tmp_path: Path, retexo: CommandLine, keys: dict[str, Any], options: tuple[str, ...]
) -> None:
    made = retexo_fl.run(out=tmp_path / "python", **{**SMALL, **keys})
    retexo.done("run", *OPTIONS, *options, "--out", tmp_path / "command")
    same(made.path, tmp_path / "command")
    texts = [(run / "config.toml").read_text() for run in (made.path, tmp_path / "command")]
    assert texts[0] == texts[1]
    if not keys:
        assert made.config.basis == "supervised"


def test_run_reads_a_file_of_keys(tmp_path: Path) -> None:
    first = retexo_fl.run(out=tmp_path / "first", **SMALL)
    again = retexo_fl.run(config=first.path / "config.toml", out=tmp_path / "again", quiet=True)
    # What a file names was chosen, so the profile says of no key that it follows from the graph.
    assert again.result.profile is not None
    assert again.result.profile.fit.startswith("as it is")
    same(first.path, again.path, but=("profile",))


def test_run_shows_what_a_pipe_gets(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    retexo_fl.run(out=tmp_path / "run", **{**SMALL, "quiet": False})
    told = capfd.readouterr()
    assert told.out == ""
    assert "profile lean, by default: " in told.err
    assert "digits, sage, 3 clients, engine inline" in told.err
    assert "\ndone: test accuracy" in told.err
    retexo_fl.run(out=tmp_path / "quiet", **SMALL)
    assert capfd.readouterr() == ("", "")


def test_run_leaves_the_callers_threads_alone(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        retexo_fl.run(out=tmp_path / "run", **SMALL)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


# ---- what may be handed over --------------------------------------------------------------------


def test_graphs_and_parts_train_as_their_names_do(tmp_path: Path) -> None:
    named = retexo_fl.run(out=tmp_path / "named", **SMALL)
    graph = load_dataset("digits", data_dir=None)
    handed = retexo_fl.run(graph=graph, out=tmp_path / "graph", **SMALL)
    assert result_of(handed.path)["dataset"] == "digits"
    same(named.path, handed.path)
    ends = torch.from_numpy(graph.edge_list())
    data = Data(
        x=torch.from_numpy(np.asarray(graph.features)),
        y=torch.from_numpy(graph.labels),
        edge_index=torch.cat([ends, ends.flip(0)], dim=1),
    )
    same(named.path, retexo_fl.run(graph=data, out=tmp_path / "data", **SMALL).path)
    folder = retexo_fl.partition(graph=data, clients=3, out=tmp_path / "parts")
    parts = [open_partition(folder / f"part-{client}") for client in range(3)]
    del SMALL["clients"]
    try:
        by_folder = retexo_fl.run(partitions=folder, out=tmp_path / "folder", **SMALL)
        by_parts = retexo_fl.run(partitions=parts, out=tmp_path / "objects", **SMALL)
    finally:
        SMALL["clients"] = 3
    same(named.path, by_folder.path)
    same(named.path, by_parts.path)


def test_values_of_an_attribute_are_clients_of_a_graph_that_is_handed_over(tmp_path: Path) -> None:
    nodes = 40
    ends = np.stack((np.arange(nodes - 1), np.arange(1, nodes)))
    graph = retexo_fl.Graph.from_edges(
        ends,
        name="path",
        features=np.eye(nodes, 4, dtype=np.float32),
        labels=np.arange(nodes) % 2,
        attributes={"site": np.array(["a", "b", "c", "d"]).repeat(10)},
    )
    keys = {**SMALL, "clients": None, "partitioner": "attribute:site"}
    made = retexo_fl.run(graph=graph, out=tmp_path / "run", **keys)
    assert made.result.clients == 4


def test_classes_and_functions_stand_for_their_names(tmp_path: Path) -> None:
    made = retexo_fl.run(model=OwnLayer, loss=summed_cross_entropy, out=tmp_path / "own", **SMALL)
    named = retexo_fl.run(profile="retexo", out=tmp_path / "named", **SMALL)
    assert made.config.model == f"{__name__}:OwnLayer"
    assert made.config.loss == f"{__name__}:summed_cross_entropy"
    assert made.result.test_accuracy == named.result.test_accuracy
    with pytest.raises(PluginError, match="OwnMean"):
        retexo_fl.run(aggregator=OwnMean, out=tmp_path / "none", **SMALL)

    class Local(Aggregator):
        pass

    with pytest.raises(ConfigurationError, match="aggregator: .*Local cannot be found"):
        retexo_fl.run(aggregator=Local, out=tmp_path / "none", **SMALL)
    assert not (tmp_path / "none").exists()


def test_what_only_this_process_knows_is_refused_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "OwnLayer", OwnLayer, raising=False)
    keys = {**SMALL, "model": "__main__:OwnLayer", "out": tmp_path / "run"}
    with pytest.raises(ConfigurationError, match="model: OwnLayer is known to this process alone"):
        retexo_fl.run(engine="flower", **keys)
    assert retexo_fl.run(**keys).is_finished


@pytest.mark.parametrize(
    ("keys", "kind", "told"),
    [
        ({"hiden": 8}, ConfigurationError, "hiden: unknown .*'hidden'"),
        ({"rounds": 0}, ConfigurationError, "rounds: got 0; expected a whole number"),
        ({"rounds": [1]}, ConfigurationError, "rounds: got list; expected text"),
        ({"profile": "best"}, ConfigurationError, "profile: got 'best'; expected one of"),
        ({"dataset": "nonesuch"}, DatasetError, "nonesuch"),
        ({"graph": 7}, DatasetError, "graph: got int; expected a retexo_fl.Graph"),
        (
            {"graph": 7, "dataset": "cora"},
            ConfigurationError,
            "dataset: cannot be given with graph",
        ),
        ({"partitions": [], "split": "auto"}, ConfigurationError, "split: cannot be .* with parts"),
        ({"engine": "deployment"}, ConfigurationError, "engine: deployment is for `retexo run"),
        ({"callbacks": [7]}, ConfigurationError, "callbacks: got int; expected an object with"),
        ({"resume": "nowhere"}, RunDirectoryError, "holds no run"),
    ],
)
def test_bad_input_has_a_name_and_leaves_nothing(
    tmp_path: Path, keys: dict[str, Any], kind: type[Exception], told: str
) -> None:
    with pytest.raises(kind, match=told):
        retexo_fl.run(**{"out": tmp_path / "run", "clients": 2, "quiet": True, **keys})
    assert list(tmp_path.iterdir()) == []


# ---- callbacks and interruptions ----------------------------------------------------------------


def test_callbacks_see_rounds_stages_and_the_end(tmp_path: Path) -> None:
    class Everything:
        def __init__(self) -> None:
            self.seen: list[object] = []

        def on_round(self, event: retexo_fl.RoundClosed) -> None:
            self.seen.append((event.stage, event.round))

        def on_stage(self, event: retexo_fl.StageClosed) -> None:
            self.seen.append(event.stage)

        def on_end(self, run: retexo_fl.Run) -> None:
            self.seen.append(run.result.test_accuracy)

    watcher, events = Everything(), list[retexo_fl.Event]()
    made = retexo_fl.run(out=tmp_path / "run", callbacks=[watcher, events.append], **SMALL)
    rounds = [(row.stage, row.round) for row in made.history()]
    assert rounds == [(stage, r) for stage in range(2) for r in (1, 2, 3)]
    end = made.result.test_accuracy
    assert watcher.seen == [*rounds[:3], 0, *rounds[3:], 1, end]
    assert len(events) == len(events_of(made.path))


def test_an_interrupted_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    whole = retexo_fl.run(out=tmp_path / "whole", **SMALL)
    graph = load_dataset("digits", data_dir=None)
    for event in (4, 8):
        path = tmp_path / f"stopped-{event}"
        with pytest.raises(Interrupted, match=r"retexo_fl\.Run\.open\('.*'\)\.resume\(\)"):
            retexo_fl.run(out=path, callbacks=[Interrupter(event)], graph=graph, **SMALL)
        run = retexo_fl.Run.open(path)
        assert not run.is_finished
        with pytest.raises(RunDirectoryError, match="has not finished"):
            _ = run.result
        assert len(run.history()) in {2, 3, 4}
        assert run.report().is_file()
        seen: list[object] = []
        assert run.resume(quiet=True, graph=graph, callbacks=[seen.append]) is run
        assert seen
        assert model_bytes(run.path) == model_bytes(whole.path)
        with pytest.raises(RunDirectoryError, match="has finished"):
            run.resume(quiet=True)


def test_what_a_callback_raises_ends_a_run_that_can_be_resumed(tmp_path: Path) -> None:
    def fail(event: object) -> None:
        if isinstance(event, retexo_fl.RoundClosed) and event.round == 2:
            raise ValueError("enough")

    # Also where a plug-in of this file was loaded before.
    load_plugin("loss", f"{__name__}:summed_cross_entropy")
    with pytest.raises(ValueError, match="enough"):
        retexo_fl.run(out=tmp_path / "run", callbacks=[fail], **SMALL)
    run = retexo_fl.Run.open(tmp_path / "run")
    whole = retexo_fl.run(out=tmp_path / "whole", **SMALL)
    assert model_bytes(run.resume(quiet=True).path) == model_bytes(whole.path)


def test_resume_moves_nothing_but_where_it_runs(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        retexo_fl.run(out=tmp_path / "run", callbacks=[Interrupter(5)], **SMALL)
    run = retexo_fl.Run.open(tmp_path / "run")
    with pytest.raises(ConfigurationError, match=r"rounds: cannot be given with resume\(\)"):
        run.resume(rounds=9)  # type: ignore[call-arg]
    assert run.resume(message_timeout_s=60, quiet=True).is_finished


# ---- what a run holds ---------------------------------------------------------------------------


def test_a_run_is_opened_by_its_folder(
    tmp_path: Path, retexo: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    retexo.done("run", *OPTIONS, "--out", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    run = retexo_fl.Run.open("run")
    assert run.path == tmp_path / "run"
    assert run.config.clients == 3
    assert run.result.test_accuracy == result_of(run.path)["test_accuracy"]
    (run.path / "report.html").unlink()
    assert run.report() == run.path / "report.html"
    history = run.history()
    assert history[-1].stage == 1
    assert [row.round for row in history[:2]] == [1, 2]
    assert history.cells()[0]["val_accuracy"] == history[0].val_accuracy
    with pytest.raises(RunDirectoryError, match="holds no run"):
        retexo_fl.Run.open(tmp_path)


def test_rows_become_a_data_frame(tmp_path: Path) -> None:
    run = retexo_fl.run(out=tmp_path / "run", **SMALL)
    try:
        import pandas as pd
    except ImportError:
        with pytest.raises(ConfigurationError, match="pandas: is not installed"):
            run.history().to_pandas()
        return
    frame = run.history().to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert frame["round"].tolist() == [1, 2, 3] * 2
    assert frame["val_accuracy"].tolist() == [row.val_accuracy for row in run.history()]


# ---- plan and partition -------------------------------------------------------------------------


def test_plan_and_partition_are_those_of_the_command(tmp_path: Path, retexo: CommandLine) -> None:
    told = json.loads(retexo.done("plan", "--clients", "4", "--model", "gcn", "--json"))
    found = json.loads(json.dumps(retexo_fl.plan(clients=4, model="gcn")))
    for facts in (told, found):
        del facts["memory"]["available"]
    assert found == told
    command, python = tmp_path / "command", tmp_path / "python"
    retexo.done("partition", "make", "--clients", "4", "--out", command)
    assert retexo_fl.partition(clients=4, out=python) == python
    files = sorted(path.relative_to(command) for path in command.rglob("*") if path.is_file())
    assert len(files) > 40
    for file in files:
        assert (python / file).read_bytes() == (command / file).read_bytes()
    parts = retexo_fl.open_parts(python)
    of_parts = retexo_fl.plan(partitions=parts, model="gcn")
    assert of_parts["plans"] == found["plans"]


# ---- the package --------------------------------------------------------------------------------


def test_import_loads_nothing_that_is_not_asked_for() -> None:
    script = (
        "import sys, retexo_fl\n"
        "heavy = ('torch', 'flwr', 'numpy', 'scipy', 'rich', 'typer', 'retexo_fl.api')\n"
        "print([name for name in heavy if name in sys.modules])\n"
        "retexo_fl.Run, retexo_fl.run, retexo_fl.plan, retexo_fl.Result, retexo_fl.RetexoError\n"
        "print([name for name in ('torch', 'flwr', 'scipy', 'rich') if name in sys.modules])\n"
        "names = retexo_fl.__all__\n"
        "print(sorted(names) == names, {*names} <= {*dir(retexo_fl)})\n"
        "print(all(getattr(retexo_fl, name) is not None for name in names))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=500,
        check=True,
    )
    assert done.stdout.splitlines() == ["[]", "[]", "True True", "True"]
