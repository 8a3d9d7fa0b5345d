"""Random generators that differ by purpose, so that no two choices of one seed are correlated."""

from __future__ import annotations

import numpy as np


def seeded_generator(seed: int, purpose: str) -> np.random.Generator:
    """Return a generator that depends on the seed and on what it is for.

    With one stream for both, a random partition and a random split would order the nodes alike.

    Args:
        seed: At least 0.
        purpose: A name, such as ``split``.
    """
    return np.random.default_rng([seed, *purpose.encode()])
