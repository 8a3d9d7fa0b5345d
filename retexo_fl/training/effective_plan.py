"""What a run's peers send each other, given its layer."""

from __future__ import annotations

import logging

from retexo_fl.config import RunConfig

logger = logging.getLogger(__name__)


def effective_plan(config: RunConfig) -> str:
    """Return the kind of plan that a run follows: ``boundary-plan``, where its layer allows it.

    Where nobody could count which one is shorter (:mod:`.shorter_plan`), that is the plan of rows.

    A partial sum replaces rows that its receiver does not see one by one. A layer that weighs
    rows by what is in them (attention), or takes their maximum, needs the rows: it keeps the plan
    of rows. So does a layer of the user's own that does not declare ``sums_messages``.

    Raises:
        PluginError: The model is no layer.
    """
    if config.boundary_plan != "cover":
        return "rows"
    from retexo_fl.layers.named import layer_class

    return config.boundary_plan if layer_class(config.model).sums_messages else "rows"


def note_effective_plan(config: RunConfig) -> None:
    """Log where a run does not follow the plan that was asked for."""
    followed = effective_plan(config)
    if config.boundary_plan == "cover" and followed != "cover":
        logger.warning(
            "boundary-plan: model %s needs each neighbour's own row; peers send %s, not a %s",
            config.model,
            followed,
            config.boundary_plan,
        )
