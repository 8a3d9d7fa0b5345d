"""Parts of a typed graph that owners make themselves: those that are cut from the whole one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.graph import find_partitions, open_partition
from retexo_fl.graph.parts.peers import read_peers
from tests.integration.test_typed_tables import DIRECTED, READ, TABLES, write_tables
from tests.support.cli import CommandLine
from tests.support.commands import ROOT
from tests.support.runs import model_bytes
from tests.support.typed_graphs import BANK, export_typed_part, write_bank

GRAPH = ("--dataset", BANK["dataset"], "--split", BANK["split"])
SHORT = ("--model", "rel-sage", "--rounds", "2", "--hidden", "8")


def assert_same_files(one: Path, other: Path) -> None:
    names = sorted(path.name for path in one.iterdir())
    assert names == sorted(path.name for path in other.iterdir())
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def tables_of(client: int, **how: Any) -> list[str]:
    """Write what one client of ``cut`` has; return the options that name its tables."""
    clients = read_peers(Path("cut/peers.toml")).clients
    part = open_partition(Path(f"cut/part-{client}"))
    return export_typed_part(part, Path(f"of-{client}"), clients=clients, **how)


def make_all(retexo: CommandLine, *more: str, peers: str = "cut/peers.toml", **how: Any) -> None:
    """Let each client make its part in ``local`` from its own tables."""
    for client in range(len(find_partitions(Path("cut")))):
        given = (*tables_of(client, **how), "--peers", peers, "--name", f"client-{client}")
        retexo.done("partition", "local", *given, "--out", "local", *more)


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("cut", [("3", "random"), ("3", "attribute:type"), ("7", "louvain")])
@pytest.mark.each_choice
def test_local_parts_are_the_cut_ones_byte_for_byte(
    retexo: CommandLine, cut: tuple[str, str], directed: bool, told: bool
) -> None:
    edges = ("--edges-are", "directed") if directed else ()
    clients, partitioner = cut
    how = ("--clients", clients, "--partitioner", partitioner, "--out", "cut")
    graph = GRAPH if told else (*write_bank(Path()), *GRAPH[2:])
    retexo.done("partition", "make", *graph, *edges, *how)
    make_all(retexo, told=told)
    for part in find_partitions(Path("cut")):
        assert_same_files(part, Path("local") / part.name)
    assert f"{clients} parts agree" in retexo.done(
        "partition", "check", *find_partitions(Path("local"))
    )


def test_training_of_local_parts_is_that_of_cut_parts(retexo: CommandLine) -> None:
    tables = (*write_bank(Path()), *GRAPH[2:])
    retexo.done("partition", "make", *tables, "--clients", "3", "--out", "cut")
    make_all(retexo)
    for parts in ("cut", "local"):
        retexo.done("run", "--partitions", parts, *SHORT, "--out", f"of-{parts}")
    assert model_bytes(Path("of-local")) == model_bytes(Path("of-cut"))
    retexo.done("run", *tables, "--clients", "3", *SHORT, "--out", "whole")
    assert model_bytes(Path("whole")) == model_bytes(Path("of-cut"))


def test_a_written_agreement_needs_no_whole_graph(retexo: CommandLine) -> None:
    """Owners write the peers file, draw the split by keys, and predict parts without labels."""
    tables = (*write_bank(Path()), *GRAPH[2:])
    retexo.done("partition", "make", *tables, "--clients", "3", "--out", "cut")
    cut = Path("cut/peers.toml").read_text()
    digits = re.search(r'partitioning = "(\w+)"', cut)
    assert digits is not None
    Path("peers.toml").write_text(cut.replace(digits[1], "first trial"))
    assert read_peers(Path("peers.toml")).partitioning != digits[1]
    by_key = ("--split", "by-key:0.4/0.3/0.3", "--seed", "1")
    make_all(retexo, *by_key, peers="peers.toml", with_split=False)
    retexo.done("run", "--partitions", "local", *SHORT, "--out", "run")
    for client in range(3):
        given = (*tables_of(client), "--peers", "peers.toml", "--name", f"client-{client}")
        retexo.done("partition", "local", *given, "--unlabelled", "--out", "new")
    retexo.done("predict", "run", "--partitions", "new")
    found = [path.read_text() for path in Path("new").rglob("predictions*.csv")]
    assert len(found) == 3
    assert "\nc10," in "".join(found)


@pytest.fixture
def tables(retexo: CommandLine) -> list[str]:
    """Return the tables of the first of two clients, each of which has nodes of all types."""
    graph = (*write_bank(Path()), *GRAPH[2:])
    retexo.done("partition", "make", *graph, "--clients", "2", "--out", "cut")
    return tables_of(0)


def _change(name: str, old: str, new: str) -> Callable[[], None]:
    def change() -> None:
        path = Path(name)
        text = path.read_text()
        found = re.search(old, text, re.MULTILINE)
        assert found is not None, text
        path.write_text(text[: found.start()] + new + text[found.end() :])

    return change


def _rename(old: str, new: str) -> Callable[[], object]:
    return lambda: Path(old).rename(new)


def _write(name: str, text: str) -> Callable[[], object]:
    return lambda: Path(name).write_text(text)


def _double() -> None:
    head, row, *_ = Path("of-0/stands.csv").read_text().splitlines()
    Path("of-0/stands.csv").write_text(f"{head}\n{row}\n{row}\n")


def _relation_in_a_column() -> None:
    head, row, *_ = Path("of-0/stands.csv").read_text().splitlines()
    Path("of-0/m.csv").write_text(f"{head},type\n{row},stands\n")


#: What becomes of the tables or of the peers file, the options that change, and what is said.
BAD: dict[str, tuple[Callable[[], object], tuple[str, str], str]] = {
    "type_of_nobody": (
        _rename("of-0/shop.csv", "of-0/branch.csv"),
        ("of-0/shop.csv", "of-0/branch.csv"),
        "of-0/branch.csv: its nodes are of type 'branch'; expected one of customer, device, shop, "
        "the types of cut/peers.toml",
    ),
    "relation_of_nobody": (
        _rename("of-0/owns.csv", "of-0/has.csv"),
        ("of-0/owns.csv", "of-0/has.csv"),
        "of-0/has.csv: its edges are of relation 'has'; expected one of owns, buys, knows, stands, "
        "the relations of cut/peers.toml",
    ),
    "relation_to_peers_of_nobody": (
        _rename("of-0/boundary/owns.csv", "of-0/boundary/has.csv"),
        ("of-0/boundary/owns.csv", "of-0/boundary/has.csv"),
        "of-0/boundary/has.csv: its edges are of relation 'has'; expected one of owns, ",
    ),
    "relation_of_a_row": (
        _write("of-0/owns.csv", "source,target,type\nc0,d0,owns\nc0,d0,q\n"),
        ("", ""),
        "of-0/owns.csv: line 3: type: got 'q'; expected one of owns, buys, knows, stands, the ",
    ),
    "other_width": (
        _change("of-0/device.csv", "x2", "y2"),
        ("", ""),
        "of-0/device.csv: got 2 columns of features, x0 to x1; expected 3",
    ),
    "features_of_a_type_without": (
        _write("of-0/shop.csv", "key,x0\ns0,2\n"),
        ("", ""),
        "of-0/shop.csv: nodes of type shop have 1 feature; expected none, as cut/peers.toml says",
    ),
    "no_features": (
        _write("of-0/device.csv", "key\nd0\n"),
        ("", ""),
        "of-0/device.csv: nodes of type device have 0 features; expected 3, as cut/peers.toml says",
    ),
    "labels_of_two_types": (
        _write("of-0/shop.csv", "key,label\ns0,1\n"),
        ("", ""),
        "of-0/shop.csv: nodes of type shop have labels; expected them of type customer alone, as ",
    ),
    "no_labels": (
        _change("of-0/customer.csv", "label", "class"),
        ("", ""),
        "of-0/customer.csv: column 'label' is missing; the file has ",
    ),
    "label_beyond": (
        _change("of-0/customer.csv", r"^(c\d+),\d,", "c99,7,"),
        ("", ""),
        "of-0/customer.csv: line 2: label: got 7; expected 0 to 2, the classes of cut/peers.toml",
    ),
    "unknown_end": (
        _change("of-0/owns.csv", r"^c\d+,", "z9,"),
        ("", ""),
        "of-0/owns.csv: line 2: source: 'customer/z9' is not a key of ",
    ),
    "end_of_another_type": (
        _change("of-0/owns.csv", r"^c\d+,", "d9,"),
        ("", ""),
        "of-0/owns.csv: line 2: source: 'customer/d9' is not a key of ",
    ),
    "unknown_own": (
        _change("of-0/boundary/owns.csv", r"^[cd]\d+,", "z9,"),
        ("", ""),
        "of-0/boundary/owns.csv: line 2: own: 'z9' is no key of of-0/customer.csv, "
        "of-0/device.csv, of-0/shop.csv that relation owns joins; expected the key of a node, or "
        "unknown-nodes drop",
    ),
    "unknown_peer": (
        _change("of-0/boundary/owns.csv", "client-1", "client-7"),
        ("", ""),
        "of-0/boundary/owns.csv: line 2: peer: 'client-7' is not a client; expected a peer in cut/",
    ),
    "edge_twice": (
        _double,
        ("", ""),
        "of-0/stands.csv: line 3: the edge of 'device/d",
    ),
    "relation_twice": (
        _relation_in_a_column,
        ("of-0/knows.csv", "of-0/m.csv"),
        "of-0/stands.csv: edges of relation device stands shop are in of-0/m.csv, too; expected ",
    ),
    "two_tables_of_one_type": (
        lambda: None,
        ("of-0/shop.csv", "of-0/device.csv"),
        "nodes: of-0/device.csv and of-0/device.csv are both of device; expected files of other ",
    ),
    "no_types_agreed": (
        _write(
            "cut/peers.toml",
            'partitioning = "p"\nclasses = 3\nfeatures = 5\nclients = ["client-0"]\n',
        ),
        ("", ""),
        "nodes: got 3 tables; expected one, since cut/peers.toml has no types of nodes",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_tables_are_refused_by_place(retexo: CommandLine, tables: list[str], name: str) -> None:
    change, (old, new), told = BAD[name]
    change()
    options = [new if one == old else one for one in tables]
    given = (*options, "--peers", "cut/peers.toml", "--name", "client-0", "--out", "new")
    problems = retexo.problems("partition", "local", *given)
    assert problems[0].startswith(told), problems
    assert not Path("new").exists()


def test_a_relation_without_a_table_is_told(
    retexo: CommandLine, tables: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Its owner may have no edges of it, or may have forgotten the table."""
    given = ("--peers", "cut/peers.toml", "--name", "client-0", "--out", "new")
    options = [*zip(tables[::2], tables[1::2], strict=True)]
    less = [word for pair in options if Path(pair[1]).stem != "stands" for word in pair]
    retexo.done("partition", "local", *less, *given)
    told = "cut/peers.toml: no table has edges of device stands shop; the part has none of them"
    assert told in caplog.text
    caplog.clear()
    retexo.done("partition", "local", *tables, *given[:-1], "whole")
    assert "no table has edges" not in caplog.text


def _wider() -> None:
    path = Path("of-0/device.csv")
    head, *rows = path.read_text().splitlines()
    path.write_text("\n".join([f"{head},x3", *(f"{row},1" for row in rows)]) + "\n")


def _rename_relation() -> None:
    for folder in ("of-0", "of-0/boundary"):
        Path(f"{folder}/stands.csv").rename(f"{folder}/lies.csv")


@pytest.mark.parametrize(
    ("old", "new", "change", "told"),
    [
        ("features = 3", "features = 4", _wider, "device (3 columns), shop"),
        ('"stands"', '"lies"', _rename_relation, "device stands shop and customer owns device"),
        ('"shop"', '"branch"', _rename("of-0/shop.csv", "of-0/branch.csv"), "shop (1 column) and"),
    ],
)
def test_parts_of_two_agreements_do_not_belong_together(
    retexo: CommandLine,
    tables: list[str],
    old: str,
    new: str,
    change: Callable[[], object],
    told: str,
) -> None:
    """What one owner's peers file has and another's does not is named, whatever else differs."""
    text = Path("cut/peers.toml").read_text()
    assert old in text, text
    Path("other.toml").write_text(text.replace(old, new))
    change()
    options = [
        f"{one.removesuffix(path.name)}{new.strip(chr(34))}.csv"
        if (path := Path(one)).stem == old.strip('"')
        else one
        for one in tables
    ]
    given = ("--peers", "other.toml", "--name", "client-0", "--out", "parts")
    retexo.done("partition", "local", *options, *given)
    problem = retexo.refused("partition", "check", "parts/part-0", "cut/part-1")
    assert problem.startswith("cut/part-1 and parts/part-0 have "), problem
    assert told in problem
    Path("parts/part-1").symlink_to(Path("cut/part-1").resolve())
    assert told in retexo.refused("run", "--partitions", "parts", *SHORT, "--out", "run")
    assert not Path("run").exists()


def test_owners_share_a_recipe_for_each_type(retexo: CommandLine) -> None:
    """Columns as they are, by the recipe of the whole graph, which the agreement names."""
    write_tables()
    made = ("--split", "random:0.4/0.3/0.3", *READ, *DIRECTED, "--clients", "3", "--out", "cut")
    retexo.done("partition", "make", *TABLES, *made)
    recipe = Path("cut/part-0/recipe.toml")
    assert "recipe = " in Path("cut/peers.toml").read_text()
    given = ("--label-column", "fraud", "--features", str(recipe), "--peers", "cut/peers.toml")
    for client in range(3):
        tables = tables_of(client)
        nodes = [path for path in tables[1::2] if Path(path).stem in {"accounts", "devices"}]
        for path in (*nodes, f"of-{client}/merchants.csv"):
            _as_they_are(Path(path))
        name = ("--name", f"client-{client}", "--out", "local")
        retexo.done("partition", "local", *tables, *given, *name)
        assert_same_files(Path(f"cut/part-{client}"), Path(f"local/part-{client}"))
    for client in range(3):
        for kind in ("accounts", "devices", "merchants"):
            labels = ("--label-column", "fraud") if kind == "accounts" else ("--unlabelled",)
            out = Path(f"of-{client}/{kind}.json")
            retexo.done("features", "summarise", out.with_suffix(".csv"), *labels, "--out", out)
    every = [
        f"of-{at}/{kind}.json" for kind in ("accounts", "devices", "merchants") for at in "021"
    ]
    told = retexo.done("features", "fit", *every, "--by-type", "--out", "recipe.toml")
    assert "merchants 0 features" in told
    assert Path("recipe.toml").read_text() == recipe.read_text()
    log = ("--log", "age,weight", "--out", "no.toml")
    told = retexo.refused("features", "fit", *every, "--by-type", *log)
    assert told.startswith("log: 'weight' is a column of no type; expected one of age, branch, ")
    Path("of-0/devices.json").unlink()
    again = ("--label-column", "system", "--out", "of-0/devices.json")
    retexo.done("features", "summarise", "of-0/devices.csv", *again)
    told = retexo.refused(
        *("features", "fit", "of-0/accounts.json", "of-0/devices.json"),
        *("--by-type", "--min-count", "1", "--out", "no.toml"),
    )
    assert told.startswith(
        "label-column: types accounts and devices have no class in common: accounts no, yes, "
        "devices android, ios; expected classes that both have"
    )
    tables = tables_of(0)
    bare = (*tables, "--peers", "cut/peers.toml", "--name", "client-0", "--out", "new")
    told = retexo.refused("partition", "local", *bare)
    assert told.startswith("features: no recipe was given; expected recipe ")
    text = Path("cut/peers.toml").read_text()
    Path("cut/peers.toml").write_text(text.replace('"devices"', '"phones"'))
    told = retexo.refused("partition", "local", *bare, "--features", recipe)
    assert "is of types accounts, devices, merchants; expected accounts, phones, merchants" in told
    assert not Path("new").exists()


def _as_they_are(table: Path) -> None:
    """Give the nodes of a table the columns that they have in that of the whole graph."""
    head, *rows = table.read_text().splitlines()
    whole_head, *whole = Path(table.name).read_text().splitlines()
    of_key = {row.split(",")[0]: row for row in whole}
    split = head.split(",").index("split") if "split" in head.split(",") else None
    lines = [f"{whole_head},split" if split else whole_head]
    for row in rows:
        cells = row.split(",")
        lines.append(",".join([of_key[cells[0]], *([cells[split]] if split else [])]))
    table.write_text("\n".join(lines) + "\n")


def test_guide_makes_parts_of_its_tables_and_trains(retexo: CommandLine) -> None:
    guide = (ROOT / "docs" / "typed-graphs.md").read_text(encoding="utf-8")
    text = guide.partition("## Parts that owners make themselves")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    tables = [content for kind, content in blocks if kind == "csv"]
    names = re.findall(r"`((?:north|south)/\w+\.csv)`", text)
    assert len(tables) == len(names) == 6
    for name, content in zip(names, tables, strict=True):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(content)
    (peers,) = (content for kind, content in blocks if kind == "toml")
    Path("peers.toml").write_text(peers)
    commands = [line for kind, content in blocks if kind == "sh" for line in content.splitlines()]
    for command in commands:
        retexo.done(*shlex.split(command)[1:])
    part = open_partition(Path("parts/part-1"))
    assert part.boundary_keys.tolist() == [b"customer/ann", b"device/phone"]
    assert Path("runs/own/result.json").is_file()


def test_a_recipe_of_types_is_made_of_tables_at_once(retexo: CommandLine) -> None:
    """Tables with marks of their own, gaps, and a column that one type has."""
    Path("customer.csv").write_text(
        "key;fraud;age;branch;since\n"
        "c1;yes;31,5;north;01.02.2020\nc2;no;;north;13.02.2021\nc3;no;50,25;;\nc4;;44,0;south;\n"
    )
    Path("device.csv").write_text("key|price|branch\nd1|10|north\nd2||south\nd3|30|south\n")
    Path("shop.csv").write_text("key\ns1\ns2\n")
    label = ("--label-column", "fraud")
    for kind in ("customer", "device", "shop"):
        of_type = label if kind == "customer" else ("--unlabelled",)
        out = ("--drop", "branch") if kind != "shop" else ()
        retexo.done("features", "summarise", f"{kind}.csv", *of_type, *out, "--out", f"{kind}.json")
    names = ("customer", "device", "shop")
    fit = ("features", "fit", *(f"{kind}.csv" for kind in names), "--by-type", *label)
    summaries = ("features", "fit", *(f"{kind}.json" for kind in names), "--by-type")
    more = ("--log", "price", "--min-count", "1")
    told = retexo.done(*fit, "--drop", "branch", *more, "--out", "tables.toml")
    assert "shop 0 features" in told
    retexo.done(*summaries, *label, *more, "--out", "summaries.toml")
    assert Path("tables.toml").read_bytes() == Path("summaries.toml").read_bytes()
    assert "branch" not in Path("tables.toml").read_text()
    retexo.done(*fit, "--columns", "price", *more, "--out", "few.toml")
    assert re.findall(r'^column = "(\w+)"', Path("few.toml").read_text(), re.M) == ["price"]
    for command, told in (
        (
            (*fit, "--drop", "height"),
            "drop: 'height' is a column of no type; there is: key, fraud,",
        ),
        ((*fit, "--columns", "height"), "columns: 'height' is a column of no type; there is: key,"),
        ((*fit, "--log", "height"), "log: 'height' is a column of no type; expected one of age, b"),
        ((*fit[:-1], "risk"), "label-column: 'risk' is a column of no type; there is: none"),
        ((*summaries, "--drop", "branch"), "drop: 'branch' is a column of no type; there is: age,"),
        (
            (*summaries, "--label-column", "x"),
            "label-column: 'x' is a column of no type; there is:",
        ),
        (
            (*fit[:4], "shop.json", "--by-type"),
            "customer.csv: is a table, and others are summaries; expected files of one kind with",
        ),
        (
            ("features", "fit", "--by-type", "--superlink", "127.0.0.1:1", "--insecure"),
            "by-type: cannot be given with superlink, by which clients share a summary of one tab",
        ),
    ):
        assert retexo.refused(*command, "--out", "no.toml").startswith(told)
    assert not Path("no.toml").exists()
