"""The configuration of a run: flat keys, checked once, after which no dictionary travels."""

from retexo_fl.config.checks import AUTO_FEATURES, DATA_PATH_KEYS, shown
from retexo_fl.config.file import read_config_file
from retexo_fl.config.goals import GOALS
from retexo_fl.config.keys import Scalar
from retexo_fl.config.profiles import (
    DEFAULT_PROFILE,
    END_TO_END,
    FITTED,
    LAZY_PROFILES,
    PROFILES,
    GraphFacts,
    default_profile,
    fitted_values,
    leaving,
    profile_values,
)
from retexo_fl.config.run_config import (
    PLACE_KEYS,
    RunConfig,
    check_value,
    client_plugins,
    config_values,
    default_values,
    field_of,
    free_keys,
    key_infos,
    key_of,
    make_config,
    nearest_key,
    panels,
    parse_value,
)
from retexo_fl.config.value_forms import DEVICES, LINK, LINK_EXPECTED, LINK_PROFILES, LINKS

__all__ = [
    "AUTO_FEATURES",
    "DATA_PATH_KEYS",
    "DEFAULT_PROFILE",
    "DEVICES",
    "END_TO_END",
    "FITTED",
    "GOALS",
    "LAZY_PROFILES",
    "LINK",
    "LINKS",
    "LINK_EXPECTED",
    "LINK_PROFILES",
    "PLACE_KEYS",
    "PROFILES",
    "GraphFacts",
    "RunConfig",
    "Scalar",
    "check_value",
    "client_plugins",
    "config_values",
    "default_profile",
    "default_values",
    "field_of",
    "fitted_values",
    "free_keys",
    "key_infos",
    "key_of",
    "leaving",
    "make_config",
    "nearest_key",
    "panels",
    "parse_value",
    "profile_values",
    "read_config_file",
    "shown",
]
