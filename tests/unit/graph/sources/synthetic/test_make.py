"""Whole synthetic graphs."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from retexo_fl.errors import DatasetError
from retexo_fl.graph import Features, load_dataset
from retexo_fl.graph.sources.datasets import count_dataset_values
from retexo_fl.graph.sources.synthetic import make_synthetic


def test_a_graph_has_what_was_asked_for() -> None:
    graph = make_synthetic("synthetic:nodes=3001,edges=9000,classes=5,features=12,homophily=0.7")
    assert (graph.num_nodes, graph.num_edges) == (3001, 9000)
    assert (graph.num_features, graph.num_classes) == (12, 5)
    assert graph.published_split is None
    assert np.bincount(graph.labels).tolist() == [600, 600, 600, 600, 601]
    edges = graph.edge_list()
    assert (graph.labels[edges[0]] == graph.labels[edges[1]]).mean() == 0.7


def test_node_numbers_tell_nothing() -> None:
    graph = make_synthetic("synthetic:nodes=6000")
    numbers = np.arange(6000)
    assert abs(np.corrcoef(numbers, graph.labels)[0, 1]) < 0.05
    assert abs(np.corrcoef(numbers, graph.degrees)[0, 1]) < 0.05


def test_the_same_name_gives_the_same_bits() -> None:
    for name in ("synthetic:nodes=2000", "synthetic:nodes=2000,words=8,seed=3"):
        first, again = (load_dataset(name, data_dir=None) for _ in range(2))
        assert first.name == name
        np.testing.assert_array_equal(first.indices, again.indices)
        np.testing.assert_array_equal(first.labels, again.labels)
        np.testing.assert_array_equal(_dense(first.features), _dense(again.features))


def _dense(features: Features) -> np.ndarray:
    return features if isinstance(features, np.ndarray) else np.asarray(features.toarray())


def test_features_do_not_change_the_edges() -> None:
    plain, wide = (make_synthetic(f"synthetic:nodes=2000{more}") for more in ("", ",features=9"))
    np.testing.assert_array_equal(plain.indices, wide.indices)
    np.testing.assert_array_equal(plain.labels, wide.labels)


def test_a_small_preset_can_be_made() -> None:
    graph = make_synthetic("synthetic:products,nodes=24490,features=8")
    assert graph.num_edges == round(24490 * 61_859_140 / 2_449_029)
    assert graph.num_classes == 47
    edges = graph.edge_list()
    same = (graph.labels[edges[0]] == graph.labels[edges[1]]).mean()
    assert same == pytest.approx(0.81, abs=1e-5)


def test_more_than_memory_holds_is_told() -> None:
    name = "synthetic:nodes=1000000,edges=1000,features=1000"
    with _memory_for(2**30), pytest.raises(DatasetError) as caught:
        make_synthetic(name)
    assert re.fullmatch(
        f"{name}: 1000 edges.* 1000000 x 1000 features.*memory.*", str(caught.value)
    )


@contextmanager
def _memory_for(more_bytes: int) -> Iterator[None]:
    """Let this process reserve only so much more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_synthetic_graphs_have_no_attributes() -> None:
    for ask in (
        lambda: load_dataset("synthetic", data_dir=None, attributes=("site",)),
        lambda: count_dataset_values("synthetic:reddit", "site", data_dir=None),
    ):
        with pytest.raises(DatasetError, match="has no attribute 'site' of nodes"):
            ask()
