"""What an owner promises of a part, and runs that would find less of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retexo_fl.agent.limits import Limits
from retexo_fl.agent.promises import NO_PART, check_promise, part_digest, uses_of_part
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.errors import ConfigurationError
from retexo_fl.graph import GraphPartition
from retexo_fl.graph.parts.storage import write_partition
from tests.support.typed_graphs import bank

ALL = frozenset({"train", "validation", "test", "nodes"})


@pytest.fixture(scope="module")
def part() -> GraphPartition:
    return make_parts(make_config({"clients": 9}))[0]


def test_a_part_brings_what_hides_it(part: GraphPartition) -> None:
    train = int(part.train_mask.sum())
    assert uses_of_part(part, Limits(), links=False) == ALL
    few = Limits(least_train_nodes=train + 1)
    assert uses_of_part(part, few, links=False) == ALL - {"train"}
    assert uses_of_part(part, Limits(least_train_nodes=train), links=False) == ALL
    none = np.zeros_like(part.train_mask)
    unlabelled = replace(part, train_mask=none, val_mask=none, test_mask=none)
    assert uses_of_part(unlabelled, Limits(), links=False) == {"nodes"}
    assert uses_of_part(unlabelled, Limits(), links=True) == ALL
    many = Limits(least_train_nodes=len(part.indices))
    assert uses_of_part(unlabelled, many, links=True) == {"nodes"}


def test_of_a_graph_with_types_edges_of_a_relation_are_promised() -> None:
    keys = {"model": "rel-sage", "task": "links", "relation": "stands", "clients": 3}
    # Of clients by type, customers have no part in where devices stand.
    parts = make_parts(make_config({**keys, "partitioner": "attribute:type"}), graph=bank())
    limits = Limits(least_train_nodes=2)
    found = [uses_of_part(part, limits, links=True, relation="stands") for part in parts]
    assert sorted(map(len, found)) == [1, 4, 4]
    with pytest.raises(ConfigurationError, match="relation: got ''; expected the one whose edges"):
        uses_of_part(parts[0], limits, links=True)


def test_a_run_that_leaves_nothing_of_a_use_is_refused(part: GraphPartition) -> None:
    nodes = make_config({"clients": 9})
    check_promise(ALL, nodes, part)
    links = make_config({"clients": 9, "task": "links", "split": "random:0.9/0.000001/0.09"})
    check_promise(ALL - {"validation"}, links, part)
    with pytest.raises(ConfigurationError, match="client 0: split: .* leaves no validation"):
        check_promise(ALL, links, part)


def test_a_part_is_named_by_all_of_it(part: GraphPartition, tmp_path: Path) -> None:
    write_partition(part, tmp_path / "part")
    other = part.labels.copy()
    other[0] = (other[0] + 1) % part.num_classes
    write_partition(replace(part, labels=other), tmp_path / "other")
    write_partition(part, tmp_path / "same")
    named = [part_digest(tmp_path / name) for name in ("part", "other", "same")]
    assert named[0] == named[2] != named[1]
    assert part_digest(tmp_path / "absent") == NO_PART
