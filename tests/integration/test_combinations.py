"""Kinds of graphs with every other choice: they train together, or one line says why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import retexo_fl
from retexo_fl.errors import InputError
from tests.support.typed_graphs import BANK

NODES = 60
TINY: dict[str, Any] = {"clients": 3, "rounds": 2, "hidden": 8, "quiet": True}


def _bare() -> dict[str, np.ndarray]:
    """Return a graph whose nodes have no features."""
    rng = np.random.default_rng(0)
    ends = np.sort(rng.integers(0, NODES, (2, 200)), axis=0)
    ends = np.unique(ends[:, ends[0] < ends[1]], axis=1)
    return {"edge_index": ends, "y": np.arange(NODES) % 3}


def _dated() -> dict[str, Any]:
    """Return the same graph with features of nodes, and edges of three days."""
    bare = _bare()
    features = np.eye(3)[bare["y"]] + np.random.default_rng(1).normal(size=(NODES, 3))
    return {**bare, "x": features, "edge_time": np.arange(bare["edge_index"].shape[1]) % 3}


GRAPHS: dict[str, dict[str, Any]] = {
    "typed": BANK,
    "typed taught": {**BANK, "unlabelled_types": "refined"},
    "typed far": {**BANK, "basis_rows": "far"},
    "typed attention": {**BANK, "model": "rel-gat"},
    "typed bases": {**BANK, "model": "rel-gcn", "num_bases": 2},
    "columns": {"graph": _bare(), "split": "random:0.4/0.3/0.3"},
    "labels": {"graph": _bare(), "split": "random:0.4/0.3/0.3", "structure": "labels"},
    "cuts": {"graph": _dated(), "split": "random:0.4/0.3/0.3", "edges_before": "1/2/3"},
    "degrees": {"graph": _bare(), "split": "random:0.4/0.3/0.3", "structure": "degrees"},
}
WAYS: tuple[dict[str, Any], ...] = (
    *({"profile": name} for name in ("lean", "retexo", "one-shot", "end-to-end")),
    *({"algorithm": name} for name in ("bns", "drop", "propagation")),
    {"algorithm": "central", "clients": 1},
    {"algorithm": "central", "clients": 1, "sampler": "neighbour", "fanouts": "3/3"},
    {"secure_aggregation": "masked", "metric": "macro-f1"},
    {"secure_aggregation": "masked", "profile": "one-shot"},
    # None of these has to do with how clients' links are modelled, or who has which nodes.
    {
        **{"metric": "roc-auc", "class_weights": "balanced", "loss": "focal:2"},
        **{"links": "4g", "partitioner": "louvain"},
    },
    {"local_steps": 3},
    {"boundary_plan": "cover", "profile": "retexo"},
    {"layers": 3, "codec": "fixed"},
    {"task": "links", "split": "auto"},
    {"missing_peers": "drop"},
)
#: What a kind of graph does not go with, by a word of the way; in the line that says so.
REFUSED: dict[tuple[str, str], str] = {
    ("typed attention", "one-shot"): "solver: ridge does not go with model rel-gat, which is not",
    (
        "typed bases",
        "one-shot",
    ): "solver: ridge does not go with num-bases 2, since relations share",
    ("typed", "propagation"): "algorithm: propagation does not go with model 'rel-",
    ("typed", "neighbour"): "sampler: neighbour does not go with nodes of several types",
    ("typed", "links"): "relation: got ''; expected the one whose edges are to be learned: owns,",
    ("cuts", "links"): "edges-before: 1/2/3 does not go with task links",
    ("columns", "drop of peers"): "missing-peers: drop does not go with structure columns",
    ("labels", "drop of peers"): "missing-peers: drop does not go with structure labels",
    ("labels", "links"): "structure: labels counts train nodes of each class",
}


def _words(way: dict[str, Any]) -> set[str]:
    peers = {"drop of peers"} if way.get("missing_peers") == "drop" else set()
    return {str(value) for key, value in way.items() if key != "missing_peers"} | peers


def _refusals(kind: str, way: dict[str, Any]) -> list[str]:
    of_kind, words = kind.partition(" ")[0], _words(way)
    return [told for (of, word), told in REFUSED.items() if of in {of_kind, kind} and word in words]


PAIRS = [(kind, way) for kind in GRAPHS for way in WAYS]


@pytest.mark.devices
@pytest.mark.parametrize(
    ("kind", "way"), [(kind, way) for kind, way in PAIRS if _refusals(kind, way)], ids=str
)
def test_kinds_of_graphs_say_what_they_do_not_go_with(
    tmp_path: Path, kind: str, way: dict[str, Any]
) -> None:
    with pytest.raises(InputError) as caught:
        retexo_fl.run(**{**TINY, **GRAPHS[kind], **way, "out": tmp_path / "run"})
    assert _refusals(kind, way)[0] in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


#: By day these go with all else, and the others with each of it once: they are typed or columns,
#: too, made in another way.
OF_DAY = ("typed", "columns")
TRAINED = [(kind, way) for kind, way in PAIRS if not _refusals(kind, way)]


@pytest.mark.devices
@pytest.mark.parametrize(
    ("kind", "way"), [(kind, way) for kind, way in TRAINED if kind in OF_DAY], ids=str
)
def test_some_kinds_of_graphs_go_with_all_else(
    tmp_path: Path, kind: str, way: dict[str, Any]
) -> None:
    _trains(tmp_path, kind, way)


@pytest.mark.devices
@pytest.mark.each_choice
@pytest.mark.parametrize(
    ("kind", "way"), [(kind, way) for kind, way in TRAINED if kind not in OF_DAY], ids=str
)
def test_other_kinds_of_graphs_go_with_all_else(
    tmp_path: Path, kind: str, way: dict[str, Any]
) -> None:
    _trains(tmp_path, kind, way)


def _trains(tmp_path: Path, kind: str, way: dict[str, Any]) -> None:
    keys = {**TINY, **GRAPHS[kind], **way, "out": tmp_path / "run"}
    result = retexo_fl.run(**keys).result
    value = result.test_accuracy if result.metric is None else result.metric.value
    assert value is not None
    assert 0 <= value <= 1
