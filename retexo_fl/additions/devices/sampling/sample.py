"""What a sampler returns: blocks of edges between rows of consecutive layers.

Symbols: B roots, S source rows, R target rows, E edges of a block.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from retexo_fl.additions.devices.sampling.transposition import edges_by_source


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Edges from S source rows into R target rows; the targets are the first R sources.

    Attributes:
        indptr: (R + 1,) int64: edges ``indptr[r]:indptr[r + 1]`` lead into target r.
        columns: (E,) int32: place of each edge's source among the S.
        scales: (E,) float32; the sum of ``scales[e] * x[columns[e]]`` over a target's edges
            estimates, without bias, the sum over all of its neighbours. None where all neighbours
            are there, which is a scale of 1.
        degrees: (R,) int64: what each target is to be normalised with, its neighbours in the whole
            graph; in a ShaDow subgraph those within the subgraph.
        num_sources: S.
    """

    indptr: np.ndarray
    columns: np.ndarray
    scales: np.ndarray | None
    degrees: np.ndarray
    num_sources: int
    _by_source: tuple[np.ndarray, np.ndarray] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    @property
    def num_targets(self) -> int:
        """R."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """E."""
        return len(self.columns)

    def transposed(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the edges by source, in time O(E + S), for the gradient of a product.

        They are found once: all layers of a ShaDow sample have one block.

        Returns:
            ``(column_indptr, column_order)``, (S + 1,) and (E,) int32: the edges that leave source
            s are ``column_order[column_indptr[s]:column_indptr[s + 1]]``, ascending.
        """
        if self._by_source is not None:
            return self._by_source
        found = edges_by_source(self.columns, self.num_sources)
        object.__setattr__(self, "_by_source", found)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What the loss of B roots needs; which other roots share the sample changes nothing in it.

    Attributes:
        roots: (B,) int64, distinct, in the order given.
        nodes: (S,) int64: ids of the input rows, the sources of ``blocks[0]``. In a ShaDow sample
            a node that is in the subgraphs of two roots is listed twice.
        input_degrees: (S,) int64: degrees of ``nodes``, in the same sense as ``Block.degrees``; the
            sources of later blocks are the targets of those before, with the degrees given there.
        blocks: One for each layer, input layer first; the targets of ``blocks[l]`` are the sources
            of ``blocks[l + 1]``.
        root_places: (B,) int64: which targets of the last block are the roots.
        layer_nodes: For each block the (R,) int64 ids of its targets.
    """

    roots: np.ndarray
    nodes: np.ndarray
    input_degrees: np.ndarray
    blocks: tuple[Block, ...]
    root_places: np.ndarray
    layer_nodes: tuple[np.ndarray, ...]

    @property
    def num_aggregations(self) -> int:
        """Edges of all blocks: how many vectors are added up in a forward pass."""
        return sum(block.num_edges for block in self.blocks)
