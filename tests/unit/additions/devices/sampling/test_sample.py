from __future__ import annotations

from dataclasses import replace

import numpy as np

from retexo_fl.additions.devices.sampling import Block, Sample


def block() -> Block:
    """Return a block of 2 targets, 3 sources and 4 edges."""
    return Block(
        indptr=np.array([0, 3, 4]),
        columns=np.array([2, 0, 1, 2], dtype=np.int32),
        scales=None,
        degrees=np.array([3, 1]),
        num_sources=3,
    )


def test_sizes_of_a_block() -> None:
    assert (block().num_targets, block().num_sources, block().num_edges) == (2, 3, 4)


def test_edges_by_source_are_found_once() -> None:
    given = block()
    indptr, order = given.transposed()
    assert indptr.tolist() == [0, 1, 2, 4]
    assert order.tolist() == [1, 2, 0, 3]
    assert all(one is two for one, two in zip((indptr, order), given.transposed(), strict=True))


def test_block_made_of_another_finds_its_own() -> None:
    given = block()
    given.transposed()
    other = replace(given, columns=given.columns[::-1].copy())
    assert other.transposed()[1].tolist() == [2, 1, 0, 3]


def test_aggregations_are_the_edges_of_all_layers() -> None:
    given = block()
    places = np.arange(3)
    sample = Sample(
        roots=places,
        nodes=places,
        input_degrees=places,
        blocks=(given,) * 3,
        root_places=places,
        layer_nodes=(places,) * 3,
    )
    assert sample.num_aggregations == 12
