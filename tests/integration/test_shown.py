"""What results show of themselves in an interpreter and in a notebook."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import retexo_fl
from retexo_fl.api.rows import Rows
from retexo_fl.config import make_config
from retexo_fl.graph import Graph, load_dataset

MARKUP = "<script>alert('&')</script>"
VOID = {"br", "img"}


class Page(HTMLParser):
    """Reads the cells of tables; knows that what is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.open += [tag] if tag not in VOID else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def page(shown: Any) -> Page:
    return Page(shown._repr_html_())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> retexo_fl.Run:
    whole = load_dataset("digits", data_dir=None)
    graph = replace(whole, name=MARKUP)
    out = tmp_path_factory.mktemp("runs") / "<b>first"
    return retexo_fl.run(graph=graph, clients=3, hidden=8, rounds=2, out=out, quiet=True)


def test_runs_and_results_say_how_they_ended(run: retexo_fl.Run) -> None:
    result = run.result
    told = (
        f"validation accuracy {result.val_accuracy:.4f}, test accuracy {result.test_accuracy:.4f}"
    )
    assert repr(run).startswith(f"<Run {str(run.path)!r}: {told}, ")
    assert repr(result).startswith(f"<Result of {MARKUP!r}: {told}, ")
    assert len(repr(result)) < 200
    for shown in (run, result):
        found = page(shown)
        assert "script" not in found.tags
        assert f"{result.test_accuracy:.4f}" in found.words
        assert MARKUP in "".join(found.words)
    assert str(run.path) in page(run).words
    assert repr(make_config({"clients": 3})) == "RunConfig(clients=3)"
    namespace = {"RunConfig": retexo_fl.RunConfig}
    assert eval(repr(run.config), namespace) == run.config  # noqa: S307 - our own text


def test_a_run_that_has_not_finished_or_is_damaged_is_shown(
    run: retexo_fl.Run, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_bytes((run.path / "config.toml").read_bytes())
    other = retexo_fl.Run.open(tmp_path)
    assert repr(other) == f"<Run {str(tmp_path)!r}: has not finished>"
    assert "has not finished" in page(other).words
    (tmp_path / "result.json").write_text("{")
    assert "result.json" in repr(other)
    assert any("result.json" in words for words in page(other).words)


def test_another_metric_is_named(tmp_path: Path) -> None:
    run = retexo_fl.run(
        clients=2, hidden=4, rounds=2, metric="macro-f1", out=tmp_path / "run", quiet=True
    )
    metric = run.result.metric
    assert metric is not None
    assert f"test macro-f1 {metric.value:.4f}" in repr(run)
    assert "test accuracy" not in repr(run)


def test_rows_show_their_columns_and_the_first_of_many(run: retexo_fl.Run) -> None:
    history = run.history()
    assert repr(history).startswith(f"<{len(history)} rows of time_s, ")
    many = Rows(range(1, 31), lambda number: {"number": number, "half": number / 2, "is": MARKUP})
    assert repr(many) == "<30 rows of number, half, is>"
    assert repr(Rows((), lambda row: {"x": row})) == "<0 rows of nothing>"
    found = page(many)
    assert "script" not in found.tags
    assert found.words.count(MARKUP) == 20
    assert "10 more of 30 rows" in found.words
    assert {"20", "10"} <= {*found.words}
    assert "21" not in found.words
    absent = Rows((0, 1), lambda row: {"a": None if row else 0.123456789, "b": "w" * 500})
    assert "0.12346" in page(absent).words
    assert max(map(len, page(absent).words)) == 60


def test_plans_parts_and_graphs_are_short(tmp_path: Path) -> None:
    facts = retexo_fl.plan(clients=3)
    assert repr(facts).startswith("<plan: 3 clients, algorithm lazy, profile lean; a dict of algo")
    assert json.loads(json.dumps(facts)) == dict(facts)
    found = page(facts)
    assert str(facts["clients"][2]["boundary_nodes"]) in found.words
    assert str(facts["profiles"]["one-shot"]["messages"]) in found.words
    parts = retexo_fl.partition(clients=3, out=tmp_path / "parts")
    part = retexo_fl.open_parts(parts)[1]
    assert repr(part) == (
        f"<GraphPartition 1 of 3: {part.num_inner} nodes, {part.num_boundary:,} boundary nodes, "
        "64 features, 10 classes>"
    )
    graph = load_dataset("digits", data_dir=None)
    assert repr(graph) == (
        f"<Graph 'digits': 1,797 nodes, {graph.num_edges:,} edges, 64 features, 10 classes>"
    )
    assert isinstance(graph, Graph)


def test_nothing_needs_ipython() -> None:
    # Where it is there, nothing of ours has imported it.
    assert importlib.util.find_spec("retexo_fl.api.shown") is not None
    source = Path(str(retexo_fl.__file__)).parent
    assert not [path for path in source.rglob("*.py") if "IPython" in path.read_text()]


@pytest.mark.usefixtures("forked_runs")
def test_sweeps_and_predictions(run: retexo_fl.Run, tmp_path: Path) -> None:
    rows = retexo_fl.sweep(
        clients=2, hidden=4, rounds=1, algorithm=["lazy", "central"], out=tmp_path / "s", quiet=True
    )
    told = page(rows).words
    assert "failed" in told
    assert "finished" in told
    assert repr(rows[0]).startswith("<SweepRow clients 2, hidden 4, rounds 1, algorithm lazy: acc")
    assert "failed: clients: " in repr(rows[1])
    predictions = run.predict(
        retexo_fl.partition(clients=2, out=tmp_path / "parts"), out=tmp_path / "p", quiet=True
    )
    expected = f"<Predictions of 1,797 nodes: 2 files in {str(tmp_path / 'p')!r}>"
    assert repr(predictions) == expected
