"""The digest of a configuration: it binds all that decides what a client answers."""

from __future__ import annotations

from copy import copy
from dataclasses import fields
from typing import Any

import pytest

from retexo_fl.config import RunConfig, config_digest, free_keys, key_of, make_config

CONFIG = make_config({})


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    return f"{value}x" if isinstance(value, str) else value + 1


@pytest.mark.parametrize("name", [item.name for item in fields(RunConfig)])
def test_every_key_that_may_not_change_in_a_job_is_bound(name: str) -> None:
    other = copy(CONFIG)
    # Of whatever value: that it cannot be is another's to check.
    object.__setattr__(other, name, _other(getattr(CONFIG, name)))
    is_bound = config_digest(other) != config_digest(CONFIG)
    assert is_bound == (key_of(name) not in free_keys())


def test_the_same_values_have_one_digest_however_they_are_given() -> None:
    assert config_digest(make_config({"seed": 0, "clients": 5})) == config_digest(CONFIG)
