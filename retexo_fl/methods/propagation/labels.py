"""The part that label propagation reads: labels of train nodes take the place of features."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.graph.parts.partition import GraphPartition


def with_labels_as_features(part: GraphPartition) -> GraphPartition:
    """Return a part whose features are F(0): the labels of train nodes, and nothing of others.

    Args:
        part: Of one client, of N nodes of C classes.

    Returns:
        The part with (N, C) float32 features in CSR: a one where a train node's class is.
    """
    is_train = np.asarray(part.train_mask)
    classes = np.asarray(part.labels)[is_train]
    labels = csr_array(
        (np.ones(len(classes), np.float32), classes, np.concatenate(([0], is_train.cumsum()))),
        shape=(part.num_inner, part.num_classes),
    )
    # Where nodes have no features, nothing is made of the edges: labels are all that is read.
    return replace(part, features=labels, is_structural=False)
