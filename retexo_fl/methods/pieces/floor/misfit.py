"""Why a run that is to have a floor has none, in words for its user."""

from __future__ import annotations

from retexo_fl.config import RunConfig, config_values
from retexo_fl.training.effective_plan import effective_plan
from retexo_fl.training.stage_model import ModelShape


def no_floor(config: RunConfig, shape: ModelShape) -> str:
    """Return why a run that is to have a floor has none, in words; none where it has one.

    Args:
        config: Of the run, fitted to its graph.
        shape: Of its model.
    """
    if config.floor == "none" or shape.has_floor:
        return ""
    misfit = _misfit(config, shape)
    return (
        f"no floor, since {config.floor} does not go with {misfit}, so that what is trained is kept"
    )


def _misfit(config: RunConfig, shape: ModelShape) -> str:
    """Return the first key, and its value, that a floor does not go with."""
    values = config_values(config)
    others = {
        "solver": shape.passes_sums,
        "model": not shape.wants_floor,
        "layers": config.layers != 2,
        "basis": not shape.has_basis,
        "row-bits": config.row_bits == 32,
        "boundary-plan": effective_plan(config) != "rows",
    }
    for key in (*config.floor_misfits, *(key for key, is_so in others.items() if is_so)):
        return f"{key} {values[key]}"
    return f"hidden {config.hidden}, which is not wider than what the first layer reads"
