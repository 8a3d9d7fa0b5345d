"""The benches that compare with other libraries: what they compare is the same work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from scipy.sparse import csr_array

from retexo_fl.graph import Graph, Split, load_dataset, make_split
from retexo_fl.simulation.inline_grid import InlineGrid
from tests.bench.peers.compared import Curve, ratios_of
from tests.bench.peers.spent import tree_s
from tests.bench.peers.training import Point
from tests.bench.sampler_peers import Drawer
from tests.bench.sampler_process import GNS, LIBRARIES, NEIGHBOUR, SHADOW

gcn = pytest.importorskip("tests.bench.peers.gcn", reason="torch_geometric is not installed")
#: PyTorch says once in a process that sparse matrices of rows may still change.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:Sparse .*:UserWarning")]

flower_app = pytest.importorskip("tests.bench.peers.flower_app")


@pytest.fixture
def graph() -> Graph:
    return load_dataset("synthetic:nodes=60,degree=8,features=200,classes=3,words=5", data_dir=None)


@pytest.fixture
def split(graph: Graph) -> Split:
    owners = np.zeros(graph.num_nodes, np.int32)
    return make_split(graph, owners, split="random:0.4/0.2/0.4", seed=0)


@pytest.mark.parametrize("words", [5, 50])
def test_peers_model_is_the_gcn_of_the_edges_among_a_clients_nodes(words: int) -> None:
    name = f"synthetic:nodes=60,degree=8,features=200,classes=3,words={words}"
    graph = load_dataset(name, data_dir=None)
    owners = np.zeros(graph.num_nodes, np.int32)
    split = make_split(graph, owners, split="random:0.4/0.2/0.4", seed=0)
    nodes = np.arange(0, 60, 2)
    task = gcn.Task.of(graph, split, nodes)
    assert (task.rows.layout == torch.strided) == (words == 50)
    model = gcn.Gcn(200, 4, 3).eval()
    edges = np.eye(60)
    edges[np.repeat(np.arange(60), np.diff(graph.indptr)), graph.indices] = 1.0
    inside = edges[np.ix_(nodes, nodes)]
    assert 0 < inside.sum() - len(nodes) < edges.sum() - 60
    factors = inside.sum(axis=1) ** -0.5
    mean = torch.from_numpy((factors[:, None] * inside * factors).astype(np.float32))
    rows = torch.from_numpy(csr_array(graph.features)[nodes].toarray())
    first, second = model.first, model.second
    hidden = (mean @ rows @ first.lin.weight.t() + first.bias).relu()
    expected = mean @ hidden @ second.lin.weight.t() + second.bias
    torch.testing.assert_close(model(task), expected, rtol=1e-4, atol=1e-5)


def test_part_that_is_read_again_is_the_one_that_was_written(
    graph: Graph, split: Split, tmp_path: Path
) -> None:
    task = gcn.Task.of(graph, split)
    task.save(tmp_path / "part.npz")
    read = gcn.Task.load(tmp_path / "part.npz")
    model = gcn.Gcn(200, 4, 3).eval()
    assert torch.equal(model(task), model(read))
    assert torch.equal(task.masks, read.masks)
    assert torch.equal(task.labels, read.labels)


def test_fedavg_on_flower_trains_on_all_clients_and_counts_their_nodes(
    graph: Graph, split: Split, tmp_path: Path
) -> None:
    owners = np.arange(60) % 3
    for client in range(3):
        part = gcn.Task.of(graph, split, (owners == client).nonzero()[0])
        part.save(tmp_path / f"client-{client}.npz")
    torch.manual_seed(0)
    model = gcn.Gcn(200, 8, 3)
    seen: list[tuple[int, list[int]]] = []
    config: dict[str, str | int] = {"folder": str(tmp_path), "hidden": 8, "classes": 3, "steps": 5}
    app = flower_app.make_server_app(model, config, 12, lambda *what: seen.append(what))
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    app(InlineGrid(flower_app.client_app, 3, {}), context)
    assert [number for number, _ in seen] == list(range(1, 13))
    assert {tuple(sums[1::2]) for _, sums in seen} == {(split.val.sum(), split.test.sum())}
    # It learns: more of the held-out nodes than the largest class of three has.
    right, nodes = (sum(seen[-1][1][place::2]) for place in (0, 1))
    assert right > nodes / 2


def test_processor_time_of_descendants_counts_while_they_run_and_when_they_ended() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True); input()"
    before = tree_s()
    with subprocess.Popen(
        [sys.executable, "-S", "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert 0.25 < tree_s() - before < 5.0
        child.communicate("\n")
    assert 0.25 < tree_s() - before < 5.0


def _curve(*points: tuple[float, float, float, int]) -> Curve:
    return Curve(
        points=[
            Point(validation=validation, cpu_s=cpu_s, wall_s=wall_s, moved_bytes=moved)
            for validation, cpu_s, wall_s, moved in points
        ],
        test=0.5,
    )


def test_ratio_is_of_the_first_points_that_are_as_accurate_as_the_peers_best() -> None:
    peer = _curve((0.5, 1.0, 2.0, 10), (0.795, 4.0, 6.0, 30), (0.8, 9.0, 9.0, 90))
    ours = _curve((0.7, 1.0, 1.0, 1), (0.79, 2.0, 2.0, 3), (0.9, 3.0, 3.0, 5))
    curves = {"peer": [peer, peer], "ours": [ours, ours]}
    rows = ratios_of("g", "peer", "ours", curves, within=0.01)
    assert [row.spread.median for row in rows] == [2.0, 3.0, 10.0]
    assert [row.met for row in rows] == [True, True, True]


def test_ratio_of_what_is_never_as_accurate_is_zero_and_missed() -> None:
    peer, ours = _curve((0.8, 1.0, 1.0, 0)), _curve((0.7, 0.1, 0.1, 7))
    rows = ratios_of("g", "peer", "ours", {"peer": [peer] * 2, "ours": [ours] * 2}, within=0.01)
    # A peer that moves no bytes is not compared in them.
    assert [(row.spread.median, row.met) for row in rows] == [(0.0, False)] * 2


def test_samplers_of_a_process_count_nodes_and_edges() -> None:
    nodes = 100
    ring = np.arange(nodes)
    indices = np.sort(np.stack(((ring - 1) % nodes, (ring + 1) % nodes), axis=1)).ravel()
    indptr = np.arange(0, 2 * nodes + 1, 2)
    ours, _ = LIBRARIES["retexo_fl"]
    gns, _ = LIBRARIES["retexo_fl GNS"]
    draws = ours(indptr, indices.astype(np.int32)) | gns(indptr, indices.astype(np.int32))
    root = np.array([7])
    # Three layers, each of all neighbours of 1, 3 and 5 targets.
    assert draws[NEIGHBOUR](root, 0) == (7, 18)
    # Two hops, and the edges among these five nodes.
    assert draws[SHADOW](root, 0) == (5, 8)
    assert draws[GNS](root, 0)[0] <= 7


def test_library_that_is_not_installed_is_left_out_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "indptr.npy", np.zeros(2, np.int64))
    np.save(tmp_path / "indices.npy", np.zeros(0, np.int32))
    monkeypatch.delenv("BENCH_DGL_PYTHON", raising=False)
    with Drawer("GraphBolt", tmp_path) as drawer:
        if "missing" not in drawer.facts:
            pytest.skip("DGL is installed")
        assert "dgl" in drawer.facts["missing"]
