"""Keys of trainings as tests write them, and as parameters with the mark of their addition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from retexo_fl.config.profiles import profile_values


def profile_keys(name: str, *left_out: str) -> dict[str, Any]:
    """Return the keys of a profile as tests write them, in snake case, without some."""
    keys = {key.replace("-", "_"): value for key, value in profile_values(name).items()}
    assert keys.keys() >= {*left_out}
    return {key: value for key, value in keys.items() if key not in left_out}


def takes_devices(keys: Mapping[str, Any]) -> bool:
    """Return whether a training takes mini-batches or devices other than one CPU."""
    return bool(keys.get("sampler", "none") != "none" or keys.get("devices", "cpu") != "cpu")


def way(keys: Mapping[str, Any], *more: Any, name: str | None = None) -> ParameterSet:
    """Return a parameter: keys, what else a case has, and its name."""
    marks = [pytest.mark.devices] if takes_devices(keys) else []
    return pytest.param(keys, *more, marks=marks, id=name)
