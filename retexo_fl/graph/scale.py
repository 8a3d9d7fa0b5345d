"""Features whose numbers are so large that a model learns from nothing else."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.graph.features import Features
from retexo_fl.graph.recipes.recipe import FeatureRecipe
from retexo_fl.units import format_count

logger = logging.getLogger(__name__)

#: A column of so many times the size of others drowns them. On a graph of three classes whose
#: columns are of size 1, one of noise of size 30 took a tenth of the accuracy, and one of size 100
#: all of it; within a public data set sizes differ by a factor of 14 at most.
DROWNS: Final = 50.0
#: Numbers below this are of a size that layers are made for.
_LEAST: Final = 20.0
#: Above this a column is too large even among such as itself.
_TOO_LARGE: Final = 1e4
#: Values looked at in one go. Chosen; not tuned.
_CHUNK_VALUES: Final = 2**22
_MOST_NAMED: Final = 5


def column_sizes(parts: Sequence[Features]) -> tuple[np.ndarray, np.ndarray]:
    """Return how large the numbers of each column are where they are not 0.

    Args:
        parts: Rows of features, each [n, F].

    Returns:
        [k] numbers of columns, ascending, of sparse parts those in use alone: there may be more
        than memory has room for; [k] float64, the root of the mean square of the numbers in each, 0
        for a column without any.
    """
    width = int(parts[0].shape[1])
    sparse = [features.indices for features in parts if isinstance(features, csr_array)]
    if len(sparse) == len(parts):
        columns = np.unique(np.concatenate(sparse))
        width = len(columns)
    else:
        columns = np.arange(width)
    squares, counts = np.zeros(width), np.zeros(width)
    for features in parts:
        if isinstance(features, csr_array):
            values = features.data.astype(np.float64)
            places = np.searchsorted(columns, features.indices)
            squares += np.bincount(places, weights=values**2, minlength=width)
            counts += np.bincount(places, weights=values != 0, minlength=width)
            continue
        step = max(1, _CHUNK_VALUES // max(width, 1))
        for first in range(0, len(features), step):
            rows = features[first : first + step].astype(np.float64)
            squares += np.einsum("nf,nf->f", rows, rows)
            counts += np.count_nonzero(rows, axis=0)
    return columns, np.sqrt(squares / np.maximum(counts, 1))


def drowning_columns(sizes: np.ndarray) -> np.ndarray:
    """Return which columns are much larger than the others, or than any model takes.

    Args:
        sizes: [F], of :func:`column_sizes`.

    Returns:
        Their numbers, ascending.
    """
    there = np.sort(sizes[sizes > 0])
    if not len(there):
        return np.empty(0, dtype=np.int64)
    # Of two columns the smaller one replaces the others.
    usual = there[(len(there) - 1) // 2]
    too_large = (sizes > _LEAST) & (sizes > DROWNS * usual)
    return np.flatnonzero(too_large | (sizes > _TOO_LARGE))


def tell_scale(source: str, parts: Sequence[Features], recipe: FeatureRecipe | None = None) -> None:
    """Say which columns of features drown the others, and what to do.

    Args:
        source: Where they come from.
        parts: Rows of features, each [n, F].
        recipe: What made them of columns, by which they are named; None for their numbers.
    """
    columns, sizes = column_sizes(parts)
    found = drowning_columns(sizes)
    if not len(found):
        return
    told = ", ".join(
        f"{_name(recipe, int(columns[at]))} (about {sizes[at]:.2g})" for at in found[:_MOST_NAMED]
    )
    more = (
        f", and {format_count(len(found) - _MOST_NAMED)} more" if len(found) > _MOST_NAMED else ""
    )
    logger.warning(
        "%s: features: %s%s %s so large that a model learns little from the others; standardise "
        "%s, each less its mean and divided by its deviation (for tables --features auto does it), "
        "or leave %s out",
        *(source, told, more),
        *(("is", "it", "it") if len(found) == 1 else ("are", "them", "them")),
    )


def _name(recipe: FeatureRecipe | None, at: int) -> str:
    if recipe is None or not recipe.columns:
        return f"column {at}"
    return repr(recipe.feature_names[at])
