"""Whatever a command reads of tables and does not use, it says in one line; all commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import TINY, CommandLine

TABLES = ("--nodes", "nodes.csv", "--edges", "edges.csv", "--merge-edges", "sum")
EDGES = "edges.csv: columns not used: 'time' (--edges-before uses it), 'kind'"
MERGED = (
    "edges.csv: repetitions merged (sum): 1; which end is the source is not used (edges-are "
    "directed uses it)"
)


@pytest.fixture
def retexo(retexo: CommandLine) -> CommandLine:
    """Run commands beside the tables of a ring of 12 nodes, of which one edge is there twice."""
    uses = ("train", "train", "val", "test")
    nodes = [f"n{at},{at // 6},{uses[at % 4]},{at},{at % 5},{at}\n" for at in range(12)]
    Path("nodes.csv").write_text("key,label,split,age,x0,x1\n" + "".join(nodes))
    edges = [f"n{at},n{(at + 1) % 12},2,{at},{at % 3},cash\n" for at in range(12)]
    edges.append("n1,n0,1,5,5,card\n")
    Path("edges.csv").write_text("source,target,weight,time,e_0,kind\n" + "".join(edges))
    return retexo


def said(retexo: CommandLine, caplog: pytest.LogCaptureFixture, *arguments: str) -> list[str]:
    caplog.clear()
    retexo.done(*arguments)
    return caplog.messages


def test_whole_graphs(retexo: CommandLine, caplog: pytest.LogCaptureFixture) -> None:
    nodes = "nodes.csv: column not used: 'age'"
    split = "nodes.csv: columns not used: 'split' (--split published uses it), 'age'"
    of_tables, drawn = [nodes, EDGES, MERGED], [split, EDGES, MERGED]
    make = ("partition", "make", *TABLES, "--clients", "2")
    shares = ("--split", "random:0.5/0.2/0.3")
    assert said(retexo, caplog, *make, *shares, "--out", "drawn") == drawn
    published = ("--split", "published")
    assert said(retexo, caplog, *make, *published, "--out", "parts") == of_tables
    for model, unused in (("sage-pool", "weights and attributes"), ("gcn", "attributes")):
        run = ("run", *TABLES, "--clients", "2", "--model", model, *TINY)
        of_model = f"model {model}: {unused} of edges not used"
        assert said(retexo, caplog, *run, *shares, "--out", f"{model}-drawn") == [
            *(*drawn, of_model)
        ]
        assert said(retexo, caplog, *run, *published, "--out", model) == [*of_tables, of_model]
        predict = ("predict", model, "--quiet")
        tables = ("--nodes", "nodes.csv", "--edges", "edges.csv", "--out", f"{model}-predicted")
        assert said(retexo, caplog, *predict, *tables) == [*of_tables, of_model]
        parts = ("--partitions", "parts", "--out", f"{model}-of-parts")
        assert said(retexo, caplog, *predict, *parts) == [of_model]
    # What is used is not named.
    reads_all = ("run", *TABLES, "--clients", "2", "--model", "gine", *TINY, *published)
    cut = ("--edges-before", "99", "--edges-are", "directed", "--out", "gine")
    assert said(retexo, caplog, *reads_all, *cut) == [nodes, "edges.csv: column not used: 'kind'"]


def test_parts_that_clients_make(retexo: CommandLine, caplog: pytest.LogCaptureFixture) -> None:
    Path("peers.toml").write_text(
        'partitioning = "p"\nclasses = 2\nfeatures = 2\nedge-features = 1\n'
        'clients = ["here", "there"]\n'
    )
    Path("boundary.csv").write_text(
        "own,foreign,peer,weight,time,e_0,direction,kind\n"
        "n0,m0,there,1,1,1,in,cash\nn0,m0,there,1,1,1,out,cash\n"
    )
    local = ("partition", "local", *TABLES, "--boundary", "boundary.csv", "--peers", "peers.toml")
    assert said(retexo, caplog, *local, "--name", "here", "--out", "parts") == [
        "nodes.csv: column not used: 'age'",
        EDGES,
        EDGES.replace("edges.csv", "boundary.csv"),
        'boundary.csv: column direction not used (edges-are = "directed" in peers.toml uses it)',
        "boundary.csv: repetitions merged (sum): 1",
        MERGED,
    ]
