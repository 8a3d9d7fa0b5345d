"""A job trains with the configuration that it began with."""

from __future__ import annotations

from collections.abc import Mapping

from retexo_fl.config import Scalar, config_values, free_keys, make_config
from retexo_fl.config.profiles import SETTLED
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


def settles(known: Mapping[str, Scalar], asked: Mapping[str, Scalar]) -> bool:
    """Return whether a configuration differs from another in nothing but keys that a run settles.

    That is which keys it may have; what of their values, admission says as of a new job's.
    """
    values = config_values(make_config(asked))
    fixed = values.keys() - SETTLED - free_keys()
    return all(known[key] == values[key] for key in fixed) and any(
        known[key] != values[key] for key in SETTLED
    )
