"""What an error advises exists where its reader is, and has the result that it promises."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import networkx as nx
import numpy as np
import pyarrow as pa
import pytest
import typer
from pyarrow import parquet

import retexo_fl
from retexo_fl.api.spelling import in_python
from retexo_fl.cli import app
from retexo_fl.config import key_infos
from retexo_fl.errors import RetexoError
from tests.support.cli import CommandLine

PACKAGE = Path(retexo_fl.__file__).parent
FAST: dict[str, Any] = {"clients": 2, "rounds": 2, "hidden": 4, "quiet": True}
NODES = 40


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the command that words begin with, and what follows it."""
    command: click.Command = typer.main.get_command(app)
    for number, word in enumerate(words):
        if not isinstance(command, click.Group):
            return command, words[number:]
        found = command.get_command(click.Context(command), word)
        assert found is not None, f"retexo {' '.join(words)}: no command {word}"
        command = found
    return command, []


def options_of(command: click.Command) -> set[str]:
    return {name for item in command.params for name in (*item.opts, *item.secondary_opts)}


def all_commands(command: click.Command | None = None) -> Iterator[click.Command]:
    command = command or typer.main.get_command(app)
    yield command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), name)
            assert found is not None
            yield from all_commands(found)


def texts_of(tree: ast.AST) -> Iterator[str]:
    """Yield strings that a program may say, with {} for values; docstrings are not said."""
    parts = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if part is not node
    }
    parts |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in parts:
            continue
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


#: Options of other programs that texts name: Flower's, and the system's.
OF_OTHERS = {"--node-config", "--database", "--federation-config", "--now", "--compat", "--help"}


def test_commands_and_options_that_texts_name_exist() -> None:
    known = {option for command in all_commands() for option in options_of(command)} | OF_OTHERS
    commands = 0
    for path in PACKAGE.rglob("*.py"):
        program = path.read_text(encoding="utf-8")
        if "`retexo " not in program and "--" not in program:
            continue
        for text in texts_of(ast.parse(program)):
            for line in re.findall(r"`retexo ([a-z][^`]*)`", text):
                words = line.split()
                command, _ = command_of([word for word in words if re.fullmatch("[a-z-]+", word)])
                options = {word for word in words if word.startswith("--")}
                assert options <= options_of(command), f"{path}: {text}"
                commands += 1
            if " " in text.strip() and "flower" not in path.name:
                there = set(re.findall(r"(?<![\w/`-])--[a-z](?:[a-z-]*[a-z])?(?![\w-])", text))
                assert there <= known, f"{path}: {text}: {there - known}"
    assert commands > 20


def test_python_reads_keywords_and_calls_in_place_of_options() -> None:
    said = {
        "key-column: 'k' is for a table; expected --nodes beside it": "expected nodes beside it",
        "out: x; choose another --out, or replace them with --overwrite": "overwrite=True",
        "smaller hidden, or --force": "or force=True",
        "give --data-dir DIR": "give data_dir DIR",
        "resume it with `retexo run --resume /tmp/a-b/--c`": "Run.open('/tmp/a-b/--c').resume()",
        "cannot be given with --resume, which": "cannot be given with resume(), which",
        "or `retexo predict --superlink HOST:PORT`": "or `retexo predict --superlink HOST:PORT`",
        "/data/--nodes/x: cannot be read": "/data/--nodes/x",
        "introductions, or --introductions": "or introductions=True",
    }
    for text, expected in said.items():
        assert in_python(text).endswith(expected) or expected in in_python(text), in_python(text)
        assert in_python(in_python(text)) == in_python(text)


def told(call: Callable[..., object], *arguments: object, **keys: object) -> str:
    """Return what a call is refused with; it names no option of the command line."""
    with pytest.raises(RetexoError) as caught:
        call(*arguments, **keys)
    text = str(caught.value)
    assert not re.search(r"(?<![\w/-])--[a-z]", re.sub("`[^`]*`", "", text)), text
    return text


def networkx_graph(kind: type[Any]) -> Any:
    graph = kind()
    for node in range(NODES):
        graph.add_node(node, x=[float(node % 2), 1.0], y=node % 2)
    graph.add_weighted_edges_from((node, (node + 2) % NODES, 1.0) for node in range(NODES))
    return graph


def weights_of(out: Path) -> list[float]:
    """Return the weights of the edges of node 0's row, of one part."""
    (part,) = retexo_fl.open_parts(out)
    assert part.edge_values.weights is not None
    return sorted(np.unique(part.edge_values.weights).tolist())


@pytest.mark.parametrize("kind", [nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph])
def test_networkx_keeps_both_weights_of_a_pair(kind: type[Any], tmp_path: Path) -> None:
    graph = networkx_graph(kind)
    graph.add_edge(2, 0, weight=3.0)
    refused = told(retexo_fl.partition, graph=graph, clients=1, out=tmp_path / "no")
    assert "merge-edges sum, mean or max" in refused
    assert not (tmp_path / "no").exists()
    weights: dict[Any, float] = {"sum": 4.0, "mean": 2.0, "max": 3.0}
    for way, weight in weights.items():
        retexo_fl.partition(graph=graph, clients=1, merge_edges=way, out=tmp_path / way)
        assert weights_of(tmp_path / way) == [1.0, weight]


def test_networkx_graphs_have_the_direction_that_is_advised(tmp_path: Path) -> None:
    directed = networkx_graph(nx.DiGraph)
    assert "edges-are directed" in told(
        retexo_fl.partition, graph=directed, clients=1, out=tmp_path / "no"
    )
    undirected = networkx_graph(nx.Graph)
    how: dict[str, Any] = {"clients": 1, "edges_are": "directed"}
    refused = told(retexo_fl.partition, graph=undirected, out=tmp_path / "no", **how)
    assert "graph.to_directed()" in refused
    # An edge in one direction alone weighs nothing in the other.
    for name, graph, weights in (
        ("one", directed, [0.0, 1.0]),
        ("both", undirected.to_directed(), [1.0]),
    ):
        retexo_fl.partition(graph=graph, out=tmp_path / name, **how)
        assert weights_of(tmp_path / name) == weights


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Return a folder with tables whose nodes have a column that no recipe reads."""
    parquet.write_table(
        pa.table(
            {
                "id": [f"n{node}" for node in range(NODES)],
                "size": [float(node % 3) for node in range(NODES)],
                "seen": [[node] for node in range(NODES)],
                "kind": ["ab"[node % 2] for node in range(NODES)],
            }
        ),
        tmp_path / "nodes.parquet",
    )
    lines = [f"n{node},n{(node + 1) % NODES}" for node in range(NODES)]
    (tmp_path / "edges.csv").write_text("\n".join(["source,target", *lines]) + "\n")
    return tmp_path


def test_a_column_that_a_recipe_cannot_read_is_dropped_as_advised(
    tables: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    nodes, edges = tables / "nodes.parquet", tables / "edges.csv"
    named: dict[str, Any] = {"nodes": nodes, "edges": edges}
    named |= {"key_column": "id", "label_column": "kind"}
    refused = told(retexo_fl.run, **named, features="auto", out=tables / "no", **FAST)
    assert "`retexo features fit --drop NAME`" in refused
    retexo = CommandLine(capfd)
    recipe = tables / "recipe.toml"
    options = ("--key-column", "id", "--label-column", "kind", "--drop", "seen", "--out", recipe)
    retexo.done("features", "fit", nodes, *options)
    run = retexo_fl.run(**named, features=recipe, out=tables / "run", **FAST)
    assert run.result.test_accuracy is not None


def test_keys_of_a_table_ask_for_the_table(tables: Path) -> None:
    refused = told(retexo_fl.plan, key_column="id")
    assert refused.endswith("expected nodes beside it")
    named: dict[str, Any] = {"key_column": "id", "label_column": "kind", "features": "auto"}
    table = parquet.read_table(tables / "nodes.parquet").drop_columns(["seen"])
    parquet.write_table(table, tables / "plain.parquet")
    facts = retexo_fl.plan(**named, nodes=tables / "plain.parquet", edges=tables / "edges.csv")
    assert facts["clients"]


def test_a_run_directory_in_use_is_gone_on_with_or_left(tmp_path: Path) -> None:
    def stop(event: object) -> None:
        if isinstance(event, retexo_fl.RoundClosed) and event.stage == 1:
            raise KeyboardInterrupt

    keys = {**FAST, "dataset": "synthetic:nodes=60,edges=120,classes=2,features=4"}
    out = tmp_path / "run"
    interrupted = told(retexo_fl.run, **keys, callbacks=[stop], out=out)
    unfinished = told(retexo_fl.Run.open(out).model)
    busy = told(retexo_fl.run, **keys, out=out)
    call = f"retexo_fl.Run.open({str(out)!r}).resume()"
    assert all(text.endswith(call) for text in (interrupted, unfinished, busy)), busy
    run = eval(call, {"retexo_fl": retexo_fl})  # noqa: S307 - what the error says to call
    assert run.is_finished
    assert "resume()" not in told(retexo_fl.run, **keys, out=out)
    assert retexo_fl.run(**keys, out=tmp_path / "another").is_finished


def test_predictions_name_what_python_takes(tmp_path: Path) -> None:
    keys = {**FAST, "dataset": "synthetic:nodes=60,edges=120,classes=2,features=4"}
    one = retexo_fl.run(**keys, out=tmp_path / "one")
    other = retexo_fl.run(**keys, seed=1, out=tmp_path / "other")
    missing = told(one.predict)
    assert missing == "source: missing; expected parts or a graph, or nodes and edges"
    parts = retexo_fl.partition(dataset=keys["dataset"], clients=2, out=tmp_path / "parts")
    one.predict(parts, quiet=True)
    refused = told(other.predict, parts, quiet=True)
    assert refused.endswith("choose another out, or replace them with overwrite=True")
    assert other.predict(parts, overwrite=True, quiet=True).files
    assert one.predict(parts, out=tmp_path / "elsewhere", quiet=True).files
    away = told(one.predict, parts, engine="deployment")
    (command,) = re.findall("`retexo ([^`]*)`", away)
    found, _ = command_of(shlex.split(command)[:1])
    assert "--superlink" in options_of(found)


def test_masks_say_what_goes_with_them(tmp_path: Path) -> None:
    keys = {**FAST, "dataset": "synthetic:nodes=60,edges=120,classes=2,features=4"}
    masked = {**keys, "secure_aggregation": "masked"}
    refused = told(retexo_fl.run, **masked, out=tmp_path / "no")
    assert "clients" in refused
    assert retexo_fl.run(**{**masked, "clients": 3}, out=tmp_path / "masked").is_finished
    for key, value in (("aggregator", "median"), ("per_client_metrics", True)):
        three = {**masked, "clients": 3, key: value}
        refused = told(retexo_fl.run, **three, out=tmp_path / "no")
        (advised,) = re.findall(rf"expected {key.replace('_', '-')} (\S+),", refused)
        default = advised == "true" if advised in ("true", "false") else advised
        retexo_fl.plan(**{k: v for k, v in three.items() if k != "quiet"} | {key: default})
    assert "secure-aggregation" in key_infos()
