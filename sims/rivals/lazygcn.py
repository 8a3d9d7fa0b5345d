"""LazyGCN: a mega-batch is sampled once, stays on the device, and is trained from several times.

Source: Ramezani, Cong, Mahdavi, Sivasubramaniam and Kandemir, "GCN meets GPU: Decoupling 'When to
Sample' from 'How to Sample'" (NeurIPS 2020), algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from retexo_fl.additions.devices.sampling.sample import Block, Sample


def recycled(
    mega: Sample, batch_nodes: int, times: int, generator: np.random.Generator
) -> Iterator[Sample]:
    """Cut a mega-batch into mini-batches ``times`` times, each time in another order.

    Args:
        mega: Sample of all its roots.
        batch_nodes: Roots of a mini-batch.
        times: Passes over the roots.
        generator: Decides the order.
    """
    for _ in range(times):
        order = generator.permutation(len(mega.roots))
        for start in range(0, len(order), batch_nodes):
            yield part_of(mega, order[start : start + batch_nodes])


def part_of(mega: Sample, which: np.ndarray) -> Sample:
    """Return the sample of some roots with the neighbours that they have in a larger one.

    Args:
        mega: A sample in which a node has one place in all layers.
        which: (B,) which of its roots.
    """
    places = mega.root_places[which]
    degrees = mega.input_degrees
    blocks, targets = [], []
    for whole in reversed(mega.blocks):
        targets.append(mega.nodes[places])
        block, places = _rows_of(whole, places)
        blocks.append(block)
    return Sample(
        roots=mega.roots[which],
        nodes=mega.nodes[places],
        input_degrees=degrees[places],
        blocks=tuple(reversed(blocks)),
        root_places=np.arange(len(which), dtype=np.int64),
        layer_nodes=tuple(reversed(targets)),
    )


def _rows_of(whole: Block, rows: np.ndarray) -> tuple[Block, np.ndarray]:
    """Return the rows of a block, and the places of its sources in the whole one."""
    starts, counts = whole.indptr[rows], np.diff(whole.indptr)[rows]
    indptr = np.concatenate([[0], np.cumsum(counts)])
    edges = np.repeat(starts - indptr[:-1], counts) + np.arange(indptr[-1])
    columns = whole.columns[edges]
    others = np.zeros(whole.num_sources, np.bool_)
    others[columns] = True
    others[rows] = False
    sources = np.concatenate([rows, np.flatnonzero(others)])
    numbers = np.empty(whole.num_sources, np.int32)
    numbers[sources] = np.arange(len(sources), dtype=np.int32)
    block = Block(
        indptr=indptr,
        columns=numbers[columns],
        scales=None if whole.scales is None else whole.scales[edges],
        degrees=whole.degrees[rows],
        num_sources=len(sources),
    )
    return block, sources
