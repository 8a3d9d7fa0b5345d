"""``second-rows = none``: what peers get follows from no link inside the sender's part.

With ``class`` nothing but a few bits of a class does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch

import retexo_fl
from retexo_fl.channels import BlockKey, MemoryChannel
from retexo_fl.client.mailbox import Mailbox
from retexo_fl.client.preparation import make_parts
from retexo_fl.client.stage_rows import (
    as_corrected,
    bits_of_classes,
    classes_of_bits,
    fitted_reading,
    predicted_classes,
)
from retexo_fl.errors import ConfigurationError, RemoteProtocolError
from retexo_fl.graph.plan.boundary import BoundaryPlan
from retexo_fl.layers.base import StageInput
from retexo_fl.simulation.inline_engine import run_inline
from retexo_fl.training.stage_model import ModelShape, num_weights
from tests.integration.test_missing_peers import run_without_boundary
from tests.support.cli import CommandLine
from tests.support.runs import (
    configured,
    largest_difference,
    ledger_of,
    model_weights,
    train,
    train_over,
)
from tests.support.typed_graphs import BANK
from tests.support.ways import profile_keys

NODES: Final = 60
KEYS: Final[dict[str, Any]] = {
    **{"clients": 2, "layers": 3, "rounds": 2, "hidden": 8, "dropout": 0.0, "dtype": "float64"},
    "heads": 2,
    **{"split": "random:0.4/0.3/0.3", "partitioner": "attribute:side"},
}
LEAN: Final = profile_keys("lean", "rounds")


class Recorder(MemoryChannel):
    """Keeps what clients send each other, by who to whom, and before which stage."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: dict[tuple[int, int, int], bytes] = {}

    def send_block(self, key: BlockKey, frames: Sequence[bytes]) -> int:
        self.blocks[key.sender, key.receiver, key.layer] = b"".join(frames)
        return super().send_block(key, frames)


def written(folder: Path, name: str, edges: np.ndarray) -> Path:
    """Write a graph of two owners, whose nodes are even or odd."""
    rng = np.random.default_rng(3)
    weights, carried = rng.uniform(0.5, 2, (NODES, NODES)), rng.normal(size=(NODES, NODES, 2))
    classes = rng.integers(0, 3, NODES)
    arrays = {
        "edge_index": edges,
        "edge_weight": weights[*edges].astype(np.float32),
        "edge_attr": carried[*edges].astype(np.float32),
        "x": (rng.normal(size=(NODES, 7)) + np.eye(3, 7)[classes]).astype(np.float32),
        "y": classes,
        "side": np.arange(NODES) % 2,
    }
    path = folder / f"{name}.npz"
    np.savez(path, allow_pickle=False, **arrays)
    return path


def drawn_edges() -> np.ndarray:
    """Return (2, E) edges, each in one direction."""
    rng = np.random.default_rng(4)
    return np.stack(np.nonzero(np.triu(rng.random((NODES, NODES)) < 0.1, k=1)))


@pytest.fixture(autouse=True)
def one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks bear the name of their job, which is drawn."""
    monkeypatch.setattr("retexo_fl.federation.job_state.secrets.token_hex", "0".__mul__)


def keys_of(model: str) -> dict[str, Any]:
    """Return the keys of a model on a graph of its own kind."""
    return {"model": model, "edges_are": "directed" if model.startswith("dir-") else "undirected"}


def sent(path: Path, out: Path, **keys: Any) -> dict[tuple[int, int, int], bytes]:
    """Train, and return what clients sent each other."""
    config = configured(out, **{**KEYS, "dataset": path, **keys})
    # By the name of its cut all clients of a training know each other; these are of two graphs.
    parts = [replace(part, partitioning="of-two") for part in make_parts(config)]
    channel = Recorder()
    train_over(config, channel, parts)
    return channel.blocks


@pytest.mark.parametrize(
    "keys",
    [
        *map(keys_of, ("gcn", "gat", "dir-sage")),
        *(
            pytest.param(keys_of(model), marks=pytest.mark.slow)
            for model in ("sage", "gin", "gine", "sage-pool", "dir-gcn")
        ),
        {**LEAN, "model": "gcn", "layers": 2},
        pytest.param({**LEAN, "model": "sage", "layers": 2}, marks=pytest.mark.slow),
        {"model": "gcn", "codec": "fixed"},
        {"model": "gcn", "secure_aggregation": "none", "local_steps": 2},
    ],
)
def test_a_link_inside_a_part_changes_no_byte_that_peers_get(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    edges = drawn_edges()
    # Between two nodes of the first owner that the other one knows.
    across = edges[:, edges.sum(axis=0) % 2 == 1].reshape(-1)
    known = np.unique(across[across % 2 == 0])
    link = known[:2, None]
    assert not (edges == link).all(axis=0).any()
    one = written(tmp_path, "one", edges)
    other = written(tmp_path, "other", np.hstack([edges, link]))
    blocks = [sent(path, tmp_path / path.stem, second_rows="none", **keys) for path in (one, other)]
    assert blocks[0] == blocks[1]
    assert {layer for _, _, layer in blocks[0]} == {0}
    assert {sender for sender, *_ in blocks[0]} == {0, 1}
    if keys["model"] in {"gcn", "dir-sage"}:
        # Nor do first rows where classes come after them.
        classes = sent(one, tmp_path / "class", second_rows="class", **keys)
        assert {place: block for place, block in classes.items() if not place[2]} == blocks[0]
        assert {layer for _, _, layer in classes} == {*range(keys.get("layers", KEYS["layers"]))}
    assert largest_difference(tmp_path / "one", tmp_path / "other") > 0
    # Else later rows tell, and of some layers the degree in the first.
    full = [sent(path, tmp_path / f"full-{path.stem}", **keys) for path in (one, other)]
    told = {place[2] for place, block in full[0].items() if block != full[1][place]}
    assert told >= {*range(1, 2 if keys.get("layers") else 3)}
    assert (0 in told) == (keys["model"] in {"gcn", "dir-gcn"})


@pytest.mark.parametrize(
    "model", ["gcn", "sage", "gin", "gine", "gat", "sage-pool", "dir-gcn", "dir-sage", "dir-gat"]
)
@pytest.mark.parametrize("rows", ["none", "class"])
@pytest.mark.each_choice
def test_who_knows_all_edges_of_a_node_makes_the_rows_that_its_owner_would_send(
    tmp_path: Path, model: str, rows: str
) -> None:
    edges = drawn_edges()
    path = written(tmp_path, "graph", edges[:, edges.sum(axis=0) % 2 == 1])
    keys = {**KEYS, "dataset": path, **keys_of(model)}
    full, once = (train(tmp_path / way, second_rows=way, **keys) for way in ("full", rows))
    # What corrects rows has nothing to correct.
    assert largest_difference(full, once) < 1e-10
    # By the link of one, which the other does not know, they are others.
    path = written(tmp_path, "graph", np.hstack([edges[:, edges.sum(axis=0) % 2 == 1], [[0], [2]]]))
    full, once = (train(tmp_path / f"{way}-2", second_rows=way, **keys) for way in ("full", rows))
    assert largest_difference(full, once) > 1e-6


@pytest.mark.parametrize("keys", [{}, {**LEAN, "layers": 2}])
@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_one_client_trains_what_it_does_with_rows_of_owners(
    tmp_path: Path, model: str, keys: dict[str, Any]
) -> None:
    path = written(tmp_path, "graph", drawn_edges())
    keys = {**KEYS, "dataset": path, "model": model, "clients": 1, "partitioner": "random", **keys}
    ways = ("full", "class", "none")
    full, *others = (
        model_weights(train(tmp_path / rows, second_rows=rows, **keys)) for rows in ways
    )
    for other in others:
        assert full.keys() == other.keys()
        assert all(np.array_equal(full[name], other[name]) for name in full)


@pytest.mark.parametrize("rows", ["none", "class"])
@pytest.mark.parametrize("model", ["gcn", "sage"])
@pytest.mark.each_choice
def test_rows_that_a_layer_reads_are_made_here_too_over_three_layers(
    tmp_path: Path, model: str, rows: str
) -> None:
    # Narrower than what a layer makes, so that later layers are computed of them by weights.
    path = written(tmp_path, "graph", drawn_edges())
    keys = {**KEYS, **LEAN, "dtype": "float32", "hidden": 32, "dataset": path, "model": model}
    memory = train(tmp_path / "memory", second_rows=rows, **keys)
    config = configured(tmp_path / "disk", second_rows=rows, **keys)
    run_inline(config, make_parts(config), folder=tmp_path / "rows")
    kept = model_weights(memory)
    assert all(np.array_equal(kept[k], v) for k, v in model_weights(tmp_path / "disk").items())


def test_nothing_crosses_after_the_first_exchange_and_that_was_planned(tmp_path: Path) -> None:
    path = written(tmp_path, "graph", drawn_edges())
    run = train(tmp_path / "run", dataset=path, second_rows="none", **KEYS)
    by_stage: dict[int, int] = {}
    for account, volume in ledger_of(run).lines():
        if account.kind == "boundary":
            by_stage[account.layer] = by_stage.get(account.layer, 0) + volume.raw
    assert {stage for stage, size in by_stage.items() if size} == {0}


@pytest.mark.parametrize("keys", [{}, {"codec": "fixed"}, {"codec": "dense", "dtype": "float32"}])
def test_classes_cross_in_so_many_bits_each_whatever_the_codec(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    keys = {**KEYS, "dataset": written(tmp_path, "graph", drawn_edges()), **keys}
    config = configured(tmp_path / "run", model="gcn", second_rows="class", **keys)
    parts = make_parts(config)
    train_over(config, MemoryChannel(), parts)
    plans = [BoundaryPlan.from_partition(part, "rows") for part in parts]
    counts = [peer.send.count for plan in plans for peer in plan.receivers]
    for layer in (1, 2):
        crossed = [
            volume
            for account, volume in ledger_of(tmp_path / "run").lines()
            if (account.kind, account.layer, account.direction) == ("boundary", layer, "out")
        ]
        assert sum(one.payload for one in crossed) == sum(-(-2 * count // 8) for count in counts)
        item = np.dtype(config.dtype).itemsize
        assert sum(one.raw for one in crossed) == 2 * item * sum(counts)


def test_what_a_class_says_of_a_row_is_learned_on_own_nodes(tmp_path: Path) -> None:
    keys = {**KEYS, "model": "sage", "second_rows": "class", "dataset": "digits"}
    shape = ModelShape.of(configured(tmp_path, **keys), inputs=7, classes=3)
    rng = np.random.default_rng(0)
    made, classes = rng.uniform(size=(400, 8)), rng.integers(0, 3, 400)
    rows = made + rng.normal(size=(3, 8))[classes]
    nodes, ones = np.arange(400), np.ones(400)
    of = {"degrees": ones, "seen": nodes, "made": made, "known": ones, "classes": classes}
    reading = fitted_reading(shape, rows=rows, **of)
    inputs = StageInput(
        own=torch.zeros(400, 8, dtype=torch.float64),
        received=torch.from_numpy(made),
        indptr=np.arange(401),
        indices=400 + nodes,
        neighbours=ones,
        degrees=ones,
        own_hashes=nodes.astype(np.uint64),
        slot_hashes=nodes.astype(np.uint64),
    )
    read = as_corrected(shape, inputs, reading, classes).received
    assert np.abs(read.numpy() - rows).max() < 0.1
    assert np.abs(made - rows).max() > 0.5
    nothing = {**of, "seen": nodes[:0], "made": made[:0], "known": ones[:0]}
    assert not fitted_reading(shape, rows=rows, **nothing).any()


def test_of_equal_scores_the_lowest_class_is_told(tmp_path: Path) -> None:
    keys = {**KEYS, "model": "sage", "second_rows": "class", "dataset": "digits"}
    shape = ModelShape.of(configured(tmp_path, **keys), inputs=7, classes=3)
    weights = np.zeros(num_weights(shape, 0))
    assert not predicted_classes(shape, 0, weights, np.ones((5, 8))).any()
    assert shape.class_bits == 2
    numbers = np.array([0, 1, 2])
    assert bits_of_classes(numbers, shape).tolist() == [[0, 0], [0, 1], [1, 0]]
    assert classes_of_bits(bits_of_classes(numbers, shape)).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("bits", "says"),
    [
        ((1, 1), "class 3 of a node; expected 0 to 2"),
        ((0, -1), "-1 for a bit of a node's class; expected 0 or 1"),
        ((0.5, 0), "0.5 for a bit of a node's class; expected 0 or 1"),
        ((1e30, 0), r"1e\+30 for a bit of a node's class; expected 0 or 1"),
    ],
)
def test_a_class_that_there_is_not_is_refused_by_its_senders_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bits: tuple[float, float], says: str
) -> None:
    path = written(tmp_path, "graph", drawn_edges())
    monkeypatch.setattr(
        "retexo_fl.client.crossing.bits_of_classes",
        lambda classes, shape: np.tile(np.array(bits, shape.dtype), (len(classes), 1)),
    )
    # A reader takes blocks of any codec.
    monkeypatch.setattr(
        "retexo_fl.client.crossing.Mailbox",
        lambda *args, **keys: Mailbox(*args, **{**keys, "codec": "dense"}),
    )
    monkeypatch.setattr(
        "retexo_fl.client.crossing.fitted_reading",
        lambda shape, **of: np.zeros((shape.row_width + 1 + shape.classes, shape.row_width)),
    )
    with pytest.raises(RemoteProtocolError, match=f"stage 1: client 1 says {says}"):
        train(tmp_path / "run", dataset=path, second_rows="class", model="sage", **KEYS)


@pytest.mark.parametrize(("model", "asked"), [("gcn", "full"), ("sage", "none")])
def test_a_plan_shows_what_peers_get_either_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, asked: str
) -> None:
    retexo = CommandLine(capsys)
    keys = ("--dataset", "digits", "--clients", "3", "--model", model)
    told = json.loads(retexo.done("plan", *keys, "--second-rows", asked, "--json"))["second_rows"]
    shown = retexo.done("plan", *keys)
    assert "with --second-rows none" in shown
    for rows, planned in told.items():
        out = str(tmp_path / rows)
        retexo.done("run", *keys, "--second-rows", rows, "--rounds", "1", "--out", out)
        moved = ledger_of(Path(out)).sum(kind="boundary", direction="out").payload
        assert 0 < moved <= planned
        # All that is not known before is how many zeros later rows have.
        assert rows == "full" or planned < 1.02 * moved
    standard = json.loads(retexo.done("plan", *keys, "--second-rows", asked, "--json"))["plans"]
    full = json.loads(retexo.done("plan", *keys, "--basis-rows", "own", "--json"))["plans"]
    of_standard = [
        found["rows"]["algorithms"]["standard"]["boundary"] for found in (standard, full)
    ]
    assert of_standard[0] == of_standard[1] or asked == "full"


@pytest.mark.parametrize("rows", ["none", "class"])
def test_who_was_missing_first_is_missing_later(tmp_path: Path, rows: str) -> None:
    keys = {"clients": 2, "rounds": 3, "dtype": "float64", "missing_peers": "drop"}
    lost = configured(tmp_path / "lost", second_rows=rows, exchange_deadline_s=0.1, **keys)
    train_over(lost, _Losing())
    kept = configured(tmp_path / "kept", second_rows=rows, **keys)
    run_without_boundary(kept)
    assert largest_difference(tmp_path / "lost", tmp_path / "kept") < 1e-12


class _Losing(MemoryChannel):
    def send_block(self, key: BlockKey, frames: Sequence[bytes]) -> int:
        return sum(len(frame) for frame in frames)


# ---- what does not go with it -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        *(
            (
                {"algorithm": name},
                f"second-rows: none does not go with algorithm {name}, whose rows cross in each "
                "round, or not at all; expected full, or algorithm lazy",
            )
            for name in ("standard", "bns", "drop", "propagation")
        ),
        ({"task": "links"}, "second-rows: none does not go with task links, which needs rows of"),
        ({"solver": "ridge"}, "second-rows: none does not go with solver ridge, which needs"),
        (
            {"boundary_plan": "cover"},
            "second-rows: none does not go with boundary-plan cover, which sends sums",
        ),
        *(
            (
                {"basis": "supervised", "basis_rows": rows},
                f"second-rows: none does not go with basis-rows {rows}, by which the first rows "
                "would follow from links; expected full, or basis-rows own",
            )
            for rows in ("sums", "choose")
        ),
        ({"second_rows": "some"}, "second-rows: got 'some'; expected one of full, class, none"),
        *(
            (
                {"second_rows": "class", "task": task},
                f"second-rows: class does not go with task {task}, whose nodes have no one class; "
                "expected full, or task classes",
            )
            for task in ("regression", "multi-label")
        ),
        (
            {"second_rows": "class", "task": "links"},
            "second-rows: class does not go with task links, which needs rows of both ends",
        ),
        (
            {"second_rows": "class", "algorithm": "bns"},
            "second-rows: class does not go with algorithm bns, whose rows cross in each round",
        ),
    ],
)
def test_what_does_not_go_with_it_is_refused_by_name(
    tmp_path: Path, keys: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        configured(tmp_path / "run", **{"second_rows": "none", **keys})
    assert str(refused.value).startswith(expected)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (BANK, "second-rows: none does not go with a graph whose nodes have types yet"),
        (
            {"dataset": "digits", "features": "none"},
            "second-rows: none does not go with nodes without features, for which columns of",
        ),
    ],
)
def test_graphs_that_it_does_not_go_with_are_refused_before_anything_is_written(
    tmp_path: Path, keys: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        train(tmp_path / "run", clients=2, second_rows="none", **keys)
    assert not (tmp_path / "run").exists()


def test_a_profile_leaves_out_sums_and_says_so(tmp_path: Path) -> None:
    graph = "synthetic:nodes=200,edges=3100,classes=3,features=24,words=9,signal=0.5"
    keys: dict[str, Any] = {"clients": 2, "hidden": 8, "rounds": 2, "model": "gcn"}
    runs = {
        rows: retexo_fl.run(
            dataset=graph, out=tmp_path / rows, quiet=True, second_rows=rows, **keys
        )
        for rows in ("full", "none")
    }
    told = {rows: run.result.profile for rows, run in runs.items()}
    assert told["full"] is not None
    assert told["none"] is not None
    assert "basis-rows own" in told["none"].sentence
    assert "no basis of sums, since second-rows none keeps" in told["none"].sentence
    assert runs["full"].config.basis_rows == "sums"
    assert runs["none"].config.basis_rows == "own"
    assert "second-rows" not in told["full"].sentence
