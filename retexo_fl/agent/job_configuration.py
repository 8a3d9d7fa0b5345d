"""A job trains with the configuration that it began with."""

from __future__ import annotations

from collections.abc import Mapping

from retexo_fl.config import Scalar, config_values, free_keys, make_config
from retexo_fl.errors import ConfigurationError


def check_same(name: str, known: Mapping[str, Scalar], asked: Mapping[str, Scalar]) -> None:
    """Refuse another configuration than a job's, but for keys that a resumed run may change.

    Raises:
        ConfigurationError: A key has another value; the message names it.
    """
    for key, value in config_values(make_config(asked)).items():
        if key not in free_keys() and known[key] != value:
            raise ConfigurationError(
                f"{key}: got {value!r}; expected {known[key]!r}, with which job {name} was started"
            )
