"""The edges of a block by source: a counting sort."""

from __future__ import annotations

import numpy as np

from retexo_fl.additions.devices.sampling.compiled import compiled


@compiled
def edges_by_source(columns: np.ndarray, num_sources: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ``(indptr, order)``, (S + 1,) and (E,) int32; see ``Block.transposed``.

    Args:
        columns: (E,) int32 below ``num_sources``, E below 2^31.
        num_sources: S.
    """
    indptr = np.zeros(num_sources + 1, np.int32)
    order = np.empty(len(columns), np.int32)
    for column in columns:
        indptr[column + 1] += 1
    for source in range(num_sources):
        indptr[source + 1] += indptr[source]
    # Each start is moved on to the next one's place while the order is filled, then moved back.
    for edge in range(len(columns)):
        column = columns[edge]
        order[indptr[column]] = edge
        indptr[column] += 1
    for source in range(num_sources, 0, -1):
        indptr[source] = indptr[source - 1]
    indptr[0] = 0
    return indptr, order
