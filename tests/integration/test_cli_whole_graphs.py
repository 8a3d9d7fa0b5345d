"""Whole graphs on the command line: tables, functions and attributes, and what is refused."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from retexo_fl.graph import check_partitions, find_partitions
from tests.support.cli import TINY, CommandLine, path_graph, write_graph
from tests.support.runs import model_bytes, result_of
from tests.support.tables import write_table

SITES = np.array(["b", "b", "a", "10", "9", "a", "b", "b", "a", "10", "9", "a"])
TABLES = ("--nodes", "nodes.csv", "--edges", "edges.csv")


@pytest.fixture
def retexo(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    """Run commands where a path of 12 nodes lies as tables, a data set and a module."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_graphs", raising=False)
    arrays = path_graph()
    keys = np.arange(12).astype("S")
    features = {f"x{at}": arrays["x"][:, at] for at in range(3)}
    write_table(Path("nodes.csv"), {"key": keys, "label": arrays["y"], "site": SITES, **features})
    low, high = keys[arrays["edge_index"]]
    write_table(Path("edges.csv"), {"source": low, "target": high})
    write_graph(Path("data"), site=SITES)
    Path("own_graphs.py").write_text(
        "import numpy as np\n"
        "from retexo_fl.graph import Graph\n"
        "def path():\n"
        "    arrays = np.load('data/small.npz')\n"
        "    return Graph.from_edges(arrays['edge_index'], name='path', features=arrays['x'],\n"
        "        labels=arrays['y'], attributes={'site': arrays['site']})\n"
        "def nothing():\n"
        "    return None\n"
    )
    return CommandLine(capfd)


@pytest.mark.usefixtures("retexo")
def test_tables_data_sets_and_functions_train_the_same_model(
    retexo: CommandLine, tmp_path: Path
) -> None:
    sources = {
        "tables": TABLES,
        "data-set": ("--data-dir", "data", "--dataset", "small"),
        "function": ("--dataset", "own_graphs:path"),
    }
    for name, source in sources.items():
        options = ("--partitioner", "attribute:site", "--out", name, *TINY)
        retexo.done("run", *source, *options)
    assert result_of(tmp_path / "tables")["dataset"] == "nodes"
    assert result_of(tmp_path / "function")["dataset"] == "own_graphs:path"
    first, *others = (model_bytes(tmp_path / name) for name in sources)
    assert all(other == first for other in others)


def test_the_number_of_values_decides_how_many_clients_there_are(
    retexo: CommandLine, tmp_path: Path
) -> None:
    cut = (*TABLES, "--partitioner", "attribute:site")
    assert "4 parts with 12 inner nodes" in retexo.done("partition", "make", *cut, "--out", "p")
    report = check_partitions(find_partitions(tmp_path / "p"))
    # In the order of bytes: 10, 9, a, b.
    assert [part.nodes for part in report.parts] == [2, 2, 4, 4]
    facts = json.loads(retexo.done("plan", *cut, "--json"))
    assert len(facts["clients"]) == 4
    retexo.done("partition", "make", *cut, "--clients", "4", "--out", "q")
    told = retexo.refused("run", *cut, "--clients", "3", "--out", "r", *TINY)
    assert re.match("clients: got 3; expected 4, .*'site'.*'nodes'", told)
    assert not Path("r").exists()


def test_a_run_directory_is_named_after_its_graph(retexo: CommandLine) -> None:
    retexo.done("run", *TABLES, "--clients", "2", *TINY)
    retexo.done("run", "--dataset", "own_graphs:path", "--clients", "2", *TINY)
    names = sorted(path.name.rsplit("-", 3)[0] for path in Path("runs").iterdir())
    assert names == ["nodes", "own_graphs-path"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--nodes", "nodes.csv"), "edges: missing; expected .*nodes"),
        (("--edges", "edges.csv"), "nodes: missing; expected .*edges"),
        (
            (*TABLES, "--dataset", "digits"),
            "dataset: .*nodes and edges.*; expected one of",
        ),
        ((*TABLES, "--data-dir", "data"), "data-dir: .*nodes and edges.*; expected"),
        ((*TABLES, "--partitions", "p"), "edges: .*partitions.*; expected"),
        (("--nodes", "no.csv", "--edges", "edges.csv"), r"no\.csv: .*\(No such file"),
        (("--nodes", "edges.csv", "--edges", "edges.csv"), r"edges\.csv: .*'key'.*missing"),
        (("--nodes", "nodes.csv", "--edges", "nodes.csv"), r"nodes\.csv: .*'source'.*missing"),
        ((*TABLES, "--partitioner", "attribute:town"), r"nodes\.csv: .*'town'.*missing"),
        (
            (*TABLES, "--partitioner", "attribute:"),
            "partitioner: got 'attribute:'; expected one of",
        ),
        ((*TABLES, "--split", "published"), "split: .*'nodes'.*no published split"),
        (("--dataset", "own_graphs:nothing"), "dataset 'own_graphs:nothing': .*NoneType; expected"),
        (("--dataset", "own_graphs:other"), "dataset 'own_graphs:other': .*no 'other'"),
        (("--dataset", "no_graphs:path"), "dataset 'no_graphs:path': .*import 'no_graphs'"),
        (("--partitioner", "attribute:site"), "data set 'digits': .*no attribute 'site'"),
    ],
)
def test_what_contradicts_or_is_not_there_is_refused(
    retexo: CommandLine, options: tuple[str, ...], sentence: str
) -> None:
    assert re.match(sentence, retexo.refused("run", *options, "--out", "r", *TINY))
    assert not Path("r").exists()


def test_a_run_is_resumed_from_tables_that_have_moved(
    retexo: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from retexo_fl.federation.rounds.stage import StageTraining

    keys = (*TABLES, "--clients", "2", "--rounds", "3", "--hidden", "8", "--quiet")
    retexo.done("run", *keys, "--out", "whole")
    train = StageTraining.train

    def stop_in_round_two(training: StageTraining, *weights: np.ndarray) -> object:
        if training.round == 2:
            raise KeyboardInterrupt
        return train(training, *weights)

    with monkeypatch.context() as patch:
        patch.setattr(StageTraining, "train", stop_in_round_two)
        assert retexo("run", *keys, "--out", "run").code == 130
    (tmp_path / "elsewhere").mkdir()
    for name in ("nodes.csv", "edges.csv"):
        Path(name).rename(tmp_path / "elsewhere" / name)
    moved = ("--nodes", "elsewhere/nodes.csv", "--edges", "elsewhere/edges.csv")
    retexo.done("run", "--resume", "run", *moved, "--quiet")
    assert model_bytes(Path("run")) == model_bytes(Path("whole"))
