"""Classes that do not count from 0 keep their numbers as names, from every door to predictions."""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import retexo_fl
from retexo_fl.graph import Graph, from_pyg
from retexo_fl.graph.parts.storage import part_name
from tests.support.cli import TINY, CommandLine, path_graph, write_graph
from tests.support.runs import model_bytes, result_of
from tests.support.tables import write_table

#: What classes are called, in place of the path graph's 0, 1 (and 2, where there are three).
NAMES = {"from one": (1, 2), "years": (2019, 2021), "a gap": (0, 2)}


@pytest.fixture(name="retexo")
def _retexo(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "doors", raising=False)
    return CommandLine(capfd)


def _write_doors(names: tuple[int, ...]) -> dict[str, tuple[str, ...]]:
    """Write the path of 12 nodes in every form, with names for classes; return options for each."""
    arrays = path_graph()
    labels = np.array(names)[arrays["y"]]
    keys = np.arange(12).astype("S")
    low, high = keys[arrays["edge_index"]]
    features = {f"x{at}": arrays["x"][:, at] for at in range(3)}
    for ending in ("csv", "parquet", "npz"):
        write_table(Path(f"nodes.{ending}"), {"key": keys, "label": labels, **features})
        write_table(Path(f"edges.{ending}"), {"source": low, "target": high})
    write_graph(Path("data"), y=labels)
    Path("doors.py").write_text(
        "import networkx as nx, numpy as np, torch\n"
        "from types import SimpleNamespace\n"
        "from retexo_fl.graph import Graph\n"
        "a = np.load('data/small.npz')\n"
        "def pyg():\n"
        "    return SimpleNamespace(**{k: torch.tensor(a[k]) for k in ('edge_index', 'x', 'y')})\n"
        "def networkx():\n"
        "    graph = nx.Graph()\n"
        "    for node in range(len(a['y'])):\n"
        "        graph.add_node(node, x=a['x'][node].tolist(), y=int(a['y'][node]))\n"
        "    graph.add_edges_from(a['edge_index'].T.tolist())\n"
        "    return graph\n"
        "def ours():\n"
        "    return Graph.from_edges(a['edge_index'], name='g', features=a['x'], labels=a['y'])\n"
    )
    tables = {
        kind: ("--nodes", f"nodes.{kind}", "--edges", f"edges.{kind}")
        for kind in ("csv", "parquet", "npz")
    }
    functions = {kind: ("--dataset", f"doors:{kind}") for kind in ("pyg", "networkx", "ours")}
    return {**tables, **functions, "data set": ("--data-dir", "data", "--dataset", "small")}


def _keys(options: tuple[str, ...]) -> dict[str, Any]:
    """Return options of the command line as keywords of Python."""
    pairs = zip(options[::2], options[1::2], strict=True)
    return {name.removeprefix("--").replace("-", "_"): value for name, value in pairs}


def _told(folder: str) -> tuple[set[str], list[str]]:
    """Return which classes were predicted, and the names of the columns."""
    (path,) = sorted(Path(folder).glob("predictions-*.csv"))
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {row["class"] for row in rows}, list(rows[0])


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_every_door_has_as_many_classes_as_there_are_and_their_names(
    retexo: CommandLine, names: tuple[int, ...]
) -> None:
    made = {}
    for kind, options in _write_doors(names).items():
        if kind not in {"csv", "pyg", "data set"}:
            parts = retexo_fl.partition(out=f"parts-{kind}", **_keys(options), clients=2)
            assert (parts / "part-0/recipe.toml").exists()
            continue
        retexo.done("run", *options, "--clients", "2", "--out", kind, *TINY)
        made[kind] = model_bytes(Path(kind))

    assert len(set(map(tuple, made.values()))) == 1
    wanted = {str(name) for name in names}
    for kind in ("csv", "pyg"):
        tables = ("--nodes", "nodes.csv", "--edges", "edges.csv")
        retexo.done("predict", kind, *tables, "--out", f"{kind}-p", "--quiet")
        found, columns = _told(f"{kind}-p")
        assert found <= wanted
        assert columns == ["key", "class", *(f"p_{name}" for name in map(str, names))]
    # One class alone in the new table is still that class.
    labels = np.full(12, names[1])
    keys = np.arange(12).astype("S")
    features = {f"x{at}": path_graph()["x"][:, at] for at in range(3)}
    write_table(Path("later.csv"), {"key": keys, "label": labels, **features})
    later = ("--nodes", "later.csv", "--edges", "edges.csv")
    retexo.done("predict", "csv", *later, "--out", "later", "--quiet")


def test_a_graph_from_python_is_scored_by_the_names_of_the_model(
    retexo: CommandLine,
) -> None:
    _write_doors((1, 2))
    sys.path_importer_cache.clear()
    import doors  # type: ignore[import-not-found]

    run = retexo_fl.run(graph=doors.pyg(), out="run", clients=2, rounds=30, quiet=True)
    found = run.predict(doors.pyg(), out="predicted", quiet=True)
    ours = run.predict(from_pyg(doors.pyg()), out="again", quiet=True)
    assert found.summary["labelled"] == ours.summary["labelled"]
    assert _told("predicted")[0] <= {"1", "2"}
    assert run.model()(doors.pyg()).shape == (12, 2)


def test_clients_that_make_their_parts_agree_on_the_names(retexo: CommandLine) -> None:
    _write_doors((1, 2))
    tables = ("--nodes", "nodes.csv", "--edges", "edges.csv")
    retexo.done("partition", "make", *tables, "--clients", "1", "--out", "cut")
    assert 'class-names = [\n    "1",\n    "2",\n]' in Path("cut/peers.toml").read_text()
    owner = ("--peers", "cut/peers.toml", "--name", "client-0", "--split", "by-key:0.4/0.3/0.3")
    options = (*tables, *owner)
    retexo.done("partition", "local", *options, "--out", "local")
    for name in ("labels.npy", "features.npy", "recipe.toml"):
        cut, local = (Path(place) / part_name(0) / name for place in ("cut", "local"))
        assert cut.read_bytes() == local.read_bytes()
    peers = Path("cut/peers.toml")
    good = peers.read_text()
    for old, new, told in (
        ('"1"', '"one"', "class-names: got .*expected the numbers of all classes"),
        ('"1"', '"3"', "class-names: got .*expected the numbers of all classes"),
        ("classes = 2", "classes = 3", "class-names: got .*expected as many as classes"),
        ('"1",\n    "2"', '"1",\n    "3"', "nodes.csv: line .: label: got '2'; expected a class"),
    ):
        peers.write_text(good.replace(old, new, 1))
        ended = retexo("partition", "local", *options, "--out", "other")
        assert ended.code == 2
        assert re.search(told, ended.err), ended.err
    del_names = good.replace('class-names = [\n    "1",\n    "2",\n]\n', "")
    peers.write_text(del_names)
    ended = retexo("partition", "local", *options, "--out", "other")
    assert "label: got 2; expected 0 to 1, the classes of cut/peers.toml, or class-names" in (
        ended.err
    )


def test_numbers_of_all_clients_together_name_the_classes(retexo: CommandLine) -> None:
    for name, labels in (("a", "1,2,1,2"), ("b", "2,3,3,2")):
        rows = [f"{name}{at},{label},{at}" for at, label in enumerate(labels.split(","))]
        Path(f"{name}.csv").write_text("\n".join(["key,label,age", *rows]) + "\n")
        retexo.done("features", "summarise", f"{name}.csv", "--out", f"{name}.json")
    told = retexo.done("features", "fit", "a.json", "b.json", "--out", "recipe.toml")
    assert "3 classes: 1, 2, 3" in told
    # A regression does not read such labels as classes.
    Path("e.csv").write_text("source,target\na0,a1\na1,a2\na2,a3\n")
    regression = (
        "--task",
        "regression",
        "--features",
        "auto",
        "--clients",
        "1",
        "--split",
        "random:0.4/0.3/0.3",
    )
    retexo.done("run", "--nodes", "a.csv", "--edges", "e.csv", *regression, "--out", "r", *TINY)


def test_metric_and_report_say_which_class_is_which(
    retexo: CommandLine, caplog: pytest.LogCaptureFixture
) -> None:
    _write_doors((1, 2))
    tables = ("--nodes", "nodes.csv", "--edges", "edges.csv")
    retexo.done("run", *tables, "--clients", "2", "--metric", "f1:1", "--out", "r", *TINY)
    assert "metric: f1:1 is of the class '2'; its number is its place, from 0" in caplog.messages
    report = Path("r/report.html").read_text()
    assert re.search(r"is, predicted as</th><th[^>]*>1</th><th[^>]*>2</th>", report)
    told = retexo.refused("run", *tables, "--metric", "f1:3", "--out", "q", *TINY)
    assert told == ("metric: f1:3 is of no class; expected the place of one, from 0 to 1: '1', '2'")


def test_a_metric_of_one_class_takes_its_name(
    retexo: CommandLine, caplog: pytest.LogCaptureFixture
) -> None:
    _write_doors((2019, 2021))
    words = Path("nodes.csv").read_text().replace("2019", "fine").replace("2021", "of fraud: yes")
    Path("words.csv").write_text(words)
    cut = ("--clients", "2", "--edges", "edges.csv", "--nodes")
    named = (*cut, "words.csv", "--features", "auto")
    retexo.done("plan", *cut, "nodes.csv", "--metric", "f1:2021")
    retexo.done("run", *named, *TINY, "--metric", "recall:of fraud: yes", "--out", "name")
    for asked, settled in (("f1:2021", "f1:1"), ("recall:of fraud: yes", "recall:1")):
        assert f"metric: {asked} is {settled}, the place of that class" in caplog.messages
    retexo.done("run", *named, *TINY, "--metric", "recall:1", "--out", "place")
    for what in (model_bytes, lambda run: result_of(run)["metric"]):
        assert what(Path("name")) == what(Path("place"))
    # What a run records is the place, with which it goes on.
    retexo.done("run", "--resume", "name", "--extend", "1", "--quiet")
    retexo.done("partition", "make", *named, "--out", "parts")
    retexo.done("run", "--partitions", "parts", "--metric", "f1:fine", "--out", "cut", *TINY)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ("--features", "auto", "--nodes", "words.csv", "--edges", "edges.csv"),
            "metric: f1:Fraud is of no class; expected one of 'fine', 'fraud', or the place of "
            "one, from 0 to 1",
        ),
        (
            ("--nodes", "nodes.csv", "--edges", "edges.csv"),
            "metric: f1:Fraud is of no class; expected the place of one, from 0 to 1: they have "
            "no names",
        ),
        (
            ("--superlink", "127.0.0.1:1", "--insecure"),
            "metric: f1:Fraud: the server of a deployment does not know class names; expected the "
            "place of one, from 0, such as f1:1",
        ),
        (
            ("--task", "regression"),
            "metric: f1:Fraud does not go with task regression; expected auto, rmse, mae, r2, or "
            "module:attribute",
        ),
    ],
)
def test_a_name_that_no_class_has_is_refused_with_those_that_are_there(
    retexo: CommandLine, options: tuple[str, ...], told: str
) -> None:
    _write_doors((0, 1))
    words = re.sub(r"(?m)^(\d+),0,", r"\1,fine,", Path("nodes.csv").read_text())
    Path("words.csv").write_text(re.sub(r"(?m)^(\d+),1,", r"\1,fraud,", words))
    run = ("run", "--clients", "2", "--metric", "f1:Fraud", "--out", "r", "--hidden", "4")
    assert retexo.refused(*run, *options) == told
    assert not Path("r").exists()


def test_class_weights_take_names(retexo: CommandLine, caplog: pytest.LogCaptureFixture) -> None:
    write_graph(Path("data"), y=np.where(path_graph()["y"], "of fraud: yes", "fine"))
    named = ("--dataset", "small", "--data-dir", "data", "--clients", "2", *TINY)
    retexo.done("run", *named, "--class-weights", "of fraud: yes:6", "--out", "name")
    assert "class-weights: fine 1, of fraud: yes 6" in caplog.messages
    retexo.done("run", *named, "--class-weights", "1,6", "--out", "place")
    keys: dict[str, Any] = {"dataset": "small", "data_dir": "data"}
    keys |= {"clients": 2, "rounds": 2, "hidden": 8}
    weights: dict[str, float] = {"of fraud: yes": 6, "fine": 1.0}
    run = retexo_fl.run(**keys, class_weights=weights, out="python", quiet=True)
    assert model_bytes(Path("name")) == model_bytes(Path("place")) == model_bytes(Path("python"))
    assert run.config.class_weights == "1.0,6"
    with pytest.raises(retexo_fl.RetexoError, match="class-weights: 'spam' is no class; expected"):
        retexo_fl.run(**keys, class_weights={"spam": 6}, out="new")
    # Classes that have no names of their own have their numbers.
    write_graph(Path("data"))
    retexo.done("run", *named, "--class-weights", "1:6", "--out", "number")
    assert retexo_fl.Run.open("number").config.class_weights == "1,6"
    for given, told in (
        (
            "spam:6",
            "class-weights: 'spam' is no class; expected some of 0, 1, each once, or a numb",
        ),
        ("1:6,1:2", "class-weights: '1' is named twice; expected some of 0, 1, each once, or a nu"),
        ("0:0,1:0", "class-weights: all are 0; expected one above 0"),
        (
            "0:-1",
            "class-weights: got '0:-1'; expected none, balanced, a number from 0 for each cla",
        ),
    ):
        assert retexo.refused("run", *named, "--class-weights", given, "--out", "r").startswith(
            told
        )
    link = ("--superlink", "127.0.0.1:1", "--insecure", "--clients", "2", "--out", "r")
    told = retexo.refused("run", *link, "--class-weights", "spam:6")
    assert told.startswith("class-weights: spam:6: the server of a deployment does not know class")


def test_labels_that_count_from_zero_stay_as_they_are() -> None:
    arrays = path_graph()
    graph = Graph.from_edges(
        arrays["edge_index"], name="g", features=arrays["x"], labels=arrays["y"]
    )
    assert graph.recipe is None
