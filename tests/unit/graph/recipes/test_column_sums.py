"""Tables added up as long numbers: the recipe of all summaries, and what is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.errors import ConfigurationError, RemoteProtocolError, SecureAggregationRefused
from retexo_fl.graph.recipes import (
    FitOptions,
    TableColumns,
    TableSummary,
    fit_recipe,
    merge_columns,
    merge_summaries,
    number_of,
    sum_of_nothing,
    summary_of_sums,
)
from retexo_fl.graph.recipes.column_sums import ColumnKind
from retexo_fl.graph.recipes.moments import Moments, signed_logarithms
from retexo_fl.graph.recipes.summary import (
    MISSING_WORDS,
    MOST_TEXTS,
    ColumnSummary,
    LabelSummary,
)
from retexo_fl.masking.long_number import LongNumber

LEAST = 2


def table(columns: dict[str, ColumnSummary], *, rows: int, labels: str = "ab") -> TableSummary:
    return TableSummary(
        source="its table",
        key_column="key",
        label_column="label",
        label=LabelSummary(texts=frozenset(labels)),
        columns=columns,
        rows=rows,
    )


def numbers(values: Sequence[float], *, empty: int = 0, **words: int) -> ColumnSummary:
    moments = Moments.of(np.array(values, np.float64))
    logarithms = Moments.of(signed_logarithms(np.array(values, np.float64)))
    return ColumnSummary(empty=empty, words=words, numbers=moments, logarithms=logarithms)


def texts(empty: int = 0, **counts: int) -> ColumnSummary:
    return ColumnSummary(empty=empty, texts=counts)


def told(tables: Sequence[TableSummary]) -> TableColumns:
    """Return what all tables tell together, as it travels."""
    each = [TableColumns.of(one, LEAST) for one in tables]
    return TableColumns.parse(merge_columns(each).to_json().encode(), Path("server"))


def added(tables: Sequence[TableSummary], columns: TableColumns | None = None) -> LongNumber:
    asked = told(tables) if columns is None else columns
    total = sum_of_nothing(asked)
    for one in tables:
        total.add(number_of(one, TableColumns.of(one, LEAST), asked))
    return total


def summed(tables: Sequence[TableSummary]) -> TableSummary:
    return summary_of_sums(added(tables), told(tables))


#: The least and the largest of float64, whose squares are 2**-2148 and near 2**1024.
EXTREMES = (5e-324, -5e-324, 1e-308, 0.1, -0.0, 1.0, 1e154, -1.3e154)


@pytest.mark.parametrize("seed", range(4))
def test_the_recipe_of_sums_is_that_of_all_summaries_to_the_byte(seed: int) -> None:
    draws = random.Random(seed)
    tables = []
    for _ in range(3 + seed):
        count = draws.randrange(4, 40)
        spread = [draws.lognormvariate(0, 60) for _ in range(count)]
        extremes = [draws.choice(EXTREMES) for _ in range(count)]
        tables.append(
            table(
                {
                    "spread": numbers(spread, empty=2, NA=1, null=2),
                    "extremes": numbers(list(map(abs, extremes)), empty=5),
                    # Some have no number there at all.
                    "gone": numbers(spread[: draws.randrange(2)], empty=0)
                    + ColumnSummary(words={"NaN": 5}),
                    "land": texts(DE=draws.randrange(2, 9), AT=LEAST) + texts(empty=3),
                },
                rows=count + 5,
            )
        )
    rows = [one.rows for one in tables]
    # Every cell is one of a row.
    tables = [
        replace(
            one,
            columns={
                name: replace(column, empty=column.empty + row - _cells(column))
                for name, column in one.columns.items()
            },
        )
        for one, row in zip(tables, rows, strict=True)
    ]
    whole, found = merge_summaries(tables), summed(tables)
    assert found.rows == sum(rows)
    for name, column in whole.columns.items():
        assert found.columns[name].numbers == column.numbers
        assert found.columns[name].logarithms == column.logarithms
        assert found.columns[name].empty == column.empty
    for options in (FitOptions(least_count=3), FitOptions(logarithms=("spread", "extremes"))):
        recipe, said = fit_recipe(found, options)
        expected, expected_said = fit_recipe(whole, options)
        assert recipe.to_toml() == expected.to_toml()
        assert said == expected_said


def _cells(column: ColumnSummary) -> int:
    counts = [column.empty, column.numbers.count, *column.words.values(), *column.texts.values()]
    return sum(counts)


def test_sums_are_signed_whatever_stands_beside_them() -> None:
    tables = [
        table({"a": numbers([value, other]), "b": numbers([other, value])}, rows=2)
        for value, other in ((-1.0, -5e-324), (-2.0, 5e-324), (3.0, -1e154))
    ]
    assert summed(tables).columns["a"].numbers == merge_summaries(tables).columns["a"].numbers
    # Sums of nothing but zeros, and of the most that there are, on both sides.
    for values in pairwise([0.0, -1.3e154, 1.3e154, 0.0]):
        each = [table({"a": numbers(values)}, rows=2)] * 3
        assert summed(each).columns["a"].numbers == merge_summaries(each).columns["a"].numbers


def test_dates_are_added_up_as_dates() -> None:
    days = replace(numbers([3.0, 9.0]), are_dates=True)
    tables = [table({"d": days}, rows=2), table({"d": ColumnSummary(empty=2)}, rows=2)]
    assert told(tables).columns["d"] == ColumnKind(kind="days")
    assert summed(tables).columns["d"] == replace(
        days, empty=2, words=dict.fromkeys(MISSING_WORDS, 0)
    )


def test_equal_columns_are_equal_texts() -> None:
    names = [f"n{at}" for at in range(20)]
    columns = {name: texts(**dict.fromkeys(names, LEAST)) for name in reversed(names)}
    content = TableColumns.of(table(columns, rows=40), LEAST).to_json()
    found = json.loads(content)["columns"]
    assert [*found] == sorted(names)
    assert all(column["texts"] == sorted(names) for column in found.values())


def test_of_rare_texts_nothing_is_told_neither_name_nor_count() -> None:
    tables = [
        table({"name": texts(DE=4, secret=1), "land": texts(x=3, y=2)}, rows=5),
        table({"name": texts(DE=1, secret=1, FR=3), "land": texts(x=5)}, rows=5),
        table({"name": texts(empty=4, secret=1), "land": texts(x=4, y=1)}, rows=5),
    ]
    assert "secret" not in "".join(TableColumns.of(one, LEAST).to_json() for one in tables)
    found = summed(tables).columns["name"]
    # One node of the second client has DE: it is not counted.
    assert (found.texts, found.unnamed, found.empty) == ({"DE": 4, "FR": 3}, 4, 4)
    # A server that asks for it learns no more.
    columns = told(tables)
    named = replace(columns.columns["name"], texts=frozenset(("DE", "FR", "secret")))
    asked = replace(columns, columns={**columns.columns, "name": named})
    counts = summary_of_sums(added(tables, asked), asked).columns["name"].texts
    assert counts == {"DE": 4, "FR": 3, "secret": 0}
    recipe, said = fit_recipe(summed(tables), FitOptions(least_count=4))
    assert [category.values for category in recipe.categories] == [("x",), ("DE",)]
    assert [
        line for line in said if line.startswith("name: 4 rows with texts that no client names")
    ]


def test_a_column_of_rare_texts_alone_is_left_out_by_name() -> None:
    tables = [table({"id": texts(a=1, b=1), "n": numbers([1.0, at])}, rows=2) for at in range(3)]
    recipe, said = fit_recipe(summed(tables))
    assert not recipe.categories
    assert said == ("id: left out, as no text that a client names has 10 rows (--min-count)",)
    # One text that many have, beside others that are not named, is no constant.
    tables = [table({"id": texts(a=2, b=1)}, rows=3)] * 3
    assert fit_recipe(summed(tables), FitOptions(least_count=2))[0].categories[0].values == ("a",)


def test_too_many_texts_at_one_client_or_together_leave_the_column_out() -> None:
    half = {f"t{at}": 2 for at in range(MOST_TEXTS // 2 + 1)}
    other = {f"u{at}": 2 for at in range(MOST_TEXTS // 2 + 1)}
    rows = 2 * len(half)
    few = ColumnSummary(empty=rows - 2, texts={"x": 2})
    both = [ColumnKind(kind="texts", texts=frozenset(each)) for each in (half, [*other][:-2])]
    assert len((both[0] + both[1]).texts) == MOST_TEXTS
    for each in (
        [ColumnSummary(too_many_texts=True), few, few],
        [ColumnSummary(texts=half), ColumnSummary(texts=other), few],
    ):
        tables = [
            table({"t": column, "n": numbers([float(at)], empty=rows - 1)}, rows=rows)
            for at, column in enumerate(each)
        ]
        assert "t: left out, as it has more than 1,000" in fit_recipe(summed(tables))[1][0]


TABLES = [
    table({"a": numbers([1.0, 2.0]), "b": texts(x=2)}, rows=2),
    table({"a": ColumnSummary(empty=2), "b": texts(x=2)}, rows=2),
    table({"a": numbers([4.0, 2.0]), "b": texts(y=2)}, rows=2),
]


def changed(edit: Callable[[dict[str, Any]], object]) -> TableColumns:
    values = json.loads(told(TABLES).to_json())
    edit(values)
    return TableColumns.parse(json.dumps(values).encode(), Path("server"))


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda v: v["columns"].update(c={"kind": "none"}), "'c' is no column of its table"),
        (lambda v: v.update({"key-column": "id"}), "key-column: got 'id'; expected 'key'"),
        (lambda v: v.update({"label-column": "y"}), "label-column: got 'y'; expected 'label'"),
        (lambda v: v["columns"].update(a={"kind": "none"}), "'a': none without what its table"),
        (
            lambda v: v["columns"].update(a={"kind": "texts", "texts": []}),
            "'a': texts without what its table",
        ),
        (lambda v: v["columns"].update(b={"kind": "numbers"}), "'b': numbers without what"),
        (lambda v: v["columns"].update(a={"kind": "days"}), "'a': days without what its table"),
        (
            lambda v: v["columns"].update(b={"kind": "texts", "texts": ["y"]}),
            "'b': texts without what its table",
        ),
    ],
)
def test_a_client_adds_to_no_sums_of_other_columns(
    edit: Callable[[dict[str, Any]], object], sentence: str
) -> None:
    own = TableColumns.of(TABLES[0], LEAST)
    with pytest.raises(SecureAggregationRefused, match=f"^server: {sentence}"):
        number_of(TABLES[0], own, changed(edit))


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda v: v.update({"columns-version": 2}), "columns-version: got 2; expected 1"),
        (lambda v: v.pop("label"), "columns: label: missing"),
        (lambda v: v["columns"].update(a={"kind": "dates"}), "a: got 'dates'; expected one of"),
        (lambda v: v["columns"].update(a={"kind": "none", "texts": []}), "a: texts: unknown key"),
        (lambda v: v["columns"]["b"].update(texts=[3]), r"b: got \[3\]; expected a list of texts"),
        (
            lambda v: v["columns"]["b"].update(texts=[str(at) for at in range(MOST_TEXTS + 1)]),
            "b: got '1001 texts'; expected at most 1000",
        ),
    ],
)
def test_columns_that_are_none_are_refused(
    edit: Callable[[dict[str, Any]], object], sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"^server: {sentence}"):
        changed(edit)


def test_a_summary_that_no_table_has_adds_to_nothing() -> None:
    own = TABLES[0]
    third = replace(own.columns["a"].numbers, total=own.columns["a"].numbers.total / 7)
    # Of so many clients as are asked for the sum would lose its sign.
    large, huge = (
        replace(own.columns["a"].numbers, squares=Fraction(2) ** power) for power in (1034, 1036)
    )
    kept = replace(own.columns["a"], numbers=large)
    number_of(
        replace(own, columns={**own.columns, "a": kept}), TableColumns.of(own, LEAST), told(TABLES)
    )
    word = replace(own.columns["a"], words={"none": 1})
    for column, sentence in (
        (replace(own.columns["a"], numbers=third), "a: a sum is none of float64 numbers"),
        (replace(own.columns["a"], numbers=huge), "a sum is larger than any of float64 numbers"),
        (word, "a: 'none' cannot replace a missing number"),
    ):
        false = replace(own, columns={**own.columns, "a": column})
        with pytest.raises(ConfigurationError, match=f"^its table: {sentence}"):
            number_of(false, TableColumns.of(own, LEAST), told(TABLES))


def test_sums_of_less_than_nothing_are_refused() -> None:
    for columns, change in (
        ({}, -3),
        # One more node has a text than there are nodes.
        ({"b": texts(x=2)}, 1 << 8 * (9 * 8)),
    ):
        tables = [table(columns, rows=2)]
        total = added(tables)
        value = (total.value + change) % (1 << 8 * total.size)
        with pytest.raises(RemoteProtocolError, match="got -1; expected a whole number from 0"):
            summary_of_sums(LongNumber(size=total.size, value=value), told(tables))


def test_sums_that_no_tables_have_are_refused() -> None:
    columns, total = told(TABLES), added(TABLES)
    bits = 8 * total.size
    drawn = random.Random(0)
    for value in (
        *(drawn.getrandbits(bits) for _ in range(20)),
        # One more node, one less, and one without a cell.
        *(total.value + 1, total.value - 1, total.value + (1 << 72), 0xFF << bits - 8),
        # A mean square of 2**1040: behind rows, 7 kinds of cells without a number, count and sum.
        total.value + (1 << 8 * (9 * 9 + 266) + 2148 + 1040),
    ):
        with pytest.raises(
            RemoteProtocolError, match="^sums over all clients: .* of its own choice"
        ):
            summary_of_sums(LongNumber(size=total.size, value=value % (1 << bits)), columns)
