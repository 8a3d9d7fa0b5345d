"""Which kind of boundary plan takes fewer bytes in a run: ``boundary-plan = auto``.

A cover has at most as many vectors as rows alone, for every pair of clients. It can still take more
bytes: sums of sparse features are less sparse than the rows, and where a narrow row that a layer
reads could cross in place of a wide one that it makes, sums have to be of the wide ones. So bytes
are counted, of all exchanges of the run together; that one kind holds for all pairs loses nothing,
as within a run all vectors of an exchange are equally wide.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np

from retexo_fl.config import RunConfig
from retexo_fl.exchange.levels import level_bytes
from retexo_fl.layers.named import layer_class
from retexo_fl.training.stage_model import ModelShape


class PlanCounts(Protocol):
    """What all clients together would send under a plan of one kind."""

    def vectors(self, kind: str) -> int:
        """Return how many vectors one exchange has."""
        ...

    def feature_bytes(self, kind: str) -> int:
        """Return the payload of the exchange of input features, as the run's codec writes them."""
        ...


def has_choice(config: RunConfig) -> bool:
    """Return whether the plan of a run is left to its bytes, and its layer can follow either."""
    return config.counts_plans and layer_class(config.model).sums_messages


def shorter_plan(
    config: RunConfig, counts: PlanCounts, *, features: int, classes: int, edge_features: int
) -> str:
    """Return the kind of plan that a run follows; ``boundary-plan`` itself where that is chosen.

    Args:
        config: Of the run, with all other keys settled.
        counts: Of its clients.
        features: Width of the input features.
        classes: Number of classes.
        edge_features: Attributes of each edge.
    """
    if config.boundary_plan != "auto":
        return config.boundary_plan
    if not has_choice(config):
        return "rows"
    taken = {}
    for kind in ("rows", "cover"):
        of_kind = replace(config, boundary_plan=kind)
        shape = ModelShape.of(
            of_kind,
            inputs=features,
            classes=config.goal.outputs or classes,
            edge_features=edge_features,
        )
        taken[kind] = sum(
            _exchange_bytes(of_kind, shape, counts, stage) for stage in range(shape.stages)
        )
    return "cover" if taken["cover"] < taken["rows"] else "rows"


def _exchange_bytes(config: RunConfig, shape: ModelShape, counts: PlanCounts, stage: int) -> int:
    kind, width, bits = config.boundary_plan, shape.exchange_width(stage), config.row_bits
    plain = None
    if not stage and not shape.coordinates_cross:
        # First: whoever has looked at the features knows how many vectors there are.
        plain = counts.feature_bytes(kind)
        if shape.basis_of_sums or bits == 32:
            return plain
    vectors = counts.vectors(kind)
    dense = vectors * width * np.dtype(config.dtype).itemsize
    rounded = dense if bits == 32 else level_bytes(vectors, width, bits)
    return rounded if plain is None else min(plain, rounded)
