"""Tables as people export them: forms of text, names of columns, words, dates, scale."""

from __future__ import annotations

import codecs
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from retexo_fl.errors import TableError
from retexo_fl.graph import EdgeRules, from_pyg
from retexo_fl.graph.recipes import FeatureRecipe, fit_recipe, merge_summaries, read_recipe
from retexo_fl.graph.recipes.recipe import NumberColumn
from retexo_fl.graph.scale import column_sizes, drowning_columns, tell_scale
from retexo_fl.graph.sources.edge_rules import EdgeColumns
from retexo_fl.graph.sources.reading import Reading
from retexo_fl.graph.sources.table_graph import read_table_graph
from retexo_fl.graph.sources.tables import (
    ColumnChoice,
    NodeColumns,
    read_edge_table,
    read_node_table,
    summarise_table,
)
from retexo_fl.graph.sources.text_form import TextForm
from tests.support.cli import TINY, CommandLine


@pytest.fixture(name="retexo")
def _retexo(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    monkeypatch.chdir(tmp_path)
    return CommandLine(capfd)


def _numbers(path: Path, content: str | bytes, form: TextForm | None = None) -> list[float]:
    """Return the column x0 of a table of nodes."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    table = read_node_table(path, NodeColumns(form=form or TextForm()))
    assert isinstance(table.features, np.ndarray)
    return [float(number) for number in table.features[:, 0]]


def _rows(mark: str, *cells: str) -> str:
    lines = [mark.join((f"k{at}", "0", cell)) for at, cell in enumerate(cells)]
    return "\n".join((mark.join(("key", "label", "x0")), *lines)) + "\n"


#: What a file holds, its numbers, and what is said of its form.
FORMS: dict[str, tuple[str | bytes, list[float], str]] = {
    "commas": (_rows(",", "1.5", "-2"), [1.5, -2], ""),
    "semicolons": (_rows(";", "1.5", "-2"), [1.5, -2], "fields between semicolons"),
    "decimal comma": (
        _rows(";", "1,5", "-2", "3,25"),
        [1.5, -2, 3.25],
        "fields between semicolons; numbers with a decimal comma",
    ),
    "thousands with points": (
        _rows(";", "1.234,5", "1.234", "1.234.567"),
        [1234.5, 1234, 1234567],
        "fields between semicolons; numbers with a decimal comma",
    ),
    "many points alone": (
        _rows(";", "1.234.567", "1.234"),
        [1234567, 1234],
        "fields between semicolons; numbers with a decimal comma",
    ),
    "quoted": (
        _rows(",", '"1.234,50"', '"2,5"'),
        [1234.5, 2.5],
        "numbers with a decimal comma",
    ),
    "quoted thousands": (
        _rows(",", '"1,234.5"', '"1,234"', "7"),
        [1234.5, 1234, 7],
        "numbers with a decimal point, and commas between thousands",
    ),
    "everything quoted": (
        '"key";"label";"x0"\n"a";"0";"1,5"\n',
        [1.5],
        "fields between semicolons; numbers with a decimal comma",
    ),
    "tabs": (_rows("\t", "1,5", "2"), [1.5, 2], "between tabs; numbers with a decimal comma"),
    "pipes": (_rows("|", "1.5", "2"), [1.5, 2], "fields between pipes"),
    "a mark of order": (b"\xef\xbb\xbf" + _rows(",", "1.5").encode(), [1.5], ""),
    "narrow spaces": (
        _rows(";", "1\u202f234,5", "1\u00a0000,25"),
        [1234.5, 1000.25],
        "fields between semicolons; numbers with a decimal comma",
    ),
    "apostrophes": (_rows(",", "1'234.5", "12.25"), [1234.5, 12.25], ""),
    "a line for the mark": ("sep=;\n" + _rows(";", "1,5"), [1.5], "between semicolons; numbers"),
    "windows": (
        _rows(";", "1,5").replace("k0", "M\u00fcller").encode("windows-1252"),
        [1.5],
        "fields between semicolons; numbers with a decimal comma; encoding windows-1252",
    ),
    "unicode text": (
        _rows("\t", "1,5").replace("k0", "M\u00fcller").encode("utf-16"),
        [1.5],
        "fields between tabs; numbers with a decimal comma; encoding utf-16",
    ),
    "high bytes first": (
        codecs.BOM_UTF16_BE + _rows(",", "1.5").encode("utf-16-be"),
        [1.5],
        "read with encoding utf-16",
    ),
    "four bytes each": (_rows(",", "1.5").encode("utf-32"), [1.5], "encoding utf-32"),
    "old line ends": (_rows(",", "1.5", "2").replace("\n", "\r"), [1.5, 2], ""),
    "exponents": (_rows(";", "1,5e3", "2E-1"), [1500, 0.2], "numbers with a decimal comma"),
    "three digits behind a point": (_rows(",", "1.234", "2.5"), [1.234, 2.5], ""),
    "a leading zero": (_rows(";", "0,125"), [0.125], "numbers with a decimal comma"),
    "semicolons in a cell": ('key,label,note,x0\na,0,"b;c",1.5\n', [1.5], ""),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_form_of_a_table_is_found_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    content, expected, said = FORMS[name]
    assert _numbers(tmp_path / "n.csv", content) == pytest.approx(expected)
    told = [line for line in caplog.messages if "read with" in line]
    assert len(told) == bool(said)
    assert said in "".join(told)


def test_what_is_chosen_wins_and_is_not_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, content = tmp_path / "n.csv", _rows(",", '"1,234"', "5")
    assert _numbers(path, content, TextForm.of(decimal="comma")) == pytest.approx([1.234, 5])
    assert _numbers(path, content, TextForm.of(decimal="point")) == [1234, 5]
    wide = _rows("\t", "2,5").encode("utf-16")
    for encoding in ("utf-16", "utf-16-le"):
        form = TextForm.of(encoding=encoding, delimiter="tab", decimal=",")
        assert _numbers(path, wide, form) == [2.5]
    assert not caplog.messages


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (_rows(",", '"1,234"', '"2,345"'), r"line 2: x0: got '1,234'; .*--decimal point or comma"),
        (_rows(";", "1.234", "2.345"), r"line 2: x0: got '1.234'; .*--decimal point or comma"),
        (_rows(";", "1.5", "2,5"), r"line 2: x0: got '1.5'; .*--decimal point or comma"),
        ("key,label;x0,x1\na,0;1,2\n", "comma and semicolon divide its rows alike; .*--delimiter"),
        (_rows(",", "1,5"), "line 2: got 4 fields; expected 3"),
    ],
)
def test_what_could_be_two_things_is_refused(tmp_path: Path, content: str, told: str) -> None:
    with pytest.raises(TableError) as caught:
        _numbers(tmp_path / "n.csv", content)
    assert re.search(told, str(caught.value)), caught.value


def _fitted(
    path: Path, content: str, choice: ColumnChoice | None = None
) -> tuple[FeatureRecipe, tuple[str, ...]]:
    path.write_text(content)
    return fit_recipe(summarise_table(path, choice or ColumnChoice()))


def _column(head: str, *cells: str) -> str:
    rows = [f"k{at},{at % 2},{cell}" for at, cell in enumerate(cells)]
    return "\n".join((f"key,label,{head}", *rows)) + "\n"


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        (
            ("1", "2", "n.b.", "4", "later", "6"),
            "line 4: a: got 'n.b.', where 4 of 6 cells look like numbers; expected numbers, or "
            "nothing; or `retexo features fit` with --categorical or --drop a",
        ),
        (("5 EUR", "6 EUR", "7 EUR", "8 EUR"), "line 2: a: got '5 EUR', where 4 of 4 cells"),
        (("12 %", "13 %", "14 %"), "line 2: a: got '12 %', where 3 of 3 cells"),
        (('"1,234"', '"2,345"'), "line 2: a: .*--decimal point or comma"),
        (("2021-01-02", "2021-01-03", "open"), "line 4: a: got 'open', where 2 of 3 .* dates"),
        (("01/02/2021", "03/04/2021"), "line 2: a: got '01/02/2021', of which no cell"),
    ],
)
def test_a_column_that_is_nearly_one_of_numbers_shows_its_odd_cells(
    tmp_path: Path, cells: tuple[str, ...], told: str
) -> None:
    path, content = tmp_path / "n.csv", _column("a", *cells)
    with pytest.raises(TableError) as caught:
        _fitted(path, content)
    assert re.search(told, str(caught.value)), caught.value
    assert 1 <= len(caught.value.args[0].splitlines()) <= 3
    # The advice has the result that it promises.
    summary = summarise_table(path, ColumnChoice(categorical=("a",)))
    assert summary.columns["a"].has_texts


def test_few_codes_that_repeat_are_categories(tmp_path: Path) -> None:
    recipe, _ = _fitted(tmp_path / "n.csv", _column("a", *["1", "2", "3", "A1"] * 20))
    assert recipe.categories[0].values == ("1", "2", "3", "A1")


DATES = {
    "ISO": ("2019-02-01", "2021-07-15", "2020-11-30"),
    "points": ("01.02.2019", "15.07.2021", "30.11.2020"),
    "days first": ("01/02/2019", "15/07/2021", "30/11/2020"),
    "months first": ("02/01/2019", "07/15/2021", "11/30/2020"),
    "slashes": ("2019/2/1", "2021/7/15", "2020/11/30"),
    "midnight": ("2019-02-01 00:00:00", "2021-07-15T00:00Z", "30.11.2020 00:00"),
    "zones": ("2019-02-01T01:00+01:00", "2021-07-14T22:00-0200", "2020-11-30T00:00:00.000"),
}


@pytest.mark.parametrize("cells", DATES.values(), ids=DATES)
def test_dates_become_days_month_and_weekday(tmp_path: Path, cells: tuple[str, ...]) -> None:
    path = tmp_path / "n.csv"
    recipe, told = _fitted(path, _column("opened", *cells, ""))
    assert told == ("opened: dates, taken as days since 1970-01-01, month and weekday",)
    days = np.array(["2019-02-01", "2021-07-15", "2020-11-30"], "datetime64[D]").astype(float)
    assert recipe.dates[0].mean == pytest.approx(days.mean(), abs=1e-9)
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    assert read_recipe(tmp_path / "recipe.toml") == recipe
    features = read_node_table(path, NodeColumns(recipe=recipe)).features
    assert isinstance(features, np.ndarray)
    wanted = np.append((days - days.mean()) / days.std(), 0)
    assert features[:, 0] == pytest.approx(wanted, abs=1e-6)
    # February, July, November; a Friday, a Thursday, a Monday; and no date.
    ones = [np.flatnonzero(row[1:]).tolist() for row in features]
    assert ones == [[1, 12 + 4], [6, 12 + 3], [10, 12 + 0], [19]]


def test_clients_whose_dates_look_different_share_a_recipe(tmp_path: Path) -> None:
    summaries = []
    for name in ("ISO", "points"):
        path = tmp_path / f"{name.lower()}.csv"
        path.write_text(_column("opened", *DATES[name]))
        summaries.append(summarise_table(path, ColumnChoice()))
    recipe, _ = fit_recipe(merge_summaries(summaries))
    rows = [
        read_node_table(Path(summary.source), NodeColumns(recipe=recipe)).features
        for summary in summaries
    ]
    assert np.array_equal(rows[0], rows[1])
    path.write_text(_column("opened", "01/02/2019"))
    with pytest.raises(TableError, match=r"line 2: opened: got '01/02/2019', of which no cell"):
        read_node_table(path, NodeColumns(recipe=recipe))


def test_unlabelled_values(retexo: CommandLine, caplog: pytest.LogCaptureFixture) -> None:
    labels = ["1", "2", "unknown", "?"] * 6
    rows = [f"k{at},{label},{at}" for at, label in enumerate(labels)]
    Path("n.csv").write_text("\n".join(["key,label,age", *rows]) + "\n")
    edges = [f"k{at},k{(at + 1) % 24}" for at in range(24)]
    Path("e.csv").write_text("\n".join(["source,target", *edges]) + "\n")
    make = ("partition", "make", "--nodes", "n.csv", "--edges", "e.csv", "--features", "auto")
    split = ("--clients", "2", "--split", "random:0.4/0.3/0.3")
    retexo.done(*make, *split, "--out", "a")
    word = "--unlabelled-values {} leaves its nodes unlabelled"
    assert any(word.format("unknown") in line for line in caplog.messages)
    assert any(word.format("'?'") in line for line in caplog.messages)
    caplog.clear()
    retexo.done(*make, *split, "--unlabelled-values", "unknown,?", "--out", "b")
    assert not any("--unlabelled-values" in line for line in caplog.messages)
    assert 'classes = [\n    "1",\n    "2",\n]' in Path("b/recipe.toml").read_text()
    # Without a recipe, and for numbers, likewise.
    Path("x.csv").write_text("key,label,x0\na,0,1\nb,1,2\nc,99,3\n")
    table = read_node_table(Path("x.csv"), NodeColumns(unlabelled=frozenset({"99"})))
    assert table.labels.tolist() == [0, 1, -1]


def test_names_of_columns_unknown_and_repeated_nodes(
    retexo: CommandLine, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = [f"AT{at:02};{at % 2};{at},5" for at in range(8)]
    Path("n.csv").write_text("\n".join(["konto;label;x0", *nodes, "AT01;1;9,5"]) + "\n")
    edges = [f'AT{at:02};AT{(at + 1) % 8:02};"1.00{at},50";0{at + 1}.01.2024' for at in range(8)]
    unknown = 'AT03;AT99;"1,00";01.01.2024'
    Path("e.csv").write_text("\n".join(["von;nach;betrag;am", *edges, unknown]) + "\n")
    names = (
        *("--key-column", "konto", "--source-column", "von", "--target-column", "nach"),
        *("--weight-column", "betrag", "--time-column", "am"),
    )
    split = ("--clients", "2", "--split", "random:0.4/0.3/0.3")
    make = ("partition", "make", "--nodes", "n.csv", "--edges", "e.csv", *names, *split)
    told = retexo.refused(*make, "--out", "a")
    assert "'AT01' is already in line 3" in told
    told = retexo.refused(*make, "--repeated-nodes", "first", "--out", "a")
    assert "e.csv: line 10: nach: 'AT99' is not a key of n.csv" in told
    assert "or unknown-nodes drop" in told
    caplog.clear()
    drop = ("--repeated-nodes", "last", "--unknown-nodes", "drop")
    retexo.done(*make, *drop, "--edges-before", "2024-01-08", "--out", "b")
    assert "n.csv: repeated nodes left out: 1 (the last row of each counts)" in caplog.messages
    assert "e.csv: edges to unknown nodes left out: 1" in caplog.messages
    assert "e.csv: edges not before 2024-01-08 left out: 1" in caplog.messages
    form = NodeColumns(key="konto", repeated="last")
    rules = EdgeRules(
        unknown="drop", columns=EdgeColumns(source="von", target="nach", weight="betrag")
    )
    graph = read_table_graph(Path("n.csv"), Path("e.csv"), form, reading=Reading(rules=rules))
    assert isinstance(graph.features, np.ndarray)
    assert graph.edge_values.weights is not None
    assert graph.features[0].tolist() == [0.5]
    assert sorted({*graph.edge_values.weights.tolist()})[0] == 1000.5
    assert 9.5 in graph.features[:, 0]
    first = NodeColumns(key="konto", repeated="first")
    features = read_node_table(Path("n.csv"), first).features
    assert isinstance(features, np.ndarray)
    assert 9.5 not in features[:, 0]
    with pytest.raises(TableError, match="column 'sum' is missing"):
        read_edge_table(
            Path("e.csv"),
            rules=EdgeRules(columns=EdgeColumns(source="von", target="nach", weight="sum")),
        )


def test_a_client_reads_its_own_export(retexo: CommandLine) -> None:
    Path("peers.toml").write_text(
        'partitioning = "p"\nclasses = 2\nfeatures = 1\nclients = ["a", "b"]\n'
    )
    Path("n.csv").write_text("key;label;x0\nk0;0;1,5\nk1;1;2,5\nk2;?;3,5\n")
    Path("e.csv").write_text("von;nach;betrag\nk0;k1;1,5\nk1;k9;2,5\n")
    Path("b.csv").write_text("own;foreign;peer;betrag\nk0;z;b;1,5\nk8;z;b;2,5\n")
    told = retexo.done(
        *("partition", "local", "--nodes", "n.csv", "--edges", "e.csv", "--boundary", "b.csv"),
        *("--peers", "peers.toml", "--name", "a", "--split", "by-key:0.4/0.3/0.3"),
        *("--source-column", "von", "--target-column", "nach", "--weight-column", "betrag"),
        *("--unlabelled-values", "?", "--unknown-nodes", "drop", "--out", "parts"),
    )
    assert "3 inner nodes, 1 boundary node of 1 peer, 1 inner edge and 1 to peers" in told


MIRRORED = [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)]


@pytest.mark.parametrize(
    ("more", "weights", "merge", "expected"),
    [
        ([], None, "sum", {(0, 1): 1}),
        ([(0, 1)], None, "sum", {(0, 1): 2, (1, 2): 1, (2, 3): 1}),
        ([(1, 0), (1, 0)], None, "sum", {(0, 1): 3, (1, 2): 1, (2, 3): 1}),
        # An edge that stands in one orientation alone does not change the others.
        ([(0, 3)], None, "sum", {(0, 1): 1, (1, 2): 1, (2, 3): 1, (0, 3): 1}),
        ([(0, 1)], [5, 5, 2, 2, 1, 1, 5], "sum", {(0, 1): 10, (1, 2): 2, (2, 3): 1}),
        ([(0, 1)], [5, 5, 2, 2, 1, 1, 8], "mean", {(0, 1): 6.5, (1, 2): 2, (2, 3): 1}),
        # Two directions that weigh differently are two edges.
        ([], [5, 4, 2, 2, 1, 1], "sum", {(0, 1): 9, (1, 2): 2, (2, 3): 1}),
        ([(3, 3)], [5, 4, 2, 2, 1, 1, 7], "sum", {(0, 1): 9, (1, 2): 2, (2, 3): 1}),
    ],
)
def test_a_mirrored_list_is_merged_pair_by_pair(
    more: list[tuple[int, int]],
    weights: list[float] | None,
    merge: str,
    expected: dict[tuple[int, int], float],
) -> None:
    from types import SimpleNamespace

    data = SimpleNamespace(
        edge_index=np.array([*MIRRORED, *more]).T,
        x=np.eye(4, dtype=np.float32),
        y=np.array([0, 1, 0, 1]),
        edge_weight=None if weights is None else np.array(weights, dtype=np.float32),
    )
    graph = from_pyg(data, rules=EdgeRules(merge=merge, self_loops="drop"))
    found = graph.edge_values.weights
    rows = np.repeat(np.arange(4), graph.degrees)
    ends = zip(rows.tolist(), graph.indices.tolist(), strict=True)
    if found is None:
        assert set(expected.values()) == {1}
        return
    pairs = dict(zip(ends, found.tolist(), strict=True))
    assert {pair: weight for pair, weight in pairs.items() if pair[0] < pair[1]} == expected


def test_a_column_that_drowns_the_others_is_named(
    retexo: CommandLine, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [f"k{at},{at % 2},{1.6e9 + at},{at % 3}" for at in range(12)]
    Path("n.csv").write_text("\n".join(["key,label,x0,x1", *rows]) + "\n")
    edges = [f"k{at},k{(at + 1) % 12}" for at in range(12)]
    Path("e.csv").write_text("\n".join(["source,target", *edges]) + "\n")
    split = ("--clients", "2", "--split", "random:0.4/0.3/0.3")
    tables = ("--nodes", "n.csv", "--edges", "e.csv")
    retexo.done("partition", "make", *tables, *split, "--out", "parts")
    told = "n: features: column 0 (about 1.6e+09) is so large that a model learns little"
    assert any(line.startswith(told) for line in caplog.messages)
    caplog.clear()
    retexo.done("run", "--partitions", "parts", "--out", "r", *TINY)
    assert any("parts: features: column 0" in line for line in caplog.messages)
    caplog.clear()
    # The advice holds.
    retexo.done("partition", "make", *tables, *split, "--features", "auto", "--out", "scaled")
    assert not any("so large" in line for line in caplog.messages)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([1, 1, 1], []),
        ([0.1, 1, 14], []),
        ([1, 1, 100], [2]),
        ([1, 49], []),
        ([1, 51], [1]),
        ([0.001, 0.001, 19], []),
        ([0.001, 0.001, 21], [2]),
        ([9e3, 9.9e3], []),
        ([1e4, 1.1e4], [1]),
        ([0, 0], []),
        ([30, 40, 50], []),
    ],
)
def test_sizes_that_drown_others(sizes: list[float], expected: list[int]) -> None:
    assert drowning_columns(np.array(sizes, dtype=float)).tolist() == expected


#: Of size 3, of size 4, and a column that is in no row.
ROWS = np.array([[3, 0, 0], [-3, 4, 0], [0, 4, 0]], dtype=np.float32)


@pytest.mark.parametrize("kinds", ["d", "s", "dd", "ss", "ds"])
def test_sizes_are_those_of_numbers_that_are_not_zero(kinds: str) -> None:
    stored = csr_array((np.array([3, -3, 4, 4, 0.0]), ([0, 1, 1, 2, 2], [0, 0, 1, 1, 0])))
    made = {"d": ROWS, "s": csr_array((stored.data, stored.indices, stored.indptr), shape=(3, 3))}
    parts = [made[kind] for kind in kinds]
    if len(parts) == 2:
        parts = [parts[0][:1], parts[1][1:]]
    columns, sizes = column_sizes(parts)
    assert sizes.tolist() == ([3, 4, 0] if "d" in kinds else [3, 4])
    assert columns.tolist() == [*range(len(sizes))]


def test_drowning_columns_are_told_by_their_numbers_or_names(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wide = csr_array((np.array([1.0, 1e5]), np.array([7, 2**31 - 5]), [0, 2]), shape=(1, 2**31))
    tell_scale("wide", [wide])
    ages = [
        NumberColumn(
            column=name, logarithm=False, mean=0.0, deviation=1.0, missing=None, indicator=True
        )
        for name in ("age", "income")
    ]
    recipe = FeatureRecipe(key_column="k", label_column="l", classes=(), numbers=tuple(ages))
    tell_scale("named", [np.array([[1, 1, 1e5, 1]])], recipe)
    for large in (5, 6):
        tell_scale("many", [np.array([[1e5] * large + [1] * 9])])
    told = [line.partition(": features: ")[2].partition(" so large")[0] for line in caplog.messages]
    five = ", ".join(f"column {at} (about 1e+05)" for at in range(5))
    assert told == [
        "column 2147483643 (about 1e+05) is",
        "'income' (about 1e+05) is",
        f"{five} are",
        f"{five}, and 1 more are",
    ]
