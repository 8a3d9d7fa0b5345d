"""Keys of trainings as parameters of a test, with the mark of the addition that they take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def takes_devices(keys: Mapping[str, Any]) -> bool:
    """Return whether a training takes mini-batches or devices other than one CPU."""
    return bool(keys.get("sampler", "none") != "none" or keys.get("devices", "cpu") != "cpu")


def way(keys: Mapping[str, Any], *more: Any, name: str | None = None) -> ParameterSet:
    """Return a parameter: keys, what else a case has, and its name."""
    marks = [pytest.mark.devices] if takes_devices(keys) else []
    return pytest.param(keys, *more, marks=marks, id=name)
