"""Tables through a recipe: features and classes, and cells that it has no place for."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from retexo_fl.errors import ConfigurationError, TableError
from retexo_fl.graph.recipes import FeatureRecipe
from retexo_fl.graph.recipes.recipe import CategoryColumn, NumberColumn
from retexo_fl.graph.sources.tables import NodeColumns, NodeTable, read_node_table
from tests.support.tables import write_table

AGE = NumberColumn(
    column="age", logarithm=False, mean=40.0, deviation=10.0, missing=None, indicator=True
)
SIZE = NumberColumn(
    column="size", logarithm=True, mean=1.0, deviation=2.0, missing=0.0, indicator=False
)
COUNTRY = CategoryColumn(column="country", values=("AT", "DE"), indicator=True)
SITE = CategoryColumn(column="site", values=("n",), indicator=False)
RECIPE = FeatureRecipe(
    key_column="id",
    label_column="fraud",
    classes=("no", "yes"),
    numbers=(AGE, SIZE),
    categories=(COUNTRY, SITE),
)
HEAD = "id,fraud,age,size,country,site"


def _nodes(tmp_path: Path, *lines: str, recipe: FeatureRecipe = RECIPE) -> NodeTable:
    path = tmp_path / "n.csv"
    path.write_text("\n".join([HEAD, *lines]))
    return read_node_table(path, NodeColumns(recipe=recipe))


def test_features_and_classes_are_what_the_recipe_says(tmp_path: Path) -> None:
    nodes = _nodes(tmp_path, "a,yes,50,0,DE,n", "b,,NA,-1,,n", "c,no,40,,FR,n")
    assert nodes.keys.tolist() == [b"a", b"b", b"c"]
    assert nodes.labels.tolist() == [1, -1, 0]
    low = (math.log1p(0) - 1) / 2
    assert isinstance(nodes.features, np.ndarray)
    np.testing.assert_allclose(
        nodes.features,
        [
            # age, its indicator, size; AT, DE, other, none; n, other
            [1, 0, low, 0, 1, 0, 0, 1, 0],
            [0, 1, (-math.log1p(1) - 1) / 2, 0, 0, 0, 1, 1, 0],
            [0, 0, low, 0, 0, 1, 0, 1, 0],
        ],
        rtol=1e-6,
    )
    assert nodes.features.dtype == np.float32
    assert nodes.recipe is RECIPE


@pytest.mark.parametrize("fmt", ["tsv", "parquet", "npz"])
def test_all_formats_have_the_same_features(tmp_path: Path, fmt: str) -> None:
    columns = {
        "id": np.array(["a", "b"]),
        "fraud": np.array(["yes", ""]),
        "age": np.array([50.25, np.nan]) if fmt != "tsv" else np.array(["50.25", "nan"]),
        "size": np.array([3, 4]),
        "country": np.array(["DE", ""]),
        "site": np.array(["n", "s"]),
    }
    expected = _nodes(tmp_path, "a,yes,50.25,3,DE,n", "b,,,4,,s")
    path = write_table(tmp_path / f"n.{fmt}", columns)
    found = read_node_table(path, NodeColumns(recipe=RECIPE))
    np.testing.assert_array_equal(found.features, expected.features)
    np.testing.assert_array_equal(found.labels, expected.labels)


def test_what_the_recipe_has_no_place_for_is_said_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        nodes = _nodes(tmp_path, "a,yes,50,0,FR,n", "b,no,1,1,IT,", "c,no,1,1,IT,n")
    path = tmp_path / "n.csv"
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: country: 3 rows with 2 texts that the recipe does not name, which count as "
        "other: 'IT', 'FR'",
        f"{path}: site: 1 row without a value, as no row was when the recipe was made",
    ]
    assert isinstance(nodes.features, np.ndarray)
    assert nodes.features[1, 7:].tolist() == [0, 0]


def test_columns_without_use_are_said_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "n.csv"
    path.write_text("key,label,x0,note,weight\na,0,1,hi,2\n")
    with caplog.at_level(logging.WARNING):
        read_node_table(path)
        read_node_table(path, attributes=("note", "weight"))
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: columns not used: 'note', 'weight'"
    ]


def test_all_problems_of_a_table_are_told_together(tmp_path: Path) -> None:
    lines = ["a,yes,old,0,DE,n", "a,maybe,1,1e39,DE,n", ",no,1,1,DE,n", "d,no,x,y,DE,n"]
    with pytest.raises(TableError) as caught:
        _nodes(tmp_path, *lines)
    assert list(caught.value.problems) == [
        f"{tmp_path}/n.csv: {problem}"
        for problem in (
            "line 2: age: got 'old'; expected a number, or nothing",
            "line 3: fraud: got 'maybe'; expected a class of the recipe: 'no', 'yes'",
            "line 3: size: got 1e+39; expected a finite float32 number, or nothing",
            "line 3: id: b'a' is already in line 2; expected unique keys".replace("b'a'", "'a'"),
            "line 4: id: is empty; expected the key of a node",
            "line 5: age: got 'x'; expected a number, or nothing",
            "line 5: size: got 'y'; expected a number, or nothing",
        )
    ]


def test_no_more_problems_are_told_than_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(TableError) as caught:
        _nodes(tmp_path, *(f"k{row},yes,old,0,DE,n" for row in range(5000)))
    assert len(caught.value.problems) == 21
    assert caught.value.problems[19].startswith(f"{tmp_path}/n.csv: line 21: age: got 'old'")
    assert caught.value.problems[20] == f"{tmp_path}/n.csv: 4980 problems more"


def test_missing_columns_are_named_together(tmp_path: Path) -> None:
    path = tmp_path / "n.csv"
    path.write_text("id,fraud,age,colour\na,no,1,red\n")
    with pytest.raises(TableError) as caught:
        read_node_table(path, NodeColumns(recipe=RECIPE))
    assert str(caught.value) == (
        f"{path}: columns 'size', 'country', 'site' are missing; the file has 'id', 'fraud', "
        "'age', 'colour'"
    )


def test_columns_may_have_other_names_with_and_without_a_recipe(tmp_path: Path) -> None:
    path = tmp_path / "n.csv"
    path.write_text("xid,fraud,x0\na,1,2\n")
    nodes = read_node_table(path, NodeColumns(key="xid", label="fraud"))
    assert (nodes.keys.tolist(), nodes.labels.tolist()) == ([b"a"], [1])
    assert isinstance(nodes.features, np.ndarray)
    assert nodes.features.tolist() == [[2]]
    with pytest.raises(ConfigurationError, match="key-column: got 'xid'; expected 'id', as in the"):
        read_node_table(path, NodeColumns(key="xid", recipe=RECIPE))


def test_labels_that_are_numbers_are_read_as_without_a_recipe(tmp_path: Path) -> None:
    numbered = replace(RECIPE, classes=())
    assert _nodes(tmp_path, "a,1,1,1,DE,n", "b,,1,1,DE,n", recipe=numbered).labels.tolist() == [
        1,
        -1,
    ]
    with pytest.raises(TableError, match="fraud: got 'yes'; expected a class: a whole number"):
        _nodes(tmp_path, "a,yes,1,1,DE,n", recipe=numbered)


def test_values_that_overflow_after_scaling_are_refused(tmp_path: Path) -> None:
    tiny = replace(RECIPE, numbers=(replace(AGE, deviation=1e-9), SIZE))
    with pytest.raises(TableError, match=r"line 2: age: got 1e\+39; expected a finite float32"):
        _nodes(tmp_path, "a,yes,1e30,1,DE,n", recipe=tiny)


def test_many_categories_are_kept_sparse(tmp_path: Path) -> None:
    many = replace(COUNTRY, values=("AT", "DE", *(f"c{place}" for place in range(600))))
    wide = replace(RECIPE, categories=(many, SITE))
    nodes = _nodes(tmp_path, "a,yes,50,0,DE,n", "b,no,,1,c599,n", recipe=wide)
    assert isinstance(nodes.features, csr_array)
    assert nodes.features.shape == (2, 3 + 604 + 2)
    assert nodes.features[1, 3 + 601] == 1
