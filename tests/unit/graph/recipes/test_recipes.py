"""Summaries, what is made of them, and their files."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.errors import ConfigurationError, TableError
from retexo_fl.graph.labels import MOST_NAMED, labels_for
from retexo_fl.graph.recipes import (
    FeatureRecipe,
    FitOptions,
    TableSummary,
    fit_recipe,
    merge_summaries,
    parse_recipe,
    read_recipe,
    read_summary,
)
from retexo_fl.graph.recipes.fitting import unlabelled_words
from retexo_fl.graph.recipes.recipe import CategoryColumn, DateColumn, NumberColumn
from retexo_fl.graph.recipes.summary import MOST_TEXTS, LabelSummary, parse_summary
from retexo_fl.graph.sources.tables import ColumnChoice, summarise_table
from tests.support.tables import write_table

HEAD = "id,fraud,age,balance,country,flag,note"
LINES = [
    "a,no,40,1.5,DE,1,x1",
    "b,yes,,20,AT,1,x2",
    "c,no,NA,-3,DE,1,x3",
    "d,,60,1e3,NA,1,x4",
    "e,no,20,0.25,,1,x5",
    "f,yes,50,7,DE,1,x6",
]
CHOICE = ColumnChoice(key="id", label="fraud")


def _summary(path: Path, lines: list[str], *, head: str = HEAD, **choice: Any) -> TableSummary:
    path.write_text("\n".join([head, *lines]))
    return summarise_table(path, replace(CHOICE, **choice))


def _recipe(summary: TableSummary, **options: Any) -> FeatureRecipe:
    return fit_recipe(summary, FitOptions(**{"least_count": 2, **options}))[0]


def test_recipe_of_a_table_is_what_its_columns_say(tmp_path: Path) -> None:
    recipe, told = fit_recipe(_summary(tmp_path / "n.csv", LINES), FitOptions(least_count=2))
    age, balance = recipe.numbers
    assert (recipe.key_column, recipe.label_column) == ("id", "fraud")
    assert recipe.classes == ("no", "yes")
    numbers = np.array([40.0, 60, 20, 50])
    assert age.column == "age"
    assert age.mean == pytest.approx(numbers.mean(), abs=1e-12)
    assert age.deviation == pytest.approx(numbers.std(), abs=1e-12)
    assert (age.missing, age.indicator, age.logarithm) == (None, True, False)
    assert (balance.column, balance.indicator) == ("balance", False)
    assert recipe.categories == (CategoryColumn(column="country", values=("DE",), indicator=True),)
    assert recipe.num_features == 2 + 1 + 3
    assert told == (
        "country: 2 texts of fewer than 2 rows count as other",
        "flag: left out, as all rows have the same number",
        "note: left out, as none of its 6 texts has 2 rows (--min-count)",
    )


def test_that_a_cell_is_missing_tells_something_of_a_column_that_is_else_constant(
    tmp_path: Path,
) -> None:
    lines = [f"k{row},no,{'NA' if row % 3 else 7},5,{'' if row > 9 else 'DE'}" for row in range(12)]
    summary = _summary(tmp_path / "n.csv", lines, head="id,fraud,age,flag,country")
    recipe, told = fit_recipe(replace(summary, label_column="", label=LabelSummary()))
    assert recipe.numbers == (
        NumberColumn(
            column="age", logarithm=False, mean=7.0, deviation=1.0, missing=None, indicator=True
        ),
    )
    assert recipe.categories == (CategoryColumn(column="country", values=("DE",), indicator=True),)
    assert told[-1] == "flag: left out, as all rows have the same number"


@pytest.mark.parametrize("seed", range(3))
def test_recipe_of_any_split_and_order_has_the_same_bytes(tmp_path: Path, seed: int) -> None:
    draws = random.Random(seed)
    lines = [
        f"k{row},{draws.choice(['no', 'yes', ''])},"
        f"{draws.gauss(40, 9) if draws.random() < 0.9 else 'NA'},"
        f"{draws.lognormvariate(0, 30)},{draws.choice(['DE', 'AT', 'NA', '', 'CH'])},"
        f"{draws.random()},{draws.choice('xyz')}"
        for row in range(200)
    ]
    options: dict[str, Any] = {"logarithms": ("balance",)}
    whole = _recipe(_summary(tmp_path / "whole.csv", lines), **options)
    draws.shuffle(lines)
    cuts = [0, 20, 150, 200]
    parts = []
    for first, end in pairwise(cuts):
        summary = _summary(tmp_path / f"{first}.csv", lines[first:end])
        (tmp_path / f"{first}.json").write_text(summary.to_json())
        parts.append(read_summary(tmp_path / f"{first}.json"))
    for order in (parts, parts[::-1]):
        merged = _recipe(merge_summaries(order), **options)
        assert merged == whole
        assert merged.to_toml() == whole.to_toml()


@pytest.mark.parametrize("fmt", ["tsv", "parquet", "npz"])
def test_all_formats_give_the_same_summary(tmp_path: Path, fmt: str) -> None:
    columns = {
        "id": np.array(["a", "b", "c"]),
        "fraud": np.array(["no", "yes", ""]),
        "age": np.array([40.5, 3, -2e-3]),
        "zip": np.array([1010, 80331, 1010]),
        "country": np.array(["DE", "", "AT"]),
    }
    choice = replace(CHOICE, categorical=("zip",))
    expected = summarise_table(write_table(tmp_path / "n.csv", columns), choice)
    found = summarise_table(write_table(tmp_path / f"n.{fmt}", columns), choice)
    assert found.to_json() == expected.to_json()
    assert expected.columns["zip"].texts == {"1010": 2, "80331": 1}


def test_options_of_the_fit_say_what_becomes_of_numbers(tmp_path: Path) -> None:
    summary = _summary(tmp_path / "n.csv", LINES)
    recipe = _recipe(summary, logarithms=("balance",), as_is=("age",), missing=-1.0)
    age, balance = recipe.numbers
    assert (age.mean, age.deviation, age.missing) == (0, 1, -1)
    values = np.array([1.5, 20, -3, 1e3, 0.25, 7])
    logarithms = np.sign(values) * np.log1p(np.abs(values))
    assert balance.logarithm
    assert balance.mean == pytest.approx(logarithms.mean(), abs=1e-12)
    assert balance.deviation == pytest.approx(logarithms.std(), abs=1e-12)
    # Without a constant it is the mean, which is not 0 in a column that is left as it is.
    assert _recipe(summary, as_is=("age",)).numbers[0].missing == pytest.approx(42.5)
    # A missing number is replaced before the logarithm is taken.
    both = _recipe(summary, as_is=("age",), logarithms=("age",)).numbers[0]
    assert both.logarithm
    assert both.missing == pytest.approx(42.5)
    for option, name, expected in (
        ("logarithms", "country", "log: 'country' is a column of texts of .*'age', 'balance', "),
        ("as_is", "size", "as-is: 'size' is no column of "),
    ):
        with pytest.raises(ConfigurationError, match=expected):
            _recipe(summary, **{option: (name,)})


def test_dates_are_standardised_days_with_an_indicator_where_one_is_missing(
    tmp_path: Path,
) -> None:
    path, head = tmp_path / "n.csv", "id,fraud,opened,land"
    lines = ["a,no,1970-01-11,x", "b,yes,1970-01-31,", "c,no,NA,y"]
    summary = _summary(path, lines, head=head)
    (tmp_path / "s.json").write_text(summary.to_json())
    assert read_summary(tmp_path / "s.json").columns["opened"].are_dates
    recipe = _recipe(summary, least_count=1)
    (opened,) = recipe.dates
    assert opened == DateColumn(column="opened", mean=20.0, deviation=10.0, indicator=True)
    assert recipe.columns == ("opened", "land")
    assert recipe.num_features == 1 + 12 + 7 + 1 + 2 + 2
    (plain,) = _recipe(summary, as_is=("opened",)).dates
    assert (plain.mean, plain.deviation, plain.indicator) == (0, 1, True)
    with pytest.raises(ConfigurationError, match="log: 'opened' is a column of dates of "):
        _recipe(summary, logarithms=("opened",))
    # All alike, it tells of rows without one alone.
    for cells, told in ((("x", ""), "taken as days"), (("x", "y"), "all rows have the same date")):
        lines = [f"k{at},l{at},1970-01-11,{cell}" for at, cell in enumerate(cells)]
        lines += [] if cells[1] else ["k,no,,x"]
        found, said = fit_recipe(_summary(path, lines, head=head), FitOptions(least_count=1))
        assert told in " ".join(said)
        assert [(date.deviation, date.indicator) for date in found.dates] == (
            [] if cells[1] else [(1.0, True)]
        )
        assert [column.indicator for column in found.categories] == [not cells[1]]
    (tmp_path / "m.csv").write_text(f"{head}\nz,no,3,x")
    number = summarise_table(tmp_path / "m.csv", CHOICE)
    with pytest.raises(ConfigurationError, match=r"opened: holds dates in .* and numbers in "):
        merge_summaries([summary, number])


def test_rare_texts_tell_something_where_others_are_missing(tmp_path: Path) -> None:
    lines = [f"k{row},l{row % 2},{row if row else ''}x" for row in range(9)]
    lines += ["a,l0,", "b,l1,"]
    recipe = _recipe(_summary(tmp_path / "n.csv", lines, head="id,fraud,land"), least_count=3)
    assert recipe.categories == (CategoryColumn(column="land", values=(), indicator=True),)


def test_no_sum_is_told_over_fewer_nodes_than_an_owner_wants(tmp_path: Path) -> None:
    summary = _summary(tmp_path / "n.csv", LINES).without(("note",))
    # Six nodes; four of them have an age, three the most frequent land.
    for least, columns, all_texts, told in (
        (3, (), True, ""),
        (4, (), True, "nodes with the most frequent text in 'country': got 3; expected at least 4"),
        (4, (), False, ""),
        (5, (), False, "numbers in 'age': got 4; expected at least 5"),
        (6, ("age", "country"), True, ""),
        (7, ("age", "country"), True, "nodes: got 6; expected at least 7"),
    ):
        told_of = summary.without(columns)
        if not told:
            told_of.check_not_few(least, tells_all_texts=all_texts)
            continue
        with pytest.raises(ConfigurationError, match=told):
            told_of.check_not_few(least, tells_all_texts=all_texts)


def test_columns_are_chosen_by_name(tmp_path: Path) -> None:
    path = tmp_path / "n.csv"
    assert set(_summary(path, LINES, columns=("age", "flag")).columns) == {"age", "flag"}
    assert "note" not in _summary(path, LINES, drop=("note",)).columns
    with pytest.raises(TableError, match="columns 'size', 'sex' are missing; the file has 'id',"):
        _summary(path, LINES, drop=("sex",), columns=("size", "sex"))
    summary = _summary(path, LINES)
    assert set(summary.without(("note", "flag")).columns) == {"age", "balance", "country"}
    with pytest.raises(ConfigurationError, match=r"drop: 'sex' is no column of .*'age'"):
        summary.without(("sex",))


def test_texts_beyond_those_of_categories_are_not_in_a_summary(tmp_path: Path) -> None:
    lines = [f"k{row},no,1,2,DE,1,name {row}" for row in range(MOST_TEXTS + 1)]
    summary = _summary(tmp_path / "n.csv", lines)
    assert summary.columns["note"].too_many_texts
    assert "name" not in summary.to_json()
    parts = [_summary(tmp_path / "n.csv", lines[: MOST_TEXTS // 2])]
    parts.append(_summary(tmp_path / "n.csv", lines[MOST_TEXTS // 2 :]))
    assert "name 7" in parts[0].to_json()
    assert merge_summaries(parts).columns["note"].too_many_texts
    at_most = [_summary(tmp_path / "n.csv", part) for part in (lines[:-1], lines[1:-1])]
    assert len(merge_summaries(at_most).columns["note"].texts) == MOST_TEXTS
    long = _summary(tmp_path / "n.csv", ["a,no,1,2,DE,1," + "x" * 300])
    assert long.columns["note"].too_many_texts


def test_numbers_that_become_texts_further_down_are_texts(tmp_path: Path) -> None:
    lines = [f"k{row},no,1,2,{row % 3},1,x" for row in range(5000)] + ["z,no,1,2,A1,1,x"]
    column = _summary(tmp_path / "n.csv", lines).columns["country"]
    assert column.texts == {"0": 1667, "1": 1667, "2": 1666, "A1": 1}
    assert column.numbers.count == 0
    # 5e999 is no number that fits; among texts it is a text.
    assert "5e999" in _summary(tmp_path / "n.csv", [*LINES, "z,no,1,2,5e999,1,x"]).to_json()


def test_labels_that_are_numbers_have_no_names(tmp_path: Path) -> None:
    head, lines = "id,fraud,age", ["a,0,1", "b,1.0,2", "c,,3"]
    summary = _summary(tmp_path / "n.csv", lines, head=head)
    assert (summary.label.numbers, summary.label.texts) == (True, frozenset())
    assert _recipe(summary).classes == ()
    unlabelled = _summary(tmp_path / "u.csv", ["a,,1", "b,NA,2"], head=head)
    assert (unlabelled.label.numbers, unlabelled.label.texts) == (False, frozenset())
    texts = _summary(tmp_path / "t.csv", ["a,no,1", "b,NA,2"], head=head)
    assert texts.label.texts == {"no"}
    assert merge_summaries([unlabelled, texts]).label.texts == {"no"}
    # A column without a value is of either kind.
    empty = _summary(tmp_path / "e.csv", ["a,no,", "b,no,"], head=head)
    named = _summary(tmp_path / "d.csv", ["a,no,old"], head=head)
    assert merge_summaries([empty, named]).columns["age"].texts == {"old": 1}
    with pytest.raises(ConfigurationError, match=r"fraud: every label is 'no'; expected at least"):
        _recipe(texts)
    with pytest.raises(
        ConfigurationError, match=r"fraud: holds numbers in .*n.csv and texts in .*t.csv"
    ):
        merge_summaries([texts, unlabelled, summary])


def test_whole_labels_are_told_where_all_of_them_are_and_not_too_many() -> None:
    def whole(first: int, end: int) -> LabelSummary:
        return LabelSummary(numbers=True, whole=frozenset(range(first, end)))

    few, other = whole(1, 3), LabelSummary(numbers=True)
    assert (few + other).whole == (other + few).whole == frozenset()
    assert (few + LabelSummary()).whole == {1, 2}
    assert len((whole(0, 500) + whole(500, MOST_NAMED)).whole) == MOST_NAMED
    assert not (whole(0, 500) + whole(500, MOST_NAMED + 1)).whole


@pytest.mark.parametrize(
    ("head", "lines", "choice", "expected"),
    [
        ("id,fraud,age", ["a,no,1"], {}, "column 'balance' is missing, which .*one.csv has"),
        (HEAD + ",more", [f"{LINES[0]},1"], {}, "one.csv: column 'more' is missing, which "),
        (HEAD, ["a,no,young,1,DE,1,x"], {}, "age: holds numbers in .*one.csv and texts in .*two"),
        ("name" + HEAD[2:], LINES, {"key": "name"}, "key-column is 'name', in .*one.csv 'id'"),
    ],
)
def test_summaries_that_do_not_fit_are_refused(
    tmp_path: Path, head: str, lines: list[str], choice: dict[str, Any], expected: str
) -> None:
    one = _summary(tmp_path / "one.csv", LINES)
    two = _summary(tmp_path / "two.csv", lines, head=head, **choice)
    with pytest.raises(ConfigurationError, match=expected):
        merge_summaries([one, two])


def test_table_without_a_column_to_use_is_refused(tmp_path: Path) -> None:
    summary = _summary(tmp_path / "n.csv", ["a,no,1", "b,yes,1"], head="id,fraud,age")
    with pytest.raises(
        ConfigurationError, match=r"no column becomes a feature; age: left out, as all rows"
    ):
        fit_recipe(summary)


def test_numbers_out_of_range_are_told_together(tmp_path: Path) -> None:
    lines = ["a,no,inf,1", "b,yes,1,-1e39", "c,yes,2,1"]
    with pytest.raises(TableError) as caught:
        _summary(tmp_path / "n.csv", lines, head="id,fraud,age,size")
    assert caught.value.problems == (
        f"{tmp_path}/n.csv: line 2: age: got inf; expected a finite float32 number, or nothing",
        f"{tmp_path}/n.csv: line 3: size: got -1e+39; expected a finite float32 number, or nothing",
    )


# ---- files --------------------------------------------------------------------------------------


def _change(*path: str | int, to: object) -> Callable[[dict[str, Any]], None]:
    def change(values: dict[str, Any]) -> None:
        place: Any = values
        for key in path[:-1]:
            place = place[key]
        if to is None:
            del place[path[-1]]
        else:
            place[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (_change("summary-version", to=2), "summary-version: got 2; expected 1"),
        (_change("rows", to=None), "summary: rows: missing; expected columns, "),
        (_change("rows", to=-1), "rows: got -1; expected a whole number from 0"),
        (_change("key-column", to=""), "key-column: got ''; expected a text"),
        (_change("label", "texts", to=[1]), r"label: got \[1\]; expected a list of texts"),
        (_change("columns", "age", "size", to=1), "age: size: unknown key; expected empty, "),
        (_change("columns", "age", "empty", to=True), "age: got True; expected a whole number"),
        (_change("columns", "age", "numbers", "sum", to="1/0"), "age: got '1/0'; expected a frac"),
        (_change("columns", "age", "numbers", "sum", to=0.5), "age: got 0.5; expected a fraction"),
        (
            _change("columns", "age", "numbers", "sum-of-squares", to="3"),
            "age: got .* sum of squares that is too small",
        ),
        (_change("columns", "age", "numbers", "count", to=9), "age: got .*; expected one of them"),
        (
            _change("columns", "country", "texts", "DE", to=0.5),
            "country: got 0.5; expected a whole",
        ),
        (_change("rows", to=2**48 + 1), "rows: got 281474976710657; expected a whole number"),
        (_change("label", "numbers", to=True), "label: got 'numbers and texts'; expected one"),
        (_change("label", "whole", to=[1]), r"label: got \[1\]; expected at most 1000 whole"),
        (
            _change("label", to={"numbers": True, "texts": [], "whole": [True]}),
            r"label: got \[True\]; expected at most 1000 whole",
        ),
        (
            _change("columns", "age", "too-many-texts", to=True),
            "age: got 'numbers and texts'; expected one of them",
        ),
        (
            _change("columns", "country", "numbers-are-dates", to=True),
            "country: got 'dates without numbers of days'; expected both",
        ),
        (
            _change("columns", "note", to={"empty": 7, "too-many-texts": True}),
            "note: got '7 cells'; expected 6, one for each row",
        ),
        (
            _change("columns", "note", "texts", to={str(at): 0 for at in range(MOST_TEXTS + 1)}),
            "note: got '1001 texts'; expected at most 1000",
        ),
        (
            _change("columns", "age", "numbers", "sum", to="1" + "0" * 400),
            "age: got '1000.*; expected a fraction of the range of float64",
        ),
        *(
            (
                _change("columns", "age", "numbers", "sum", to=f"{'9' * above}/{'9' * below}"),
                "age: got '9999.*; expected a fraction, such as",
            )
            for above, below in ((1501, 1500), (1500, 1501))
        ),
        (
            _change("columns", "age", "logarithms", "sum-of-squares", to="0"),
            "age: got .* sum of squares that is too small",
        ),
    ],
)
def test_summaries_that_are_none_are_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], expected: str
) -> None:
    values = json.loads(_summary(tmp_path / "n.csv", LINES).to_json())
    change(values)
    path = tmp_path / "s.json"
    path.write_text(json.dumps(values))
    with pytest.raises(ConfigurationError) as caught:
        read_summary(path)
    assert re.match(f"{re.escape(str(path))}: {expected}", str(caught.value))


def test_recipe_is_read_as_it_was_written(tmp_path: Path) -> None:
    recipe = _recipe(_summary(tmp_path / "n.csv", LINES), missing=0.1)
    path = tmp_path / "recipe.toml"
    path.write_text(recipe.to_toml())
    assert read_recipe(path) == recipe
    # Comments and layout are not in the digest, and it may be left out.
    lines = [line for line in recipe.to_toml().splitlines() if not line.startswith("digest")]
    path.write_text("# changed\n\n" + "\n".join(lines))
    assert read_recipe(path).digest == recipe.digest
    assert replace(recipe, classes=("no", "x")).digest != recipe.digest
    # Recorded: recipes that lie beside parts and runs say it.
    kept = CategoryColumn(column="b", values=("ä",), indicator=True)
    named = FeatureRecipe(
        classes=("no", "yes"), key_column="k", label_column="y", categories=(kept,)
    )
    assert named.digest == "3d32b7aadec94cfbf30cafe95754f980823da473aa2fef6ba24e12c128aa7e2e"


def test_recipe_of_nothing_is_none(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    for text, told in (
        ("", "recipe: key-column: missing"),
        ('key-column = "k"\nlabel-column = "y"\n', "expected at least one column that becomes"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            parse_recipe(f"version = 1\n{text}".encode(), path)
    alone = parse_recipe(b'version = 1\nclasses = ["no", "yes"]\n', path)
    assert (alone.columns, alone.classes) == ((), ("no", "yes"))
    with pytest.raises(ConfigurationError, match="not JSON"):
        parse_summary(b"[" * 100_000, path)


def test_names_of_classes_go_with_tasks_that_have_such() -> None:
    for classes, task, fits in (
        (("no", "yes"), "classes", True),
        (("no", "yes"), "links", True),
        (("no", "yes"), "regression", False),
        (("7", "30"), "regression", True),
        (("07", "30"), "regression", False),
    ):
        recipe = FeatureRecipe(classes=classes, label_column="y")
        if fits:
            recipe.check_labels(labels_for(task))
        else:
            with pytest.raises(ConfigurationError, match=f"task: {task} does not go with .* 'y'"):
                recipe.check_labels(labels_for(task))
    words = ["Unknown", " (unknown) ", "<None>", "[k.A.]", "known", "no"]
    assert [line.split("'")[1] for line in unlabelled_words("y", words)] == words[:4]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("version = 1", "version = 2", "version: got 2; expected 1, which this version reads"),
        ("mean = 0.5", "mean = 0.25", "digest: got '.*; expected .*leave the line out"),
        ("mean = 0.5", "mean = nan", "mean: got nan; expected a finite number"),
        ("deviation = 2.0", "deviation = 0", "deviation: got 0.0; expected a number above 0"),
        ("mean = 0.5", "means = 0.5", "numbers: mean: missing; expected column, deviation"),
        ('label-column = "y"', "", "recipe: label-column: missing; expected categories, classes"),
        ('column = "b"', 'column = "a"', "column: got 'a'; expected each column once"),
        ('"AT"', '"DE"', "values: got .*; expected each text once"),
        ('"AT"', "1", "values: got 1; expected a text"),
        ("indicator = true", "indicator = 1", "indicator: got 1; expected true or false"),
        ('"no",', "", "classes: got .*; expected at least two, or none"),
        ("mean = 0.5", "mean = true", "mean: got True; expected a finite number"),
        ("mean = 0.5", f"mean = 1{'0' * 309}", "mean: got 1000.*; expected a finite number"),
        ("mean = 3.0", "mean = nan", "mean: got nan; expected a finite number"),
        ("deviation = 4.0", "deviation = 0", "deviation: got 0.0; expected a number above 0"),
        ('"1970-01-01"', '"2000-01-01"', "since: got '2000-01-01'; expected 1970-01-01"),
    ],
)
def test_recipes_that_are_none_are_refused(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    number = NumberColumn(
        column="a", logarithm=False, mean=0.5, deviation=2.0, missing=None, indicator=True
    )
    recipe = FeatureRecipe(
        key_column="k",
        label_column="y",
        classes=("no", "yes"),
        numbers=(number,),
        dates=(DateColumn(column="c", mean=3.0, deviation=4.0, indicator=False),),
        categories=(CategoryColumn(column="b", values=("AT", "DE"), indicator=False),),
    )
    text = recipe.to_toml()
    assert old in text
    path = tmp_path / "recipe.toml"
    path.write_text(text.replace(old, new))
    with pytest.raises(ConfigurationError) as caught:
        read_recipe(path)
    assert re.match(f"{re.escape(str(path))}: {expected}", str(caught.value))


# ---- types of nodes -----------------------------------------------------------------------------


def _typed(tmp_path: Path) -> FeatureRecipe:
    accounts = _recipe(_summary(tmp_path / "accounts.csv", LINES))
    shops, _ = fit_recipe(
        _summary(tmp_path / "shops.csv", ["s,a", "t,b"], head="id,name", label=""),
        may_lack_columns=True,
    )
    types = (("shops", shops), ("accounts", accounts.with_classes(())))
    return FeatureRecipe(classes=accounts.classes, types=types)


def test_recipe_of_types_is_read_as_it_was_written(tmp_path: Path) -> None:
    recipe = _typed(tmp_path)
    path = tmp_path / "recipe.toml"
    path.write_text(recipe.to_toml())
    again = read_recipe(path)
    assert again.digest == recipe.digest
    assert [kind for kind, _ in again.types] == ["shops", "accounts"]
    assert again.types[1] == recipe.types[1]
    # One column says what a shop is.
    assert recipe.num_features == 1 + dict(recipe.types)["accounts"].num_features
    assert recipe.feature_names[:3] == ("shops/", "accounts/age", "accounts/age")
    other = replace(recipe, types=recipe.types[:1])
    assert other.digest != recipe.digest


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("[types.shops]", "[types.shops]\ncolour = 1", r"types.shops: colour: unknown key"),
        ("[types.shops]", "[[types.shops]]", r"types.shops: got .*; expected a table"),
        ("[types.shops]", "[numbers]", "numbers: got .*; expected it in each of the types alone"),
        ('key-column = "id"', "", "types.accounts: got .*; expected a key-column"),
        ('column = "age"', 'column = "id"', "column: got 'id'; expected each column once"),
        ("deviation = ", "deviation = -", "deviation: got -.*; expected a number above 0"),
    ],
)
def test_recipe_of_types_that_is_damaged_is_refused(
    tmp_path: Path, old: str, new: str, told: str
) -> None:
    text = _typed(tmp_path).to_toml()
    text = re.sub(r"(?m)^digest = .*$", "", text)
    assert old in text
    path = tmp_path / "recipe.toml"
    path.write_text(text.replace(old, new))
    with pytest.raises(ConfigurationError, match=told):
        read_recipe(path)
