"""Dataclasses as JSON objects and back; what is wrong is named with its file and key.

A field's metadata may rename its key (:func:`key`), leave it out where it has no value
(:data:`OMITTED`), or spread a mapping over keys with a suffix (:func:`spread`). A key that is
absent takes the field's default, so that files of earlier versions stay readable.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import MappingProxyType, UnionType
from typing import Any, Final, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from retexo_fl.errors import RunDirectoryError

T = TypeVar("T")

#: Metadata of a field that is written only where it is not its default.
OMITTED: Final[Mapping[str, Any]] = MappingProxyType({"omitted": True})
#: Whole numbers that every count and sum of bytes is below.
_MOST_WHOLE: Final = 2**63 - 1
#: Above it the span of an axis is no float64.
_MOST_NUMBER: Final = 1e300
_NOUNS: Final = MappingProxyType({int: "a whole number", float: "a finite number", str: "text"})


def key(name: str) -> Mapping[str, Any]:
    """Return the metadata of a field that has another name in the file."""
    return MappingProxyType({"key": name})


def spread(suffix: str) -> Mapping[str, Any]:
    """Return the metadata of a mapping whose keys are written, with a suffix, beside the others."""
    return MappingProxyType({"spread": suffix})


# ---- writing ------------------------------------------------------------------------------------


def to_json(value: object) -> Any:
    """Return a dataclass as what :mod:`json` writes."""
    if is_dataclass(value) and not isinstance(value, type):
        return dict(_entries(value))
    if isinstance(value, Mapping):
        return {str(name): to_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


def _entries(value: Any) -> Iterator[tuple[str, object]]:
    for field in fields(value):
        content = getattr(value, field.name)
        if "spread" in field.metadata:
            suffix = field.metadata["spread"]
            yield from ((f"{name}{suffix}", item) for name, item in content.items())
        elif not (field.metadata.get("omitted") and content == field.default):
            yield _key_of(field), to_json(content)


# ---- reading ------------------------------------------------------------------------------------


def parse_object(text: str, place: str) -> dict[str, object]:
    """Parse one JSON object; ``NaN`` and ``Infinity`` are read as null.

    Args:
        text: JSON text.
        place: File (and line) for errors.

    Raises:
        RunDirectoryError: The text is no JSON, or no object.
    """
    try:
        value = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise RunDirectoryError(f"{place}: damaged JSON ({error})") from error
    if not isinstance(value, dict):
        raise RunDirectoryError(f"{place}: expected a JSON object, found {text.strip():.40}")
    return value


def read(kind: type[T], values: Mapping[str, object], place: str) -> T:
    """Make a dataclass of a JSON object; keys that it does not have are skipped.

    Args:
        kind: The class; its fields are numbers, texts, dataclasses, or tuples or mappings of them,
            or may be null. A number or null is null where it is not finite, or beyond all charts.
        values: The object.
        place: File, and line or key, for errors.

    Raises:
        RunDirectoryError: A key is absent, or a value of the wrong kind.
    """
    return kind(**dict(_read_fields(kind, values, place)))


def _read_fields(
    kind: type[Any], values: Mapping[str, object], place: str
) -> Iterator[tuple[str, object]]:
    known = _hints(cast(Hashable, kind))
    for field in fields(kind):
        hint, name = known[field.name], _key_of(field)
        if "spread" in field.metadata:
            suffix, others = field.metadata["spread"], {_key_of(other) for other in fields(kind)}
            found = {name for name in values if name.endswith(suffix)} - others
            yield (
                field.name,
                {
                    name.removesuffix(suffix): _read(get_args(hint)[1], values[name], name, place)
                    for name in values
                    if name in found
                },
            )
        elif name in values:
            yield field.name, _read(hint, values[name], name, place)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise RunDirectoryError(f"{place}: key {name!r} is absent")


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(kind)


def _key_of(field: Field[Any]) -> str:
    name: str = field.metadata.get("key", field.name)
    return name


def _read(hint: Any, value: object, name: str, place: str) -> Any:
    """Check and convert one value to its field's type."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        (hint,) = (part for part in parts if part is not type(None))
        return None if value is None else _read_known(hint, value, name, place, or_none=True)
    return _read_known(hint, value, name, place, or_none=False)


def _read_known(hint: Any, value: object, name: str, place: str, *, or_none: bool) -> Any:
    if hint is object:
        return value
    if hint in _NOUNS:
        return _read_scalar(hint, value, name, place, or_none=or_none)
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise _wrong(value, name, place, "a list")
        parts = get_args(hint)
        if parts[1] is not Ellipsis and len(value) != len(parts):
            raise _wrong(value, name, place, f"a list of {len(parts)}")
        return tuple(
            _read(parts[0], item, f"{name}[{index}]", place) for index, item in enumerate(value)
        )
    if not isinstance(value, dict):
        raise _wrong(value, name, place, "an object")
    inside = f"{place}, {name}"
    if isinstance(hint, type):
        return read(hint, value, inside)
    (_, part) = get_args(hint)
    return {entry: _read(part, item, entry, inside) for entry, item in value.items()}


def _read_scalar(hint: Any, value: object, name: str, place: str, *, or_none: bool) -> Any:
    kinds = int | float if hint is float else hint
    if isinstance(value, bool) or not isinstance(value, kinds):
        expected = "a number or null" if hint is float and or_none else _NOUNS[hint]
        raise _wrong(value, name, place, expected)
    if hint is int and abs(value) > _MOST_WHOLE:
        raise _wrong(value, name, place, _NOUNS[hint])
    if hint is not float:
        return value
    # An int of any length compares with a float; NaN is below nothing.
    if abs(value) <= _MOST_NUMBER:
        return float(value)
    if or_none:
        return None
    raise _wrong(value, name, place, _NOUNS[hint])


def _wrong(value: object, name: str, place: str, expected: str) -> RunDirectoryError:
    found = json.dumps(value, default=str)
    return RunDirectoryError(f"{place}: key {name!r} is {found:.60}, expected {expected}")
