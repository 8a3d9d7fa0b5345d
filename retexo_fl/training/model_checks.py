"""What a model demands of a configuration and of a graph, in one line where it is not so."""

from __future__ import annotations

from typing import Final

from retexo_fl.config import RunConfig
from retexo_fl.errors import ConfigurationError
from retexo_fl.layers.base import GraphLayer
from retexo_fl.layers.named import layer_class
from retexo_fl.relations import Relations

#: Models that any typed graph goes with.
OVER_TYPES: Final = "rel-sage, rel-gcn or rel-gat"


def takes_types(model: str, *, has_types: bool) -> bool:
    """Return whether a model takes a graph whose nodes have types, or none."""
    directions = layer_class(model).directions
    return directions == "any" or has_types == (directions == "typed")


def relations_read(config: RunConfig, relations: Relations | None, inputs: int) -> Relations | None:
    """Return the relations of a graph where the model reads them, and all that is asked for can."""
    if not takes_types(config.model, has_types=relations is not None):
        has, expected = ("types", OVER_TYPES) if relations else ("no types", "sage")
        raise ConfigurationError(
            f"model: {config.model} does not go with a graph whose nodes have {has}; expected "
            f"{expected}"
        )
    if relations is None:
        return None
    if relations.num_features != inputs:
        raise ConfigurationError(
            f"relations: types have {relations.num_features} columns; expected {inputs}"
        )
    if config.sampler != "none":
        raise ConfigurationError(
            f"sampler: {config.sampler} does not go with nodes of several types yet; expected none"
        )
    return relations


def check_basis_rows(config: RunConfig) -> None:
    """Refuse a basis of sums that the first layer does not make."""
    layer = layer_class(config.model)
    if config.basis_rows != "own" and layer.directions != "typed" and layer.fixed_width(1) is None:
        raise ConfigurationError(
            f"basis-rows: {config.basis_rows} does not go with model {config.model}, whose first "
            "layer makes no fixed sums of features; expected own, or a model as gcn, sage, gin"
        )


def check_solved(config: RunConfig) -> None:
    """Refuse to solve for layers that are more than linear in fixed sums."""
    if not is_solvable(config.model):
        raise ConfigurationError(
            f"solver: ridge does not go with model {config.model}, which is not linear in fixed "
            "sums of features; expected rounds, or a model as gcn, sage"
        )


def is_solvable(model: str) -> bool:
    """Return whether a layer is linear in fixed sums of features."""
    layer = layer_class(model)
    return layer.fixed_width(1) is not None and layer.start_as is not GraphLayer.start_as
