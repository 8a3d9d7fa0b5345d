"""The configuration of a run: flat keys, checked when a :class:`RunConfig` is made of them."""

from retexo_fl.config.checks import AUTO_FEATURES, DATA_PATH_KEYS, NO_FEATURES
from retexo_fl.config.goals import GOALS
from retexo_fl.config.keys import Scalar
from retexo_fl.config.run_config import (
    PLACE_KEYS,
    RunConfig,
    check_value,
    client_plugins,
    config_digest,
    config_values,
    default_values,
    field_of,
    free_keys,
    key_infos,
    key_of,
    make_config,
    named_plugins,
    nearest_key,
    panels,
    parse_value,
)
from retexo_fl.config.value_forms import DEVICES, LINK, LINK_EXPECTED, LINK_PROFILES, LINKS, shown

__all__ = [
    "AUTO_FEATURES",
    "DATA_PATH_KEYS",
    "DEVICES",
    "GOALS",
    "LINK",
    "LINKS",
    "LINK_EXPECTED",
    "LINK_PROFILES",
    "NO_FEATURES",
    "PLACE_KEYS",
    "RunConfig",
    "Scalar",
    "check_value",
    "client_plugins",
    "config_digest",
    "config_values",
    "default_values",
    "field_of",
    "free_keys",
    "key_infos",
    "key_of",
    "make_config",
    "named_plugins",
    "nearest_key",
    "panels",
    "parse_value",
    "shown",
]
