"""Values of a file that somebody else may have written: refused by its path and their key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from retexo_fl.errors import ConfigurationError

#: Characters of a key, or of a refused value, that an error repeats.
_MOST_SHOWN: Final = 60
#: Far above a summary of thousands of columns.
MOST_BYTES: Final = 2**26


def parsed_json(content: bytes, path: Path) -> dict[str, Any]:
    """Return the object that a file of JSON holds.

    Raises:
        ConfigurationError: It holds none, or is too large.
    """
    if len(content) > MOST_BYTES:
        raise ConfigurationError(f"{path}: more than {MOST_BYTES} bytes; expected a summary")
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path}: not JSON ({error}); expected a summary") from error
    return object_of(path, "summary", values)


def object_of(path: Path, key: str, value: object) -> dict[str, Any]:
    """Return an object.

    Raises:
        ConfigurationError: It is none.
    """
    if not isinstance(value, dict):
        fail(path, key, value, "an object")
    return value


def check_keys(
    path: Path,
    name: str,
    values: Mapping[str, object],
    known: frozenset[str],
    *,
    optional: frozenset[str] = frozenset(),
) -> None:
    """Check which keys an object or a table has: all that are known, but ``optional`` ones.

    Raises:
        ConfigurationError: One is missing, or unknown.
    """
    missing, unknown = sorted(known - optional - values.keys()), sorted(values.keys() - known)
    if missing or unknown:
        told = f"{missing[0]}: missing" if missing else f"{unknown[0][:60]}: unknown key"
        raise ConfigurationError(
            f"{path}: {name[:60]}: {told}; expected {', '.join(sorted(known))}"
        )


def texts_of(path: Path, key: str, value: object) -> frozenset[str]:
    """Return a list of texts as a set.

    Raises:
        ConfigurationError: It is none.
    """
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        fail(path, key, value, "a list of texts")
    return frozenset(value)


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
