"""The built-in data set: handwritten digits, each joined to those that look most like it.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning
Repository (CC BY 4.0), the 1,797 test digits as scikit-learn's ``load_digits`` has them. The file
beside this module holds them with their edges: finding these takes longer than a short training.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from retexo_fl.graph.graph import Graph

_FILE: Final = Path(__file__).with_name("digits.npz")
#: Pixels are whole numbers from 0 to 16.
_LARGEST_PIXEL: Final = 16


def load_digits_graph() -> Graph:
    """Return the graph of the digits: 1,797 nodes, 64 features, 10 classes.

    Two digits are joined if either is among the eight nearest of the other, by Euclidean distance;
    of equally near ones those that come first.
    """
    with np.load(_FILE, allow_pickle=False) as arrays:
        pixels, labels, edges = (arrays[name] for name in ("pixels", "labels", "edges"))
    return Graph.from_edges(
        edges.astype(np.int64),
        name="digits",
        features=(pixels / _LARGEST_PIXEL).astype(np.float32),
        labels=labels.astype(np.int64),
    )
