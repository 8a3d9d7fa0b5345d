"""Which edges are held out, and which pairs without an edge are drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from retexo_fl.client.preparation import make_parts
from retexo_fl.client.stage_rows import stage_input
from retexo_fl.config import make_config
from retexo_fl.errors import PartitionError
from retexo_fl.graph import BoundaryPlan
from retexo_fl.training.link_negatives import NonEdges
from retexo_fl.training.link_split import USES, LinkSplit
from retexo_fl.training.link_trainer import LinkTrainer
from retexo_fl.training.recipe import Recipe
from retexo_fl.training.stage_model import ModelShape


def test_draws_have_no_edge_and_depend_on_what_they_are_for() -> None:
    codes = np.array([0 * 7 + 1, 0 * 7 + 2, 1 * 7 + 0, 2 * 7 + 0, 2 * 7 + 5])
    non_edges = NonEdges(4, 7, codes)
    keys = np.arange(500, dtype=np.uint64)
    first, second = non_edges.draw(keys, 4, "0/1/1/0")
    assert first.shape == second.shape == (500, 4)
    assert (first != second).all()
    assert not np.isin(first * 7 + second, codes).any()
    again = non_edges.draw(keys[7:9], 4, "0/1/1/0")
    np.testing.assert_array_equal(again[0], first[7:9])
    assert not np.array_equal(non_edges.draw(keys, 4, "0/1/2/0")[0], first)


def test_every_pair_without_an_edge_is_as_likely() -> None:
    non_edges = NonEdges(3, 5, np.array([1, 4, 5]))
    first, second = non_edges.draw(np.arange(20_000, dtype=np.uint64), 1, "uniform")
    counts = np.bincount((first * 5 + second).reshape(-1), minlength=15)
    possible = np.setdiff1d(np.arange(15), [0, 6, 12, 1, 4, 5])
    assert counts.sum() == counts[possible].sum()
    expected = 20_000 / len(possible)
    assert (np.abs(counts[possible] - expected) < 5 * np.sqrt(expected)).all()


def test_pairs_begin_with_the_edges_own_end_where_they_are_ranked_beside_it() -> None:
    non_edges = NonEdges(3, 3, np.array([1, 3]))
    ends = np.array([0, 2, 2])
    first, second = non_edges.draw(np.arange(3, dtype=np.uint64), 5, "mrr", first=ends)
    np.testing.assert_array_equal(first, np.repeat(ends, 5).reshape(3, 5))
    assert (second[0] == 2).all()


def test_nearly_complete_graphs_leave_what_there_is() -> None:
    nodes = 80
    full = np.array([u * nodes + v for u in range(nodes) for v in range(nodes) if u != v])
    missing = np.isin(full, [3 * nodes + 4, 4 * nodes + 3])
    non_edges = NonEdges(nodes, nodes, full[~missing])
    first, second = non_edges.draw(np.arange(50, dtype=np.uint64), 2, "rare")
    assert {*zip(first.flat, second.flat, strict=True)} <= {(3, 4), (4, 3)}
    own = non_edges.draw(np.arange(2, dtype=np.uint64), 3, "rare", first=np.array([3, 9]))
    assert {*own[1][0].tolist()} == {4}
    assert {*zip(own[0][1], own[1][1], strict=True)} <= {(3, 4), (4, 3)}


def test_complete_graphs_are_refused() -> None:
    NonEdges(2, 3, np.array([1, 2, 3])).check(0)
    with pytest.raises(PartitionError, match="client 4: every pair of its 2 nodes and 1"):
        NonEdges(2, 3, np.array([1, 2, 3, 5])).check(4)


def test_test_edges_are_judged_beside_pairs_that_no_use_has_an_edge_between(tmp_path: Path) -> None:
    """In a graph that lacks one edge those are that pair alone; held-out edges are none of them."""
    nodes = 7
    ends = np.array([(u, v) for u in range(nodes) for v in range(u + 1, nodes)][1:]).T
    rows = np.random.default_rng(0).normal(size=(nodes, 3))
    np.savez(
        tmp_path / "full.npz",
        edge_index=ends,
        x=rows.astype(np.float32),
        y=np.zeros(nodes, np.int64),
    )
    split_name = "random:0.5/0.2/0.3"
    keys = {"dataset": "full", "data-dir": str(tmp_path), "task": "links", "model": "gcn"}
    more = {"clients": 1, "layers": 1, "hidden": 3, "dtype": "float64", "split": split_name}
    config = make_config({**keys, **more})
    (part,) = make_parts(config)
    split = LinkSplit.of(part, split=split_name, seed=5)
    assert min(len(split.pairs[use]) for use in USES) > 0
    shape = ModelShape.of_part(config, part)
    plan = BoundaryPlan.from_partition(split.part)
    inputs = stage_input(split.part, plan, rows, rows[:0], ())
    inputs = replace(inputs, own=torch.from_numpy(np.hstack([rows, np.ones((nodes, 1))])))
    recipe = replace(Recipe.of(config), metric=None)
    trainer = LinkTrainer(shape, 1, inputs, split, seed=5, recipe=recipe, negatives=4)
    weights = np.append(np.eye(3).reshape(-1), np.zeros(trainer.num_weights - 9))
    unseen = split.unseen.draw(split.pairs["train"].keys, 4, "5/1/2/0")
    assert {*zip(unseen[0].flat, unseen[1].flat, strict=True)} - {(0, 1), (1, 0)}
    tally = trainer.evaluate(weights, "test")
    pairs = split.pairs["test"]
    scores = (rows @ rows.T)[pairs.first, pairs.second]
    expected = np.logaddexp(0, -scores).sum() + len(pairs) * np.logaddexp(0, rows[0] @ rows[1])
    assert tally.count == 2 * len(pairs)
    assert tally.loss_sum == pytest.approx(expected)
    # Trained edges are told from all that is not read, held-out edges among them.
    trained = trainer.update(weights, round_number=2, dropout=0.0).train
    pairs = split.pairs["train"]
    scores = (rows @ rows.T)[pairs.first, pairs.second]
    beside = (rows @ rows.T)[unseen]
    assert trained.count == 5 * len(pairs)
    assert trained.loss_sum == pytest.approx(
        np.logaddexp(0, -scores).sum() + np.logaddexp(0, beside).sum()
    )
