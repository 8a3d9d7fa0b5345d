"""The floor of a trained model: a ridge regression on the first blocks of rows that crossed anyway.

Before the last of two layers peers are sent what the first one reads: of nodes' coordinates z, and
with M the operator of its sums, z and M z. What the last layer would read of these themselves is
M M z, and z and M z where a layer reads own rows apart, at no further byte between clients. A ridge
regression (:mod:`.ridge`) on the first blocks of that is what a trained model has to beat on
validation nodes: on noisy or dense graphs few linear coordinates can say more than hidden layers.

The regression's weights are in the last layer of a model whose first one passes its sums on, with
zeros for what it does not read.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from retexo_fl.layers.named import layer_class
from retexo_fl.training.stage_model import ModelShape

#: Of the basis, so many are read: more fitted train nodes, and helped no graph.
_BLOCKS: Final = 3


def read_columns(shape: ModelShape) -> np.ndarray:
    """Return the (k,) columns, of those that the last layer reads, which a regression reads.

    Of a floor they are the first blocks of each kind of sums; of sums in two orders, which are the
    same up to rounding, one.

    Args:
        shape: Of a model of which the last layer is solved for.
    """
    if not shape.wants_floor:
        return np.arange(shape.read_width)
    width = shape.inputs
    kinds = (layer_class(shape.model).fixed_width(width) or 0) // width
    few = np.arange(min(_BLOCKS * shape.classes, width))
    ordered = [(last, first) for last in range(kinds) for first in range(last, kinds)]
    return np.concatenate([(last * kinds + first) * width + few for last, first in ordered])
