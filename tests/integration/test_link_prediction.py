"""Task links: which nodes have an edge, trained on several clients as on one."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.client.preparation import make_parts
from retexo_fl.errors import RetexoError
from retexo_fl.graph import GraphPartition, open_partition
from retexo_fl.methods.forecasts import LAZY
from retexo_fl.training.link_split import LinkSplit
from retexo_fl.training.stage_model import ModelShape
from tests.support.agents import agents, train_with
from tests.support.cli import CommandLine
from tests.support.limits import PERMISSIVE
from tests.support.links import LINKS
from tests.support.runs import (
    Interrupter,
    configured,
    largest_difference,
    ledger_of,
    model_bytes,
    result_of,
    size_of,
    train,
)
from tests.support.valued_graphs import VALUED, write_valued


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_valued(tmp_path_factory.mktemp("links"), nodes=60)


@pytest.fixture
def retexo(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


def keys_of(folder: Path, **keys: Any) -> dict[str, Any]:
    return {**VALUED, **LINKS, "data_dir": folder, **keys}


def names_of(part: GraphPartition) -> np.ndarray:
    return np.concatenate([part.node_keys.astype("S9"), part.boundary_keys.astype("S9")])


def edges_of(part: GraphPartition) -> set[tuple[bytes, bytes]]:
    """Return the edges of a part, from each of its nodes."""
    rows = np.repeat(np.arange(part.num_inner), np.diff(part.indptr))
    return {*zip(part.node_keys[rows].tolist(), names_of(part)[part.indices].tolist(), strict=True)}


def test_every_edge_is_counted_once_and_held_out_at_both_ends(folder: Path, tmp_path: Path) -> None:
    parts = make_parts(configured(tmp_path, **keys_of(folder, clients=3)))
    splits = [LinkSplit.of(p, split="random:0.5/0.2/0.2", seed=0) for p in parts]
    counted = [
        (use, frozenset(ends))
        for part, split in zip(parts, splits, strict=True)
        for use, pairs in split.pairs.items()
        for ends in zip(part.node_keys[pairs.first], names_of(part)[pairs.second], strict=True)
    ]
    uses = {ends: use for use, ends in counted}
    assert len(uses) == len(counted)
    everywhere = {frozenset(ends) for part in parts for ends in edges_of(part)}
    assert uses.keys() <= everywhere
    # What is none of the three is read; what is held out is not, at either of its ends.
    for part, split in zip(parts, splits, strict=True):
        read = {e for e in edges_of(part) if uses.get(frozenset(e)) in {None, "train"}}
        assert edges_of(split.part) == read
    shares = {use: list(uses.values()).count(use) / len(everywhere) for use in uses.values()}
    assert shares["train"] == pytest.approx(0.5, abs=0.12)
    assert shares["test"] == pytest.approx(0.2, abs=0.12)
    assert len(uses) < len(everywhere)


def test_the_ledger_is_the_closed_form(folder: Path, tmp_path: Path) -> None:
    keys = keys_of(folder, clients=3, codec="dense")
    run = train(tmp_path / "run", **keys)
    config = configured(tmp_path, **keys)
    parts = make_parts(config)
    size = size_of(config, parts)
    volume = LAZY.volume(ModelShape.of_part(config, parts[0]), size)
    raw = result_of(run)["plan"]["predicted_raw"]
    assert raw["total"] == volume.total
    moved = ledger_of(run)
    assert moved.sum(kind="boundary").raw == volume.boundary
    assert moved.sum(kind="updates_up").raw == volume.updates_up
    assert moved.sum(kind="weights_down").raw == volume.weights_down


@pytest.mark.parametrize(
    "keys",
    [
        {"local_steps": 3, "local_correction": "scaffold", "local_optimizer": "sgd"},
        {"row_bits": 8, "update_bits": 8, "weight_bits": 8, "patience": 2},
        {"aggregator": "median", "per_client_metrics": True},
        {"model": "gat", "heads": 2, "local_steps": 2, "row_bits": 8},
    ],
    ids=" ".join,
)
def test_every_way_of_training_takes_links(
    folder: Path, tmp_path: Path, keys: dict[str, Any]
) -> None:
    found = result_of(train(tmp_path / "run", **keys_of(folder, clients=3, **keys)))
    assert 0 <= found["metric"]["value"] <= 1
    # Before what a layer reads of features crosses, features do.
    ahead = [] if "heads" in keys else [False]
    assert [stage["best_round"] > 0 for stage in found["stages"]] == [*ahead, True, True]


@pytest.mark.parametrize("event", [6, 9, 11])
def test_a_run_that_was_stopped_goes_on(folder: Path, tmp_path: Path, event: int) -> None:
    keys = keys_of(folder, clients=3)
    expected = train(tmp_path / "undisturbed", **keys)
    stopped = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        train(stopped, Interrupter(event), **keys)
    train(stopped, **keys, resume=str(stopped))
    assert model_bytes(stopped) == model_bytes(expected)
    assert result_of(stopped)["metric"] == result_of(expected)["metric"]


def write_wide(folder: Path, *, nodes: int, columns: int, dense: bool = False) -> dict[str, Any]:
    """Write a graph without labels that has four features of many a node; return where it is."""
    rng = np.random.default_rng(3)
    places = columns // 4 * np.arange(4) + rng.integers(0, columns // 4, (nodes, 4))
    pairs = np.unique(np.sort(rng.integers(0, nodes, (2, 3 * nodes)), axis=0), axis=1)
    arrays: dict[str, Any] = {"edge_index": pairs[:, pairs[0] != pairs[1]]}
    if dense:
        features = np.zeros((nodes, columns), np.float32)
        np.put_along_axis(features, places, np.arange(1, 5), axis=1)
        arrays["x"] = features
    else:
        arrays |= {
            "x_indptr": 4 * np.arange(nodes + 1),
            "x_indices": places.reshape(-1),
            "x_data": np.tile(np.arange(1, 5, dtype=np.float32), nodes),
            "x_shape": np.array([nodes, columns]),
        }
    np.savez(folder / "wide.npz", **arrays)
    return {**LINKS, "dataset": "wide", "data_dir": folder, "clients": 3}


@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_sparse_features_train_what_dense_ones_do(tmp_path: Path, model: str) -> None:
    runs = []
    for name in ("sparse", "dense"):
        (tmp_path / name).mkdir()
        keys = write_wide(tmp_path / name, nodes=60, columns=90, dense=name == "dense")
        runs.append(train(tmp_path / f"{name}-run", **keys, model=model))
    assert largest_difference(*runs) < 1e-9
    moved = [ledger_of(run).sum(kind="boundary") for run in runs]
    assert (moved[0].messages, moved[0].raw) == (moved[1].messages, moved[1].raw)


def test_a_run_on_sparse_features_goes_on(tmp_path: Path) -> None:
    keys = {**write_wide(tmp_path, nodes=60, columns=90), "model": "gcn"}
    expected, stopped = train(tmp_path / "undisturbed", **keys), tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        train(stopped, Interrupter(9), **keys)
    train(stopped, **keys, resume=str(stopped))
    assert model_bytes(stopped) == model_bytes(expected)


@pytest.mark.system
def test_sparse_features_stay_sparse(tmp_path: Path) -> None:
    keys = write_wide(tmp_path, nodes=1500, columns=60_000) | {"hidden": 2, "rounds": 1}
    tracemalloc.start()
    try:
        train(tmp_path / "run", **keys, model="gcn")
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # As arrays, the features of one client take 240 MB, and those of its peers 480. What a trained
    # layer makes of them is computed 134 MB at a time.
    assert peak_bytes < 200_000_000


@pytest.mark.system
def test_an_owner_has_a_say_in_how_many_edges_an_update_is_of(folder: Path, tmp_path: Path) -> None:
    keys = keys_of(folder, clients=2)
    parts = make_parts(configured(tmp_path / "planned", **keys))
    settings = {**PERMISSIVE, "least-train-nodes": 10_000}
    with (
        agents(tmp_path / "agents", parts, settings=settings) as pair,
        pytest.raises(RetexoError, match=r"client [01]: an update would sum over \d+ train edges"),
    ):
        train_with(pair, configured(tmp_path / "deployed", **keys))


@pytest.mark.parametrize("link_head", ["dot", "mlp"])
def test_suggested_links_are_the_likeliest_that_are_not_there(
    retexo: CommandLine, folder: Path, tmp_path: Path, link_head: str
) -> None:
    parts = tmp_path / "parts"
    graph = ("--dataset", "valued", "--data-dir", folder, "--task", "links")
    retexo.done("partition", "make", *graph, "--clients", "2", "--out", parts)
    run = train(tmp_path / "run", **keys_of(folder, clients=2, link_head=link_head))
    told = retexo.done("predict", run, "--partitions", parts, "--format", "npz")
    assert "the likeliest links of 60 nodes of 2 clients" in told
    retexo.done("predict", run, "--partitions", parts, "--out", tmp_path / "text")
    for client in (0, 1):
        part = open_partition(parts / f"part-{client}")
        with np.load(parts / f"predictions-{client}.npz") as found:
            key, other, share = found["key"], found["other"], found["p"]
        lines = (tmp_path / "text" / f"predictions-{client}.csv").read_text().splitlines()
        assert lines[0] == "key,other,p"
        assert lines[1].split(",")[:2] == [key[0].decode(), other[0].decode()]
        edges = edges_of(part)
        suggested = [*zip(key, other, strict=True)]
        assert not edges & {*suggested}
        assert len({*suggested}) == len(suggested) == 10 * part.num_inner
        assert (key != other).all()
        assert (np.diff(share.reshape(-1, 10), axis=1) <= 0).all()
        assert ((share >= 0) & (share <= 1)).all()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--model", "sage-pool"), "task: links does not go with model sage-pool"),
        (("--algorithm", "standard"), "algorithm: 'standard' does not go with task links"),
        (("--basis", "supervised"), "basis: 'supervised' does not go with task links"),
        (("--boundary-plan", "cover"), "boundary-plan: 'cover' does not go with task links"),
        (("--missing-peers", "drop"), "missing-peers: 'drop' does not go with task links"),
        (("--metric", "macro-f1"), "metric: macro-f1 does not go with task links"),
        (("--class-weights", "balanced"), "class-weights: balanced does not go with task links"),
        (("--split", "published"), "split: 'published' does not go with task links"),
        (("--devices", "cpu:2"), "devices: 'cpu:2' does not go with task links"),
        (("--metric", "hits:0"), "metric: got 'hits:0'; expected"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_does_not_go_with_links_is_refused(
    retexo: CommandLine, tmp_path: Path, options: tuple[str, ...], expected: str
) -> None:
    out = tmp_path / "new"
    line = retexo.refused("run", "--task", "links", *options, "--out", out)
    assert expected in line
    assert not out.exists()


def test_what_is_held_out_is_not_known_to_the_training(folder: Path, tmp_path: Path) -> None:
    (part,) = make_parts(configured(tmp_path, **keys_of(folder, clients=1)))
    split = LinkSplit.of(part, split="random:0.4/0.3/0.3", seed=0)
    held = {
        frozenset(pair)
        for use in ("validation", "test")
        for pair in zip(
            split.pairs[use].first.tolist(), split.pairs[use].second.tolist(), strict=True
        )
    }
    keys = np.arange(20_000, dtype=np.uint64)
    drawn = {
        name: {frozenset(map(int, pair)) for pair in np.stack(found, axis=-1).reshape(-1, 2)}
        for name, found in (
            ("trained", split.unseen.draw(keys, 1, "train")),
            ("judged", split.known.draw(keys, 1, "judge")),
        )
    }
    # A pair that is held out looks like any other to the training; the test must not take it so.
    assert drawn["trained"] & held
    assert not drawn["judged"] & held
