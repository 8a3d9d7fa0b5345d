"""Values of a file that somebody else may have written: refused by its path and their key."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NoReturn

from retexo_fl.errors import ConfigurationError

#: Characters of a key, or of a refused value, that an error repeats.
_MOST_SHOWN: Final = 60


def text_of(path: Path, key: str, value: object) -> str:
    """Return a text that is not empty.

    Raises:
        ConfigurationError: It is none.
    """
    if not isinstance(value, str) or not value:
        fail(path, key, value, "a text")
    return value


def switch_of(path: Path, key: str, value: object) -> bool:
    """Return a truth value.

    Raises:
        ConfigurationError: It is none.
    """
    if not isinstance(value, bool):
        fail(path, key, value, "true or false")
    return value


def fail(path: Path, key: str, value: object, expected: str) -> NoReturn:
    """Refuse a value.

    Raises:
        ConfigurationError: Always.
    """
    text = repr(value)
    shown = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
    raise ConfigurationError(f"{path}: {key[:_MOST_SHOWN]}: got {shown}; expected {expected}")
