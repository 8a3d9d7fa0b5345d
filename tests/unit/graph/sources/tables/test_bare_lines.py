"""Lists of edges and labels as SNAP has them, and N-Triples."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from retexo_fl.dates import Moment
from retexo_fl.errors import TableError
from retexo_fl.graph.sources.edge_rules import EdgeColumns, EdgeRules
from retexo_fl.graph.sources.table_graph import read_table_graph
from retexo_fl.graph.sources.tables import read_edge_table
from tests.support.tables import write_table

SNAP = """\
# Directed graph: toy.txt
# Nodes: 3 Edges: 3
# FromNodeId\tToNodeId
10\t20
20\t30

30\t10
"""
TRIPLES = """\
# people
<http://x/ann> <http://v#knows> <http://x/bob> .
<http://x/ann> <http://v#name> "Ann \\" . <no> ."@en .
<http://x/bob> <http://v#knows> _:cid . # a blank node
<http://x/bob> <http://v/cites> <http://x/ann> .
"""


def write(path: Path, text: str) -> Path:
    content = text.encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["toy.txt", "toy.txt.gz", "toy.edges"])
def test_a_list_of_edges_has_no_names_of_columns(tmp_path: Path, name: str) -> None:
    table = read_edge_table(write(tmp_path / name, SNAP))
    assert list(zip(table.left, table.right, strict=True)) == [
        *((b"10", b"20"), (b"20", b"30"), (b"30", b"10"))
    ]
    assert [table.place(row) for row in range(3)] == ["line 4", "line 5", "line 7"]


def test_further_columns_have_the_names_of_the_last_comment_or_numbers(tmp_path: Path) -> None:
    signed = write(tmp_path / "a.txt", "# FromNodeId\tToNodeId\tSign\n1\t2\t-1\n2\t3\t1\n")
    columns = EdgeColumns(weight="Sign")
    assert read_edge_table(signed, rules=EdgeRules(columns=columns)).values.weights is not None
    timed = write(tmp_path / "b.txt", "1 2 100\n2 3 200\n3 1 300\n")
    rules = EdgeRules(before=Moment.of("250"), columns=EdgeColumns(time="2"))
    assert len(read_edge_table(timed, rules=rules).left) == 2


def test_a_list_of_labels_makes_a_graph_of_a_list_of_edges(tmp_path: Path) -> None:
    labels = write(tmp_path / "labels.txt.gz", "10 0\n20 1\n30 0\n")
    graph = read_table_graph(labels, write(tmp_path / "toy.txt", SNAP))
    assert graph.labels.tolist() == [0, 1, 0]
    assert (graph.num_edges, graph.num_features, graph.name) == (3, 0, "labels")


def test_rows_of_other_widths_are_told_together(tmp_path: Path) -> None:
    path = write(tmp_path / "toy.txt", "1 2\n3\n4 5\n6 7 8\n")
    with pytest.raises(TableError) as refused:
        read_edge_table(path)
    assert refused.value.problems == (
        f"{path}: line 2: got 1 field; expected 2, as in the first row",
        f"{path}: line 4: got 3 fields; expected 2, as in the first row",
    )
    with pytest.raises(TableError, match=r"line 2: got 1 field; expected source and target"):
        read_edge_table(write(tmp_path / "one.txt", "# a\n7\n"))
    (tmp_path / "bad.txt.gz").write_bytes(b"no gzip")
    with pytest.raises(TableError, match="cannot be read, or damaged"):
        read_edge_table(tmp_path / "bad.txt.gz")


def test_statements_between_nodes_are_edges(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "people.nt", TRIPLES)
    table = read_edge_table(path)
    assert list(zip(table.left, table.right, strict=True)) == [
        (b"http://x/ann", b"http://x/bob"),
        (b"http://x/bob", b"_:cid"),
        (b"http://x/bob", b"http://x/ann"),
    ]
    assert "column not used: 'predicate' (--predicates uses it)" in caplog.text
    assert "statements about values, which are no edges: 1" in caplog.text
    for chosen in ("cites", "http://v/cites"):
        one = read_edge_table(path, rules=EdgeRules(predicates=(chosen,)))
        assert (one.right.tolist(), one.place(0)) == ([b"http://x/ann"], "line 5")
    assert "edges of other predicates left out: 2" in caplog.text
    with pytest.raises(TableError) as refused:
        read_edge_table(path, rules=EdgeRules(predicates=("knows", "likes")))
    assert str(refused.value) == (
        f"{path}: predicates: 'likes' is in no row; expected some of: 'http://v#knows', "
        "'http://v/cites'"
    )


def test_lines_that_are_no_statements_are_told_together(tmp_path: Path) -> None:
    path = write(tmp_path / "bad.nt", "<a> <b> <c> .\n<a> <b>\n\n<a> b <c> .\n<a> <b> <c>\n")
    with pytest.raises(TableError) as refused:
        read_edge_table(path)
    assert [problem.partition(":")[2] for problem in refused.value.problems] == [
        " line 2: got '<a> <b>'; expected <s> <p> <o> .",
        " line 4: got '<a> b <c> .'; expected <s> <p> <o> .",
        " line 5: got '<a> <b> <c>'; expected <s> <p> <o> .",
    ]


@pytest.mark.parametrize(
    "names", [("subject", "predicate", "object"), ("head", "relation", "tail")]
)
def test_triples_may_be_any_table(tmp_path: Path, names: tuple[str, str, str]) -> None:
    columns = dict(zip(names, (["a", "b", "a"], ["r", "s", "r"], ["b", "c", "c"]), strict=True))
    for fmt in ("csv", "parquet"):
        path = write_table(tmp_path / f"{names[0]}.{fmt}", columns)
        table = read_edge_table(path, rules=EdgeRules(predicates=("r",)))
        assert (table.left.tolist(), table.right.tolist()) == ([b"a", b"a"], [b"b", b"c"])
        assert table.ends == (names[0], names[2])
