"""What predicts takes what trained: every form of a graph, without labels, and without edges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import polars as pl
import torch

import retexo_fl

NODES = 24


def _graph(features: np.ndarray, labels: np.ndarray | None) -> nx.Graph:
    graph = nx.cycle_graph(NODES)
    for node in graph:
        graph.nodes[node]["x"] = features[node]
        if labels is not None:
            graph.nodes[node]["y"] = int(labels[node])
    return graph


def test_every_form_is_predicted_alike_without_labels_and_without_edges(tmp_path: Path) -> None:
    labels = np.arange(NODES) % 2
    features = np.random.default_rng(0).normal(size=(NODES, 3)) + labels[:, None]
    run = retexo_fl.run(
        graph=_graph(features, labels),
        clients=2,
        rounds=1,
        model="gcn",
        split="random:0.4/0.3/0.3",
        out=tmp_path / "run",
        quiet=True,
    )
    graph, model = _graph(features, None), run.model()
    ends = np.array(graph.edges).T
    columns = {f"x{place}": column for place, column in enumerate(features.T)}
    nodes = pd.DataFrame({"key": np.arange(NODES), **columns})
    edges = pd.DataFrame({"source": ends[0], "target": ends[1]})
    forms: dict[str, Any] = {
        "networkx": graph,
        "scipy": (nx.to_scipy_sparse_array(graph), features),
        "dict": {"x": features, "edge_index": ends},
        "pandas": (nodes, edges),
        "polars": (pl.from_pandas(nodes), pl.from_pandas(edges)),
    }
    expected = model(forms["dict"])
    for name, form in forms.items():
        torch.testing.assert_close(model(form), expected, msg=name)
        predictions = run.predict(form, out=tmp_path / name, quiet=True)
        assert predictions.summary["nodes"] == NODES
    named = run.predict(nodes=nodes, edges=edges, out=tmp_path / "named", quiet=True)
    assert named.files[0].read_bytes() == (tmp_path / "pandas" / named.files[0].name).read_bytes()
    alone = model({"x": features})
    assert not torch.equal(alone, expected)
    torch.testing.assert_close(model((nodes, None)), alone)
    assert run.predict(nodes=nodes, out=tmp_path / "alone", quiet=True).summary["nodes"] == NODES
