"""What must be true of a partition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from retexo_fl.errors import PartitionError
from retexo_fl.graph import check_partition, hash_keys
from tests.unit.graph.graphs import small_parts


def test_check_partition_accepts_what_cutting_makes() -> None:
    for sparse in (False, True):
        for part in small_parts(sparse=sparse):
            check_partition(part, source="part")


def _keys(*keys: bytes) -> dict[str, Any]:
    names = np.array(keys, dtype="S2")
    return {"boundary_keys": names, "boundary_hashes": hash_keys(names)}


# Part 0 of the small graph: a: d, ab, c; d: a, b; z: none; a=0, d=1, z=2, slots ab=3, b=4, c=5.
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"partitioning": "12"}, "partitioning: got '12'; expected 64 hex digits"),
        ({"client": 2}, "client: got 2; expected 0 to 1"),
        ({"num_classes": 1}, "labels: row 0 is 1; expected -1 (unlabelled) to 0"),
        ({"node_keys": np.array([b"d", b"a", b"z"])}, "node_keys: row 1 is out of order"),
        ({"node_keys": np.array([b"a", b"a", b"z"])}, "node_keys: rows 0 and 1 are both 'a'"),
        ({"node_keys": np.array([b"a", b"e", b"z"])}, "node_hashes: row 1 is not the hash of"),
        ({"node_keys": np.array([], dtype="S1")}, "node_keys: there are no nodes"),
        ({"labels": np.array([1, 0, -1])}, "test_mask: row 2 is unlabelled"),
        ({"labels": np.array([1, 0])}, "labels: has 2 rows; expected 3"),
        ({"val_mask": np.array([True, True, False])}, "val_mask: row 1 is in another mask too"),
        ({"features": np.full((3, 1), np.inf, np.float32)}, "features: row 0 holds NaN"),
        ({"features": np.ones((2, 1), np.float32)}, "features: got shape (2, 1)"),
        (_keys(b"b", b"ab", b"c"), "boundary_keys: row 1 is out of order; expected (owner, key)"),
        (_keys(b"ab", b"b", b"z"), "boundary_keys: row 2 is also an inner"),
        (_keys(b"ab", b"ab", b"c"), "boundary_keys: rows 0 and 1 are both 'ab'"),
        ({"boundary_keys": np.array([b"ab", b"b", b"d"])}, "boundary_keys: row 2 is also an"),
        ({"boundary_keys": np.array([b"ab", b"b", b"e"])}, "boundary_hashes: row 2 is not"),
        ({"boundary_owners": np.array([1, 1, 0], np.int32)}, "boundary_owners: row 2 is 0; exp"),
        ({"boundary_owners": np.array([1, 2, 1], np.int32)}, "boundary_owners: row 1 is 2"),
        ({"boundary_owners": np.array([1, -1, 1], np.int32)}, "boundary_owners: row 1 is -1"),
        ({"indptr": np.array([0, 3, 5])}, "indptr: got shape (3,); expected (4)"),
        ({"indptr": np.array([0, 3, 5, 6])}, "indptr: runs from 0 to 6; expected 0 to 5"),
        ({"indptr": np.array([0, 5, 3, 5])}, "indptr: decreases at row 1"),
        ({"indices": np.array([1, 3, 6, 0, 4])}, "indices: row 0 has column 6; expected 0 to 5"),
        ({"indices": np.array([1, 3, 5, -1, 4])}, "indices: row 1 has column -1"),
        ({"indices": np.array([3, 1, 5, 0, 4])}, "indices: row 0 has columns out of order"),
        ({"indices": np.array([1, 3, 5, 1, 4])}, "indices: row 1 has a self loop"),
        ({"indices": np.array([1, 3, 5, 2, 4])}, "indices: an edge between inner nodes"),
        ({"indices": np.array([1, 3, 5, 0, 5])}, "boundary_keys: row 1 has no edge"),
        ({"indices": np.array([1.0, 3, 5, 0, 4])}, "indices: got float64"),
    ],
)
def test_check_partition_names_what_does_not_hold(changes: dict[str, Any], sentence: str) -> None:
    part = replace(small_parts()[0], **changes)
    with pytest.raises(PartitionError) as caught:
        check_partition(part, source="part")
    assert str(caught.value).startswith("part: ")
    assert sentence in str(caught.value)


def test_check_partition_finds_one_sided_edge_of_equal_degrees() -> None:
    (part,) = small_parts()[:1]
    loop = replace(part, indptr=np.array([0, 3, 5, 6]), indices=np.array([1, 3, 5, 2, 4, 0]))
    with pytest.raises(PartitionError, match="indices: .*edge between inner nodes.*only"):
        check_partition(loop, source="part")
