"""A configuration as a TOML file has it."""

from __future__ import annotations

from pathlib import Path

from retexo_fl.config.run_config import check_value, field_of, widened
from retexo_fl.errors import ConfigurationError
from retexo_fl.files import read_toml


def read_config_file(path: Path) -> dict[str, object]:
    """Read a flat TOML file of configuration keys.

    Raises:
        ConfigurationError: The file cannot be read, is not TOML, or holds an unknown key or a value
            that its key does not allow; the message names file and key.
    """
    values = read_toml(path)
    found = {}
    for key, value in values.items():
        try:
            field_of(key)
            found[key] = widened(key, value)
            check_value(key, found[key])
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: {error}") from error
    return found
