"""Of which rows a basis is made, by validation nodes: each node's own, or sums over neighbours.

No count of nodes and edges knows which of them say more of labels. So the first blocks of both are
made, and every client adds up, of the rows z that the first layer would read by each of the two
bases, sums of products (:mod:`.ridge`) over its train nodes and over its validation nodes, with
``|Y|^2`` of the latter. From their sums over all clients follow ridge regressions of the labels
with every penalty, and their squared errors on validation nodes: own rows are taken where the least
of theirs is lower by a margin.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from retexo_fl.graph.features import Features
from retexo_fl.layers.named import layer_class
from retexo_fl.training.judging import indicators
from retexo_fl.training.ridge import gram_sums, gram_values, least_error
from retexo_fl.training.stage_model import ModelShape

#: Of which rows a basis may be, in the order in which both are told.
KINDS: Final = ("own", "sums")
#: Of each, so many are compared.
PROBE_BLOCKS: Final = 3


def probe_blocks(shape: ModelShape) -> int:
    """Return how many blocks of each kind are compared; 0 where none is chosen."""
    return min(PROBE_BLOCKS, shape.basis_blocks) if shape.chooses_basis else 0


def probe_width(shape: ModelShape) -> int:
    """Return how many directions these are."""
    return min(probe_blocks(shape) * shape.classes, shape.inputs)


def read_width(shape: ModelShape) -> int:
    """Return D, the width of what the first layer reads by so many."""
    return layer_class(shape.model).fixed_width(probe_width(shape)) or 0


def choice_values(shape: ModelShape) -> int:
    """Return how many values a client tells of both kinds."""
    return len(KINDS) * (2 * gram_values(read_width(shape), shape.classes) + 1)


def choice_sums(
    train: tuple[Features, np.ndarray], validation: tuple[Features, np.ndarray], classes: int
) -> np.ndarray:
    """Return a client's sums of one kind, flat, float64.

    Args:
        train: (n, D) rows of train nodes, and their labels.
        validation: The same of validation nodes.
        classes: C.
    """
    squares = np.square(indicators(validation[1], classes)).sum()
    return np.concatenate([gram_sums(*train, classes), gram_sums(*validation, classes), [squares]])


def choice_errors(sums: np.ndarray, shape: ModelShape) -> tuple[float, ...]:
    """Return the least squared error a validation node of each kind.

    Nothing without such nodes, or without train nodes.

    Args:
        sums: (:func:`choice_values`,) of all clients.
        shape: Of the model.
    """
    width, classes = read_width(shape), shape.classes
    size = gram_values(width, classes)
    # Of each sum of products, the place of the number of nodes.
    count = size - (width + 1) * classes - 1
    found = []
    for of_kind in np.split(sums, len(KINDS)):
        train, validation, squares = np.split(of_kind, [size, 2 * size])
        if min(train[count], validation[count]) < 1:
            return ()
        found.append(
            least_error(train, validation, float(squares[0]), width=width, classes=classes)
        )
    return tuple(found)
