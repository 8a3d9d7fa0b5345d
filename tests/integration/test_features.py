"""Feature recipes over clients: one file from three summaries, the parts it makes, predictions."""

from __future__ import annotations

import csv
import random
import re
import shlex
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from retexo_fl.config import make_config
from retexo_fl.errors import PartitionError
from retexo_fl.graph import find_partitions, open_partition
from retexo_fl.graph.recipes import read_recipe
from retexo_fl.simulation.inline_engine import run_inline
from tests.support.cli import CommandLine
from tests.support.commands import ROOT
from tests.support.runs import model_bytes

HEAD = ("account", "fraud", "branch", "age", "balance", "country", "note")
NAMES = ("--key-column", "account", "--label-column", "fraud")
BRANCHES = ("east", "north", "west")
RUN = ("--rounds", "3", "--hidden", "8", "--split", "random:0.4/0.3/0.3")


@dataclass(frozen=True)
class Bank:
    """Accounts of three branches, and transfers between them."""

    accounts: list[dict[str, str]]
    transfers: list[tuple[str, str]]

    def write(self) -> None:
        """Write the whole graph, and each branch's tables."""
        _write_accounts(Path("accounts.csv"), self.accounts)
        _write("transfers.csv", ("source", "target"), self.transfers)
        branch_of = {row["account"]: row["branch"] for row in self.accounts}
        for place, branch in enumerate(BRANCHES):
            own = [row for row in self.accounts if row["branch"] == branch]
            _write_accounts(Path(f"{branch}.csv"), own[::-1])
            inner, boundary = [], []
            for one, two in self.transfers:
                for ours, theirs in ((one, two), (two, one)):
                    if branch_of[ours] != branch:
                        continue
                    if branch_of[theirs] != branch:
                        peer = f"client-{BRANCHES.index(branch_of[theirs])}"
                        boundary.append((ours, theirs, peer))
                    elif ours == one:
                        inner.append((ours, theirs))
            _write(f"{branch}-edges.csv", ("source", "target"), inner)
            _write(f"{branch}-boundary.csv", ("own", "foreign", "peer"), boundary)
            assert place == BRANCHES.index(branch)


def _write(path: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    with Path(path).open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])


def _write_accounts(path: Path, rows: list[dict[str, str]]) -> None:
    _write(str(path), HEAD, [tuple(row[name] for name in HEAD) for row in rows])


@pytest.fixture
def retexo(retexo: CommandLine) -> CommandLine:
    _bank().write()
    return retexo


def _bank(seed: int = 0, nodes: int = 90) -> Bank:
    draws = random.Random(seed)
    accounts = [
        {
            "account": f"a{node}",
            "fraud": draws.choice(("no", "no", "yes", "")),
            "branch": BRANCHES[node % 3],
            "age": draws.choice((f"{draws.gauss(40, 12):.2f}", "", "NA")),
            "balance": f"{draws.lognormvariate(7, 3):.2f}",
            "country": draws.choice(("DE", "AT", "CH", "", f"X{node}")),
            "note": f"note {node}",
        }
        for node in range(nodes)
    ]
    pairs = [(f"a{node}", f"a{(node + step) % nodes}") for node in range(nodes) for step in (1, 7)]
    return Bank(accounts=accounts, transfers=pairs)


def _fit_over_clients(retexo: CommandLine) -> None:
    """Leave ``recipe.toml``, made from what each branch tells."""
    for branch in BRANCHES:
        given = (f"{branch}.csv", *NAMES, "--drop", "branch,note", "--out", f"{branch}.json")
        retexo.done("features", "summarise", *given)
        assert stat.S_IMODE(Path(f"{branch}.json").stat().st_mode) == 0o600
    summaries = [f"{branch}.json" for branch in BRANCHES]
    retexo.done("features", "fit", *summaries, "--log", "balance", "--out", "recipe.toml")


def _make_local(retexo: CommandLine, client: int, *more: str, out: str = "local") -> None:
    branch = BRANCHES[client]
    inner = ("--nodes", f"{branch}.csv", "--edges", f"{branch}-edges.csv")
    boundary = ("--boundary", f"{branch}-boundary.csv", "--name", f"client-{client}")
    retexo.done("partition", "local", *inner, *boundary, *more, "--out", out)


def test_the_pages_commands_make_one_recipe_of_the_table_and_of_two_summaries(
    retexo: CommandLine,
) -> None:
    south = [row for row in _bank().accounts if row["branch"] != "north"]
    _write_accounts(Path("south.csv"), south)
    page = (ROOT / "docs" / "feature-recipes.md").read_text(encoding="utf-8")
    whole, table, summaries = re.findall(r"^```sh\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    recipes = []
    for block in (whole, table, summaries):
        for line in block.splitlines():
            retexo.done(*shlex.split(line)[1:])
        if block is not whole:
            recipes.append(Path("recipe.toml").read_bytes())
            Path("recipe.toml").unlink()
    assert recipes[0] == recipes[1]
    assert find_partitions(Path("parts"))


def test_three_clients_fit_the_recipe_of_the_whole_table_byte_for_byte(retexo: CommandLine) -> None:
    _fit_over_clients(retexo)
    recipe = Path("recipe.toml").read_bytes()
    options = ("--log", "balance", "--drop", "branch,note")
    for order, inputs in enumerate((("accounts.csv",), ("west.csv", "east.csv", "north.csv"))):
        out = f"again-{order}.toml"
        told = retexo.done("features", "fit", *inputs, *NAMES, *options, "--out", out)
        assert Path(out).read_bytes() == recipe
    width = read_recipe(Path("recipe.toml")).num_features
    digest = read_recipe(Path("recipe.toml")).digest
    assert told.endswith(
        "of 90 nodes; 2 classes: no, yes\nin again-1.toml\n"
        f'peers.toml: classes = 2, features = {width}, recipe = "{digest}"\n'
    )
    # No row can be read off a summary: neither a key nor a number is in it.
    text = Path("north.json").read_text()
    for row in _bank().accounts:
        assert row["account"] not in text
        assert row["balance"] not in text


def test_parts_of_clients_with_a_recipe_are_those_of_the_whole_graph(retexo: CommandLine) -> None:
    _fit_over_clients(retexo)
    graph = ("--nodes", "accounts.csv", "--edges", "transfers.csv", "--features", "recipe.toml")
    cut = ("--partitioner", "attribute:branch", "--split", "random:0.4/0.3/0.3")
    retexo.done("partition", "make", *graph, *cut, "--out", "cut")
    assert Path("cut/recipe.toml").read_bytes() == Path("recipe.toml").read_bytes()
    for client, part in enumerate(find_partitions(Path("cut"))):
        # The split is drawn over the whole graph, and is what a client could not know.
        table = Path(f"{BRANCHES[client]}.csv")
        _add_split(table, part)
        _make_local(retexo, client, "--peers", "cut/peers.toml", "--features", "cut/recipe.toml")
        for file in part.iterdir():
            assert (Path("local") / part.name / file.name).read_bytes() == file.read_bytes()
    assert "3 parts agree: 90 nodes" in retexo.done(
        "partition", "check", *find_partitions(Path("local"))
    )


def _add_split(table: Path, part: Path) -> None:
    stored = open_partition(part)
    use = {
        key.decode(): name
        for name, mask in (
            ("train", stored.train_mask),
            ("val", stored.val_mask),
            ("test", stored.test_mask),
        )
        for key in stored.node_keys[mask].tolist()
    }
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row["split"] = use.get(row["account"], "")
    _write(str(table), (*HEAD, "split"), [tuple(row.values()) for row in rows])


def test_one_command_makes_parts_trains_and_predicts_with_class_names(retexo: CommandLine) -> None:
    graph = ("--nodes", "accounts.csv", "--edges", "transfers.csv")
    auto = (*graph, "--features", "auto", *NAMES, "--partitioner", "attribute:branch")
    # By lean training a row is rounded for other clients, and so depends on how nodes are split.
    retexo.done("run", *auto, *RUN, "--profile", "retexo", "--out", "run", "--quiet")
    recipe = Path("run/recipe.toml").read_text()
    # What the graph is cut by is no feature; nor is what differs in every row.
    assert 'column = "branch"' not in recipe
    assert 'column = "note"' not in recipe
    retexo.done("partition", "make", *auto, *RUN[-2:], "--out", "parts")
    assert Path("parts/recipe.toml").read_text() == recipe
    whole = ("--profile", "retexo", "--out", "of-parts", "--quiet")
    retexo.done("run", "--partitions", "parts", *RUN[:-2], *whole)
    assert model_bytes(Path("of-parts")) == model_bytes(Path("run"))

    retexo.done("predict", "run", "--partitions", "parts", "--out", "by-parts", "--quiet")
    # The run's recipe is applied to tables, of labelled nodes or not, with the columns it knows.
    unlabelled = [{**row, "fraud": ""} for row in _bank().accounts]
    _write_accounts(Path("new.csv"), unlabelled)
    tables = ("--nodes", "new.csv", "--edges", "transfers.csv", "--out", "by-tables")
    retexo.done("predict", "run", *tables, "--quiet")
    by_tables = _predictions("by-tables")
    assert by_tables.keys() == {row["account"] for row in unlabelled}
    for key, row in _predictions("by-parts").items():
        assert list(row) == ["key", "class", "p_no", "p_yes"]
        assert row["class"] == max(("no", "yes"), key=lambda name: float(row[f"p_{name}"]))
        assert float(row["p_yes"]) == pytest.approx(float(by_tables[key]["p_yes"]), abs=1e-5)
    assert "made already" in retexo.done("predict", "run", *tables, "--quiet")


def test_tables_are_predicted_with_the_edges_of_the_run(retexo: CommandLine) -> None:
    moved = _bank().transfers
    rows = [(*pair, str(1 + place % 5)) for place, pair in enumerate(moved)]
    rows += [(*moved[0], "7"), ("a3", "a3", "1")]
    _write("weighted.csv", ("source", "target", "weight"), rows)
    graph = ("--nodes", "accounts.csv", "--edges", "weighted.csv")
    edges = ("--edges-are", "directed", "--merge-edges", "sum", "--self-loops", "drop")
    auto = (*graph, *edges, "--features", "auto", *NAMES, "--clients", "1", *RUN[-2:])
    retexo.done("partition", "make", *auto, "--out", "parts")
    run = ("--model", "dir-sage", "--profile", "retexo", *RUN[:-2], "--quiet")
    retexo.done("run", *auto, *run, "--out", "run")
    retexo.done("predict", "run", "--partitions", "parts", "--out", "by-parts", "--quiet")
    expected = Path("by-parts/predictions-0.csv").read_bytes()
    retexo.done("predict", "run", *graph, "--out", "by-tables", "--quiet")
    assert Path("by-tables/predictions-0.csv").read_bytes() == expected
    # A run on parts does not know how their tables were read.
    retexo.done("run", "--partitions", "parts", *run, "--out", "of-parts")
    told = retexo("predict", "of-parts", *graph, "--out", "new").err
    assert "a3" in told
    assert not Path("new").exists()
    retexo.done("predict", "of-parts", *graph, *edges, "--out", "new", "--quiet")
    assert Path("new/predictions-0.csv").read_bytes() == expected
    # Other edges are other predictions.
    other = (*edges[:3], "max", *edges[4:], "--overwrite", "--quiet")
    retexo.done("predict", "run", *graph, *other, "--out", "new")
    assert Path("new/predictions-0.csv").read_bytes() != expected


def _predictions(folder: str) -> dict[str, dict[str, str]]:
    rows: dict[str, dict[str, str]] = {}
    for path in Path(folder).glob("predictions-*.csv"):
        with path.open(newline="") as file:
            rows |= {row["key"]: row for row in csv.DictReader(file)}
    return rows


@pytest.mark.parametrize("fmt", ["parquet", "npz"])
def test_other_forms_of_predictions_have_the_names_of_classes(
    retexo: CommandLine, fmt: str
) -> None:
    graph = ("--nodes", "accounts.csv", "--edges", "transfers.csv", "--features", "auto", *NAMES)
    retexo.done("run", *graph, *RUN, "--clients", "1", "--out", "run", "--quiet")
    tables = ("--nodes", "accounts.csv", "--edges", "transfers.csv", "--out", "out")
    retexo.done("predict", "run", *tables, "--format", fmt, "--quiet")
    path = Path(f"out/predictions-0.{fmt}")
    if fmt == "npz":
        found = np.load(path)
        assert found["class_name"].tolist() == ["no", "yes"]
        assert set(found["class"].tolist()) <= {0, 1}
    else:
        from pyarrow import parquet

        columns = parquet.read_table(path).to_pydict()
        assert set(columns) == {"key", "class", "p_no", "p_yes"}
        assert set(columns["class"]) <= {"no", "yes"}


def test_parts_of_other_recipes_are_refused_by_name(retexo: CommandLine) -> None:
    _fit_over_clients(retexo)
    summaries = [f"{branch}.json" for branch in BRANCHES]
    # Another recipe with as many features: nothing but its digest tells.
    retexo.done("features", "fit", *summaries, "--out", "other.toml")
    digests = [_digest(name) for name in ("recipe.toml", "other.toml")]
    assert digests[0] != digests[1]
    graph = ("--nodes", "accounts.csv", "--edges", "transfers.csv")
    cut = ("--partitioner", "attribute:branch", "--split", "random:0.4/0.3/0.3")
    for name in ("recipe", "other"):
        given = (*graph, "--features", f"{name}.toml", *cut)
        retexo.done("partition", "make", *given, "--out", f"of-{name}")
    wrong = ("--features", "recipe.toml", "--key-column", "id", "--out", "new")
    told = retexo.refused("partition", "make", *graph, *cut, *wrong)
    assert told.startswith("key-column: got 'id'; expected 'account', as in the recipe ")
    _forge_partitioning("of-recipe", "of-other")
    mixed = [Path("of-recipe/part-0"), Path("of-other/part-1"), Path("of-recipe/part-2")]
    told = retexo.refused("partition", "check", *mixed)
    assert told == (
        f"of-other/part-1 is of recipe {digests[1]}, of-recipe/part-0 of recipe {digests[0]}; "
        "expected parts of one feature recipe"
    )
    parts = [open_partition(path) for path in mixed]
    config = make_config({"clients": 3, "rounds": 1, "out": str(Path("run").absolute())})
    with pytest.raises(PartitionError, match=f"recipe differs .*{digests[1]}"):
        run_inline(config, parts)

    local = ("--peers", "of-recipe/peers.toml", "--split", "by-key:0.4/0.3/0.3")
    for features, found in (("other.toml", f"recipe {digests[1]}"), ("", "no recipe")):
        more = ("--features", features) if features else NAMES
        table = ("--nodes", "north.csv", "--name", "client-1")
        told = retexo.refused("partition", "local", *table, *local, *more, "--out", "new")
        assert told == (
            f"features: {found} was given; expected recipe {digests[0]}, as in of-recipe/peers.toml"
        )
    told = retexo.refused(
        "partition", "local", *table, *local, "--features", "auto", "--out", "new"
    )
    assert told.startswith("features: auto would make another recipe at each client; expected ")
    assert not Path("new").exists()


def _digest(recipe: str) -> str:
    line = next(text for text in Path(recipe).read_text().splitlines() if "digest" in text)
    return line.split('"')[1][:16]


def _forge_partitioning(one: str, other: str) -> None:
    """Give the parts of ``other`` the partitioning of ``one``, as a common name would."""
    names = [open_partition(Path(folder) / "part-0").partitioning for folder in (one, other)]
    for manifest in Path(other).glob("part-*/manifest.json"):
        manifest.write_text(manifest.read_text().replace(names[1], names[0]))


def test_a_part_whose_recipe_was_changed_is_refused(retexo: CommandLine) -> None:
    graph = ("--nodes", "accounts.csv", "--edges", "transfers.csv", "--features", "auto", *NAMES)
    retexo.done("partition", "make", *graph, "--clients", "2", "--out", "parts")
    path = Path("parts/part-1/recipe.toml")
    good = path.read_text()
    lines = [line for line in good.splitlines() if not line.startswith("digest")]
    path.write_text("\n".join(lines).replace("indicator = true", "indicator = false", 1))
    told = retexo.refused("partition", "check", "parts/part-0", "parts/part-1")
    assert told.startswith("parts/part-1/recipe.toml: is recipe ")
    path.unlink()
    told = retexo.refused("partition", "check", "parts/part-0", "parts/part-1")
    assert told.startswith("parts/part-1/recipe.toml: cannot be read (No such file")


def test_models_are_used_with_their_own_recipe_alone(retexo: CommandLine) -> None:
    _fit_over_clients(retexo)
    summaries = [f"{branch}.json" for branch in BRANCHES]
    retexo.done("features", "fit", *summaries, "--out", "other.toml")
    graph = ("--nodes", "accounts.csv", "--edges", "transfers.csv")
    run = (*graph, "--features", "recipe.toml", *RUN, "--clients", "2", "--out", "run", "--quiet")
    retexo.done("run", *run)
    told = retexo("predict", "run", *graph, "--features", "other.toml", "--out", "new").err
    assert f"the parts are of recipe {_digest('other.toml')}; expected recipe " in told
    Path("run/recipe.toml").unlink()
    told = retexo.refused("predict", "run", *graph, "--out", "new")
    assert told.startswith("features: missing; expected --features and the file of recipe ")
    retexo.done("predict", "run", *graph, "--features", "recipe.toml", "--out", "new", "--quiet")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("fit", "none.csv"), "none.csv: cannot be read"),
        (("fit", "accounts.csv"), "accounts.csv: columns 'key', 'label' are missing; the file"),
        (("fit", "accounts.csv", "accounts.csv", *NAMES), "accounts.csv: was given twice; "),
        (("fit", "accounts.csv", *NAMES, "--missing", "zero"), "missing: got 'zero'; expected m"),
        (("fit", "accounts.csv", *NAMES, "--missing", "constant:inf"), "missing: got 'constant"),
        (("fit", "accounts.csv", *NAMES, "--log", "branch"), "log: 'branch' is a column of text"),
        (("fit", "north.json", "--drop", "size"), "drop: 'size' is no column of north.json; "),
        (("fit", "north.json", "--categorical", "age"), "categorical: cannot be given with north"),
        (("fit", "north.json", "--key-column", "id"), "key-column: got 'id'; expected 'account'"),
        (("summarise", "accounts.csv", *NAMES, "--drop", "size"), "accounts.csv: column 'size' is"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    retexo: CommandLine, arguments: tuple[str, ...], expected: str
) -> None:
    retexo.done("features", "summarise", "north.csv", *NAMES, "--out", "north.json")
    told = retexo.refused("features", *arguments, "--out", "new")
    assert told.startswith(expected)
    assert not Path("new").exists()


def test_recipes_need_tables(retexo: CommandLine) -> None:
    told = retexo.refused("run", "--features", "auto", "--out", "new")
    assert told == "features: 'auto' is for a table of nodes; expected --nodes beside it"
    told = retexo.refused("partition", "make", "--key-column", "id", "--out", "new")
    assert told.startswith("key-column: 'id' is for a table of nodes; ")
    graph = ("--nodes", "accounts.csv", "--edges", "transfers.csv", *NAMES)
    problems = retexo.problems("partition", "make", *graph, "--clients", "2", "--out", "new")
    assert problems == [
        "accounts.csv: no column of features; expected x0, x1, ... or one column x, or features "
        "auto, which makes them of the other columns, or features none"
    ]


def test_text_labels_without_a_recipe_say_what_would_read_them(retexo: CommandLine) -> None:
    _write("n.csv", ("key", "label", "x0"), [("a", "no", "1"), ("b", "yes", "2"), ("c", "", "3")])
    _write("e.csv", ("source", "target"), [("a", "b")])
    given = ("--nodes", "n.csv", "--edges", "e.csv", "--clients", "2", "--out", "new")
    problems = retexo.problems("partition", "make", *given)
    assert [problem.partition("; expected")[0] for problem in problems] == [
        "n.csv: line 2: label: got 'no'",
        "n.csv: line 3: label: got 'yes'",
    ]
    needs = "(text needs --features auto, or a recipe)"
    assert all(problem.endswith(needs) for problem in problems)


def test_many_text_labels_are_one_line_and_exit_code_2(retexo: CommandLine) -> None:
    nodes = [(f"n{at}", "cat" if at % 2 else "dog", f"{at}.5") for at in range(40)]
    nodes[9] = ("n9", "1.5", "oops")
    _write("n.csv", ("key", "label", "x0"), nodes)
    _write("e.csv", ("source", "target"), [("n0", "n1")])
    given = ("--nodes", "n.csv", "--edges", "e.csv", "--clients", "2", "--out", "new")
    needs = (
        "expected a class: a whole number from 0, or nothing for an unlabelled node (text needs "
        "--features auto, or a recipe)"
    )
    assert retexo.problems("partition", "make", *given) == [
        "n.csv: label: text in 39 rows (line 2: 'dog', line 3: 'cat', line 4: 'dog', ...); "
        f"{needs}",
        f"n.csv: line 11: label: got '1.5'; {needs}",
        "n.csv: line 11: x0: got 'oops'; expected a finite number",
    ]
