"""Attributes of nodes: the same bytes from every source, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from retexo_fl.errors import DatasetError
from retexo_fl.graph.sources.attributes import (
    attribute_names,
    attribute_texts,
    count_values,
    demand_attributes,
)
from tests.unit.graph.graphs import small_graph


@pytest.mark.parametrize(
    ("partitioner", "names"),
    [
        ("attribute:school", ("school",)),
        ("attribute:a:b", ("a:b",)),
        ("random", ()),
        ("file:attribute:x", ()),
    ],
)
def test_attribute_names_of_a_partitioner(partitioner: str, names: tuple[str, ...]) -> None:
    assert attribute_names(partitioner) == names


@pytest.mark.parametrize(
    "values",
    [
        np.array(["10", "9", "ü"]),
        np.array([b"10", b"9", "ü".encode()]),
        np.array([10, np.int64(9), "ü"], dtype=object),
        ["10", "9", "ü"],
    ],
)
def test_attribute_texts_are_the_same_bytes_in_every_form(values: Any) -> None:
    found = attribute_texts("here", {"site": values}, num_nodes=3)["site"]
    assert found.tolist() == [b"10", b"9", "ü".encode()]
    assert found.dtype.kind == "S"


def test_attribute_texts_of_integers_are_decimal() -> None:
    found = attribute_texts("here", {"site": np.array([10, -9], dtype=np.int8)}, num_nodes=2)
    assert found["site"].tolist() == [b"10", b"-9"]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (np.array([0.5, 1.0]), "here: site: got float64 of shape (2,); expected a text or a whole"),
        (np.array([[1, 2]]), "here: site: got int64 of shape (1, 2); expected a text or a whole"),
        (np.array([True, False]), "here: site: got bool of shape (2,)"),
        (np.array([1, 2, 3]), "here: site: got shape (3,); expected (2)"),
        (np.array(["a", ""]), "here: site: row 1 is empty; expected a value for each node"),
        (np.array(["a", "b\0c"]), "here: site: row 1 holds a NUL character"),
        (np.array([1, None], dtype=object), "here: site: row 1 is None; expected text or a whole"),
        (np.array([True, "x"], dtype=object), "here: site: row 0 is True; expected text"),
    ],
)
def test_attribute_texts_name_what_is_wrong(values: np.ndarray, sentence: str) -> None:
    with pytest.raises(DatasetError) as caught:
        attribute_texts("here", {"site": values}, num_nodes=2)
    assert str(caught.value).startswith(sentence)


def test_values_are_counted_as_bytes() -> None:
    assert count_values("here", "site", np.array(["1", "01", "1"])) == 2


def test_demand_attributes_lists_what_there_is() -> None:
    demand_attributes("here", {"a", "b"}, ("b",))
    with pytest.raises(DatasetError, match="here: .*attribute 'c'.*: a, b$"):
        demand_attributes("here", {"b", "a"}, ("a", "c"))
    with pytest.raises(DatasetError, match="there is: none"):
        demand_attributes("here", (), ("a",))


def test_a_graph_keeps_attributes_as_bytes() -> None:
    graph = small_graph(attributes={"site": np.array([2, 10, 2, 2, 2, 2])})
    assert graph.attributes["site"].tolist() == [b"2", b"10", b"2", b"2", b"2", b"2"]
    assert dict(small_graph().attributes) == {}
    with pytest.raises(DatasetError, match=r"small: site: got shape \(2,\); expected \(6\)"):
        small_graph(attributes={"site": np.array(["a", "b"])})
