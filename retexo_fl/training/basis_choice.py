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

from retexo_fl.layers.named import layer_class
from retexo_fl.training.ridge import judged_values, validated_fit
from retexo_fl.training.stage_model import ModelShape

#: Of which rows a basis may be, in the order in which both are sent.
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
    """Return how many values a client sends of both kinds: :func:`.judged_sums` of each."""
    return len(KINDS) * judged_values(read_width(shape), shape.classes)


def choice_errors(sums: np.ndarray, shape: ModelShape) -> tuple[float | None, ...]:
    """Return the least squared error a validation node of each kind; None without such nodes.

    Args:
        sums: (:func:`choice_values`,) of all clients.
        shape: Of the model.
    """
    width, classes = read_width(shape), shape.classes
    found = (validated_fit(s, width=width, classes=classes) for s in np.split(sums, len(KINDS)))
    return tuple(error for _, error in found)
