"""Several tables of nodes with columns as a bank has them: recipes, cuts, months, predictions."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

import retexo_fl
from retexo_fl.graph import open_partition
from retexo_fl.graph.recipes import read_recipe
from retexo_fl.report.read import read_run
from tests.support.cli import CommandLine
from tests.support.runs import ledger_of

ACCOUNTS, DEVICES, MERCHANTS = 60, 25, 12
TABLES = (
    *("--nodes", "accounts.csv", "--nodes", "devices.csv", "--nodes", "merchants.csv"),
    *("--edges", "transfers.csv", "--edges", "uses.csv", "--edges", "pays.csv"),
)
READ = ("--features", "auto", "--label-column", "fraud", "--merge-edges", "sum")
DIRECTED = ("--edges-are", "directed")
HOW = ("--model", "rel-sage", "--split", "random:0.4/0.3/0.3", "--hidden", "4", "--rounds", "2")


def _write(name: str, head: str, rows: list[str]) -> None:
    Path(f"{name}.csv").write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")


def write_tables() -> None:
    """Write accounts with gaps and words, devices with words, and merchants without features."""
    rng = random.Random(3)
    sites = ("east", "west")
    _write(
        "accounts",
        "key,branch,age,segment,fraud",
        [
            f"a{at},{sites[at % 2]},{rng.choice(('', 30, 41, 52))},{rng.choice(('home', 'firm'))},"
            f"{'yes' if at % 4 == 0 else 'no'}"
            for at in range(ACCOUNTS)
        ],
    )
    systems = ("ios", "android")
    _write(
        "devices",
        "key,branch,system,days",
        [
            f"d{at},{sites[at // 3 % 2]},{systems[at % 2]},{rng.randint(1, 99)}"
            for at in range(DEVICES)
        ],
    )
    # A name in every row is no feature.
    rows = [f"m{at},{sites[at % 2]},shop {at}" for at in range(MERCHANTS)]
    _write("merchants", "key,branch,name", rows)

    def edges(name: str, target: str, count: int, others: int) -> None:
        days = sorted(rng.randrange(90) for _ in range(count))
        _write(
            name,
            "source,target,day,weight",
            [
                f"a{rng.randrange(ACCOUNTS // 2)},{target}"
                f"{rng.randrange(others // 2, others)},"
                f"{date(2026, 1, 1) + timedelta(days=day)},{rng.uniform(1, 9):.2f}"
                for day in days
            ],
        )

    edges("transfers", "a", 150, ACCOUNTS)
    edges("uses", "d", 90, DEVICES)
    edges("pays", "m", 90, MERCHANTS)


@pytest.fixture
def retexo(retexo: CommandLine) -> CommandLine:
    write_tables()
    return retexo


def test_each_type_has_a_recipe_of_its_own(
    retexo: CommandLine, caplog: pytest.LogCaptureFixture
) -> None:
    run = ("run", *TABLES, *READ, *DIRECTED, *HOW, "--partitioner", "attribute:branch")
    retexo.done(*run, "--out", "run")
    recipe = read_recipe(Path("run/recipe.toml"))
    kinds = dict(recipe.types)
    assert list(kinds) == ["accounts", "devices", "merchants"]
    assert recipe.classes == ("no", "yes")
    assert kinds["accounts"].columns == ("age", "segment")
    assert kinds["accounts"].label_column == "fraud"
    assert kinds["devices"].columns == ("days", "system")
    assert (kinds["devices"].label_column, kinds["merchants"].columns) == ("", ())
    # A number, whether it is missing, two texts and others; a number and three; what it is.
    assert [kind.num_features for kind in kinds.values()] == [5, 4, 0]
    assert recipe.num_features == 10
    assert "features: merchants: name: " in caplog.text
    counts = "types: accounts 60, devices 25, merchants 12; relations: transfers (accounts to "
    assert counts in caplog.text
    result = json.loads(Path("run/result.json").read_text())
    assert result["clients"] == 2
    assert [one["weights"] for one in result["types"]] == ["trained", "trained", "trained"]
    assert [one["messages"] for one in result["relations"]] == [
        *("both ways, told apart", "both ways", "both ways")
    ]
    assert read_run(Path("run")).result is not None
    assert "stayed as drawn" not in Path("run/report.html").read_text()
    retexo.done(*run, "--unlabelled-types", "drawn", "--out", "drawn")
    page = Path("drawn/report.html").read_text()
    assert "Weights that devices, merchants have of their own stayed as drawn" in page
    retexo.done(*run, "--algorithm", "standard", "--out", "all")
    result = json.loads(Path("all/result.json").read_text())
    assert {one["weights"] for one in result["types"]} == {"trained"}
    assert "stayed as drawn" not in Path("all/report.html").read_text()


def test_numbers_of_features_are_standardised_by_type(retexo: CommandLine) -> None:
    cut = (*HOW[2:4], "--partitioner", "attribute:branch")
    retexo.done("partition", "make", *TABLES, *READ, *DIRECTED, *cut, "--out", "parts")
    retexo.done("partition", "check", *sorted(Path("parts").glob("part-*")))
    parts = [open_partition(path) for path in sorted(Path("parts").glob("part-*"))]
    relations = parts[0].relations
    assert relations is not None
    assert relations.widths == (5, 4, 1)
    for kind in (0, 1):
        first = relations.columns(kind).start
        values = np.concatenate(
            [
                csr_array(part.features).toarray()[relations.kinds(part.node_keys) == kind, first]
                for part in parts
            ]
        )
        assert abs(values.mean()) < 1e-6
        assert values.std() == pytest.approx(1, abs=0.2)
    assert read_recipe(Path("parts/recipe.toml")).digest == parts[0].recipe_digest
    retexo.done("run", "--partitions", "parts", *HOW[:2], *HOW[4:], "--out", "run")
    retexo.done("predict", "run", "--partitions", "parts")


@pytest.mark.parametrize("edges_are", [(), DIRECTED])
def test_edges_of_each_relation_are_counted_once(
    retexo: CommandLine, caplog: pytest.LogCaptureFixture, edges_are: tuple[str, ...]
) -> None:
    # Money goes back, too.
    rows = _rows("transfers.csv")
    back = [{**row, "source": row["target"], "target": row["source"]} for row in rows[:20]]
    _table(Path("transfers.csv"), rows + back)
    retexo.done("run", *TABLES, *READ, *edges_are, *HOW, "--clients", "3", "--out", "run")
    counts = []
    for name, target in (("transfers", "accounts"), ("uses", "devices"), ("pays", "merchants")):
        pairs = [(row["source"], row["target"]) for row in _rows(f"{name}.csv")]
        there = {*pairs} if edges_are else {frozenset(pair) for pair in pairs}
        counts.append(f"{name} (accounts to {target}) {len(there)}")
    assert f"relations: {', '.join(counts)}" in caplog.text


def test_parts_are_made_by_the_file_of_a_run(retexo: CommandLine, tmp_path: Path) -> None:
    names = [name.removesuffix(".csv") for name in TABLES[1::2]]
    tables = [[f"{name}.csv" for name in some] for some in (names[:3], names[3:])]
    Path("bank.toml").write_text(
        f"nodes = {tables[0]}\nedges = {tables[1]}\nfeatures = 'auto'\nlabel-column = 'fraud'\n"
        "merge-edges = 'sum'\nedges-are = 'directed'\nmodel = 'rel-sage'\nrounds = 2\n"
    )
    cut = ("--split", "random:0.4/0.3/0.3", "--clients", "2")
    retexo.done("partition", "make", "--config", "bank.toml", *cut, "--out", "file")
    retexo.done("partition", "make", *TABLES, *READ, *DIRECTED, *cut, "--out", "options")
    retexo_fl.partition(
        config="bank.toml", split="random:0.4/0.3/0.3", clients=2, out=tmp_path / "python"
    )
    for name in ("peers.toml", "part-1/manifest.json", "part-1/features_data.npy"):
        found = {Path(out, name).read_bytes() for out in ("file", "options", "python")}
        assert len(found) == 1, name
    Path("parts.toml").write_text("partitions = 'file'\n")
    told = retexo.refused("partition", "make", "--config", "parts.toml", "--out", "again")
    assert told == "partitions: are cut already; expected a graph"


def _rows(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def _table(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def write_owners(sites: Sequence[str]) -> None:
    """Write what each branch has of the tables, and its edges to the others, to a folder."""
    kinds, relations = ("accounts", "devices", "merchants"), ("transfers", "uses", "pays")
    nodes = {kind: _rows(f"{kind}.csv") for kind in kinds}
    site_of = {row["key"]: row["branch"] for rows in nodes.values() for row in rows}
    for at, site in enumerate(sites):
        folder = Path(f"of-{at}")
        folder.mkdir()
        for kind, rows in nodes.items():
            _table(folder / f"{kind}.csv", [row for row in rows if row["branch"] == site])
        for name in relations:
            inner, outer = [], []
            for row in _rows(f"{name}.csv"):
                ends = row["source"], row["target"]
                here = [site_of[key] == site for key in ends]
                if all(here):
                    inner.append(row)
                elif any(here):
                    own, foreign = ends if here[0] else ends[::-1]
                    peer = f"client-{sites.index(site_of[foreign])}"
                    way = {"direction": "out" if here[0] else "in"} if name == "transfers" else {}
                    told = {"own": own, "foreign": foreign, "peer": peer, **way}
                    outer.append({**told, "weight": row["weight"]})
            _table(folder / f"{name}.csv", inner)
            (folder / "boundary").mkdir(exist_ok=True)
            _table(folder / "boundary" / f"{name}.csv", outer)


def test_owners_make_their_parts_by_the_recipe_of_all_types(retexo: CommandLine) -> None:
    uses = ("train", "val", "test", "")
    rows = [{**row, "split": uses[at % 4]} for at, row in enumerate(_rows("accounts.csv"))]
    _table(Path("accounts.csv"), rows)
    by_branch = ("--partitioner", "attribute:branch", "--out", "cut")
    retexo.done("partition", "make", *TABLES, *READ, *DIRECTED, *by_branch)
    write_owners(("east", "west"))
    agreed = ("--merge-edges", "sum", "--features", "cut/recipe.toml", "--peers", "cut/peers.toml")

    def own(client: int) -> tuple[str, ...]:
        kinds = [
            *((f"of-{client}/{name}", "--nodes") for name in TABLES[1:6:2]),
            *((f"of-{client}/{name}", "--edges") for name in TABLES[7::2]),
            *((f"of-{client}/boundary/{name}", "--boundary") for name in TABLES[7::2]),
        ]
        return tuple(part for path, option in kinds for part in (option, path))

    for client in (0, 1):
        name = ("--name", f"client-{client}", "--out", "local")
        retexo.done("partition", "local", *own(client), *agreed, *name)
        cut, local = (Path(folder, f"part-{client}") for folder in ("cut", "local"))
        for path in cut.iterdir():
            assert path.read_bytes() == (local / path.name).read_bytes(), path.name
    retexo.done("run", "--partitions", "local", *HOW[:2], *HOW[4:], "--out", "run")
    name = ("--name", "client-0", "--out", "other")
    text = Path("cut/recipe.toml").read_text()
    Path("shops.toml").write_text(text.replace("[types.merchants]", "[types.shops]"))
    for line in ("digest", "recipe"):
        for file in ("shops.toml", "cut/peers.toml"):
            kept = [one for one in Path(file).read_text().splitlines() if not one.startswith(line)]
            Path(file).write_text("\n".join(kept))
    other = [*agreed[:3], "shops.toml", *agreed[4:]]
    told = retexo.refused("partition", "local", *own(0), *other, *name)
    assert "is of types accounts, devices, shops; expected accounts, devices, merchants" in told
    told = retexo.refused("partition", "local", *own(0), *agreed[:2], *agreed[4:], *name)
    assert "other" not in {path.name for path in Path().iterdir()}, told


def test_predictions_are_of_the_type_with_labels_by_the_keys_of_its_table(
    retexo: CommandLine,
) -> None:
    run = ("run", *TABLES, *READ, *DIRECTED, *HOW)
    retexo.done(*run, "--clients", "3", "--out", "run")
    # New tables, without labels: what the recipe does not know counts as other.
    for name in ("accounts", "devices"):
        text = Path(f"{name}.csv").read_text().replace("firm", "club").replace(",yes", ",")
        Path(f"{name}.csv").write_text(text)
    told = retexo.done("predict", "run", *TABLES, "--out", "predicted")
    assert "60 nodes of 1 client" in told
    with Path("predicted/predictions-0.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sorted(row["key"] for row in rows) == sorted(f"a{at}" for at in range(ACCOUNTS))
    assert list(rows[0]) == ["key", "class", "p_no", "p_yes"]
    # A client for each type: two have nothing to predict.
    write_tables()
    retexo.done(*run, "--partitioner", "attribute:type", "--out", "types")
    retexo.done(
        *("partition", "make", *TABLES, *READ, *DIRECTED, "--partitioner", "attribute:type"),
        *("--split", "random:0.4/0.3/0.3", "--out", "by-type"),
    )
    told = retexo.done("predict", "types", "--partitions", "by-type")
    assert "60 nodes of 3 clients" in told
    lines = [len(path.read_text().splitlines()) for path in sorted(Path("by-type").glob("*.csv"))]
    assert lines == [61, 1, 1]


def test_masked_predictions_count_those_of_the_type_alone(retexo: CommandLine) -> None:
    run = ("run", *TABLES, *READ, *DIRECTED, *HOW, "--clients", "3", "--out", "run")
    retexo.done(*run, "--secure-aggregation", "masked")
    retexo.done(
        *("partition", "make", *TABLES, *READ, *DIRECTED, *HOW[2:4], "--clients", "3"),
        *("--out", "parts"),
    )
    told = retexo.done("predict", "run", "--partitions", "parts")
    assert "60 nodes of 3 clients" in told


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (
            (*TABLES[2:4], *TABLES[:2], *TABLES[4:]),
            "is of types accounts, devices, merchants; expected one of types devices, accounts, ",
        ),
        (
            ("--nodes", "accounts.csv", "--edges", "transfers.csv"),
            "is of types accounts, devices, merchants; expected their tables of nodes, or the ",
        ),
    ],
)
def test_a_recipe_of_other_tables_is_refused(
    retexo: CommandLine, keys: tuple[str, ...], told: str
) -> None:
    retexo.done("run", *TABLES, *READ, *DIRECTED, *HOW, "--clients", "2", "--out", "run")
    again = ("--features", "run/recipe.toml", *READ[2:], *DIRECTED, *HOW)
    assert told in retexo.refused("run", *keys, *again, "--out", "again")
    assert not Path("again").exists()
    retexo.done("run", *TABLES, *again, "--clients", "2", "--out", "again")
    assert ledger_of(Path("again")).sum().raw == ledger_of(Path("run")).sum().raw


def test_what_several_tables_do_not_have_is_refused(retexo: CommandLine) -> None:
    run = ("run", *TABLES, *READ[2:], *DIRECTED, *HOW, "--out", "run")
    Path("merchants.csv").write_text(Path("merchants.csv").read_text().replace("branch", "site"))
    by_branch = (*run, "--features", "auto", "--partitioner", "attribute:branch")
    assert "merchants.csv: column 'branch' is missing" in retexo.refused(*by_branch)


def test_types_that_nobody_reads_are_told_where_cells_are_empty(retexo: CommandLine) -> None:
    _write("mixed", "key,type,x0,x1,label", ["u1,user,1,,0", "u2,user,1,,1", "i1,item,,2,"])
    _write("bought", "source,target", ["u1,i1", "u2,i1"])
    run = ("run", "--nodes", "mixed.csv", "--edges", "bought.csv", "--out", "run")
    *gaps, hint = retexo.problems(*run, "--model", "sage")
    assert [gap.split(": ")[1] for gap in gaps] == ["line 2", "line 3", "line 4"]
    assert hint.startswith("mixed.csv: has a column 'type', which is not read; expected a model ")
    _write("mixed", "key,type,x0,x1,label", ["u1,user,1,5,0", "u2,user,1,x,1", "i1,item,5,2,"])
    (problem,) = retexo.problems(*run, "--model", "sage")
    assert "x1: got 'x'" in problem


def test_types_of_both_ends_are_refused_together(retexo: CommandLine) -> None:
    rows = ["a1,d1,accounts,phones", "a2,d2,persons,devices", "a3,d3,accounts,devices"]
    _write("uses", "source,target,source_type,target_type", rows)
    problems = retexo.problems("run", *TABLES, *READ, *HOW, "--out", "run")
    known = "expected one of accounts, devices, merchants"
    assert problems == [
        f"uses.csv: line 2: target_type: got 'phones'; {known}",
        f"uses.csv: line 3: source_type: got 'persons'; {known}",
    ]
    assert not Path("run").exists()


@pytest.mark.usefixtures("forked_runs")
def test_months_of_typed_tables_are_runs_with_their_edges(
    retexo: CommandLine, caplog: pytest.LogCaptureFixture
) -> None:
    keys = (*TABLES, *READ, *DIRECTED, *HOW, "--clients", "2", "--time-column", "day")
    told = retexo.done("run", *keys, "--cuts", "monthly", "--out", "months")
    with Path("months/cuts.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["trained_before"] for row in rows] == ["2026-02-01", "2026-03-01"]
    assert all(row["state"] == "finished" for row in rows), told
    caplog.clear()
    retexo.done("run", *keys, "--edges-before", "2026-02-01", "--out", "one")
    assert caplog.text.count("edges not before 2026-02-01 left out") == 3
    model = sorted(Path(rows[0]["run"]).glob("model/*.safetensors"))
    assert [path.read_bytes() for path in model] == [
        path.read_bytes() for path in sorted(Path("one/model").glob("*.safetensors"))
    ]
