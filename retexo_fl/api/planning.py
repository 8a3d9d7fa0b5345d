"""What a training would move, before it is started."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from retexo_fl.api.plan_exchanges import PlannedParts
from retexo_fl.api.plan_facts import exchanged_of, plan_facts, profile_facts_of
from retexo_fl.api.profile_choice import chosen_profile
from retexo_fl.api.settling import Asked, fitted, settled
from retexo_fl.config import RunConfig
from retexo_fl.errors import ConfigurationError
from retexo_fl.layers.named import layer_class
from retexo_fl.methods.forecasts import forecast_of
from retexo_fl.progress.steps import Step
from retexo_fl.run_log.json_form import to_json
from retexo_fl.run_log.profile import ChosenProfile


def planned(asked: Asked, *, tolerated: int = 0) -> tuple[RunConfig, dict[str, Any], ChosenProfile]:
    """Return the configuration that a run with these keys has, the facts of its plan, its profile.

    Args:
        asked: The keys.
        tolerated: See :func:`.plan_facts`.

    Raises:
        InputError: The configuration, or the graph that it names, cannot be used.
    """
    asked = asked.of_run()
    config = settled(asked)
    layer_class(config.model)
    if tolerated and config.secure_aggregation != "masked":
        raise ConfigurationError(
            f"tolerated: {tolerated}, where sums are not masked; expected secure-aggregation masked"
        )
    loaded = asked.load(config)
    counted = PlannedParts(loaded.parts)
    config, fit = fitted(loaded.config, counted, asked)
    with Step("counting what each algorithm and profile would move"):
        profile = chosen_profile(config, counted, asked, fit=fit, masks=loaded.masks)
        facts = {**plan_facts(config, counted, tolerated=tolerated), "profile": to_json(profile)}
        if profiles := forecast_of(config).profiles:
            facts["profiles"] = {name: _profile_facts(asked, counted, name) for name in profiles}
            facts["second_rows"] = {
                way: _exchanged(asked, counted, way) for way in ("full", "class", "none")
            }
    return config, facts, profile


def _exchanged(asked: Asked, planned: PlannedParts, second_rows: str) -> int | None:
    """Return what clients send each other at most with such rows; None if options contradict it."""
    try:
        other = replace(asked, values={**asked.values, "second-rows": second_rows})
        return exchanged_of(fitted(settled(other), planned, other)[0], planned)
    except ConfigurationError:
        return None


def _profile_facts(asked: Asked, planned: PlannedParts, profile: str) -> dict[str, Any] | None:
    """Return the facts of a profile with the user's keys; None if these contradict it."""
    try:
        of_profile = replace(asked, profile=profile)
        config = fitted(settled(of_profile), planned, of_profile)[0]
        return profile_facts_of(config, planned)
    except ConfigurationError:
        return None
