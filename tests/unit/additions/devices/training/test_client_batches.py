from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from retexo_fl.additions.devices.sampling.adjacency import Adjacency
from retexo_fl.additions.devices.training.client_batches import client_graph, workloads_folder
from tests.support.sampled import small_client


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sparse", [False, True])
def test_samplers_read_the_edges_and_features_of_the_stage(dtype: str, sparse: bool) -> None:
    made = small_client("sage", dtype=dtype)
    inputs = made.inputs
    if sparse:
        inputs = replace(inputs, own=csr_array(made.rows))
    graph = client_graph(inputs, made.nodes)
    np.testing.assert_array_equal(graph.rows, made.rows)
    assert graph.rows.dtype == dtype
    for node in range(made.inputs.num_nodes):
        start, stop = made.inputs.indptr[node : node + 2]
        first, last = graph.adjacency.indptr[node : node + 2]
        neighbours = graph.adjacency.indices[first:last]
        np.testing.assert_array_equal(neighbours, np.sort(made.inputs.indices[start:stop]))
    np.testing.assert_array_equal(graph.adjacency.degrees, made.inputs.degrees)
    copy = type(graph).of(graph.arrays())
    assert isinstance(copy.adjacency, Adjacency)
    np.testing.assert_array_equal(copy.train, graph.adjacency.near_together(made.nodes.train))


def test_nodes_of_peers_are_no_business_of_samplers() -> None:
    made = small_client("sage")
    slots = replace(
        made.inputs, received=torch.zeros(1, 5), slot_hashes=np.zeros(1, dtype=np.uint64)
    )
    with pytest.raises(AssertionError, match="samplers know no nodes of peers"):
        client_graph(slots, made.nodes)


def test_workloads_are_kept_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert workloads_folder() == tmp_path / "retexo-fl" / "workloads"
    assert (tmp_path / "retexo-fl" / "workloads").is_dir()


def test_a_user_who_may_write_nowhere_keeps_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "retexo-fl").write_text("a file where the folder would be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert workloads_folder() is None
