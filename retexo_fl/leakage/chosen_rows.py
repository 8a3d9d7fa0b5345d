"""Rows of its own choice that a peer sends, as it may: nobody else knows what its nodes are."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from scipy.sparse import csr_array, vstack

from retexo_fl.graph.features import Features
from retexo_fl.graph.parts.partition import GraphPartition

#: By what a changed row's values are larger than the largest of its part: rows in few coordinates,
#: or in few bits, then still differ from those before.
_TIMES: Final = 8.0
#: By what a faint one is smaller; zeros would leave a peer nothing to compare with.
_FAINT: Final = 0.05


def with_faint_rows(part: GraphPartition, generator: np.random.Generator) -> GraphPartition:
    """Return a part whose features are small numbers of either sign."""
    features = part.features
    largest = float(abs(features).max()) or 1.0
    drawn = generator.choice(np.array([-1, 1], np.float32), size=features.shape)
    return replace(part, features=drawn * np.float32(_FAINT * largest))


def with_another_row(part: GraphPartition, node: int) -> GraphPartition:
    """Return a part of which one node has a row like no other: large, and of turned signs."""
    features = part.features
    rows = features[[node]]
    dense = np.array(rows if isinstance(rows, np.ndarray) else rows.toarray())
    largest = float(abs(features).max()) or 1.0
    other = np.where(dense > 0, -largest, largest) * np.float32(_TIMES)
    if isinstance(features, np.ndarray):
        changed: Features = np.array(features)
        changed[node] = other
    else:
        pieces = [features[:node], csr_array(other), features[node + 1 :]]
        changed = csr_array(vstack(pieces, format="csr"))
        changed = changed.astype(features.dtype)
    return replace(part, features=changed)
