"""Which profile a run has, why, and what it costs where lean training was left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from retexo_fl.api.plan_exchanges import PlannedParts
from retexo_fl.api.plan_facts import profile_facts_of
from retexo_fl.api.settling import Asked, fitted
from retexo_fl.config import RunConfig, Scalar, config_values, default_values, make_config
from retexo_fl.config.profiles import DEFAULT_PROFILE, profile_values
from retexo_fl.errors import InputError
from retexo_fl.methods.keys import check_algorithm
from retexo_fl.methods.pieces.floor.misfit import no_floor
from retexo_fl.run_log.profile import ChosenProfile
from retexo_fl.training.stage_model import ModelShape

#: Keys without which a training is no way to compare with.
_OF_WHAT: Final = frozenset({"task", "model"})


def chosen_profile(
    config: RunConfig, planned: PlannedParts, asked: Asked, *, fit: str, masks: str
) -> ChosenProfile:
    """Return the profile of a run whose graph is here.

    Args:
        config: Of the run, fitted to the graph.
        planned: All clients' parts.
        asked: What the user asked for, with a profile.
        fit: What was fitted (:func:`~retexo_fl.api.settling.fitted`).
        masks: Likewise, of the split (:class:`~retexo_fl.client.preparation.SettledParts`).
    """
    profile = named_profile(asked)
    missing = ""
    if "floor" in asked.fitting.chosen:
        missing = no_floor(config, ModelShape.of_part(config, planned.parts[0]))
    fit = "; ".join(filter(None, (fit, masks, missing)))
    if profile.name == DEFAULT_PROFILE:
        return replace(profile, fit=fit)
    lean = _lean_at_most(config, planned, asked)
    advice = ""
    if asked.left:
        advice = f"--profile {DEFAULT_PROFILE} keeps it"
        if lean is None:
            advice = f"{DEFAULT_PROFILE} does not go with it"
            lean = _lean_at_most(config, planned, asked, without=asked.left)
    return replace(
        profile,
        fit=fit,
        payload_at_most=_at_most(config, planned),
        lean_at_most=lean,
        advice=advice,
    )


def named_profile(asked: Asked) -> ChosenProfile:
    """Return the profile of a run, and why it has it, without a look at its graph."""
    assert asked.profile is not None
    return ChosenProfile.by(asked.profile, asked.left, {**asked.in_file, **asked.values})


def _lean_at_most(
    config: RunConfig, planned: PlannedParts, asked: Asked, *, without: Sequence[str] = ()
) -> int | None:
    """Return what the default profile moves, ``without`` some keys; None if it cannot be."""
    assert asked.profile is not None
    if not _OF_WHAT.isdisjoint(without):
        return None
    every = {**asked.in_file, **asked.values}
    chosen = {key: value for key, value in every.items() if key not in without}
    unset = {*profile_values(asked.profile), *without} - chosen.keys()
    lean = {k: v for k, v in profile_values(DEFAULT_PROFILE, chosen).items() if k not in chosen}
    values: Mapping[str, Scalar] = {
        **config_values(config),
        **{key: default_values()[key] for key in unset},
        **lean,
    }
    try:
        check_algorithm(values)
        of_lean = replace(asked, profile=DEFAULT_PROFILE)
        return _at_most(fitted(make_config(values), planned, of_lean)[0], planned)
    except InputError:
        return None


def _at_most(config: RunConfig, planned: PlannedParts) -> int:
    payload: int = profile_facts_of(config, planned)["payload_at_most"]
    return payload
