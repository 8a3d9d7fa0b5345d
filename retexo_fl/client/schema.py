"""A dataclass as flat values and at most one array, and back with every value checked.

Keys are the fields' names in kebab case. What a nested dataclass holds is preceded by the name of
its field (``sent-boundary-raw``), unless that says :data:`FLAT`. Values are counts (whole numbers
from 0), floats, truth values, texts, bytes and lists of counts or floats. Left out is what costs
no byte: None, empty texts and lists, and a nested dataclass that is its default.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Final, TypeVar, cast

import numpy as np

from retexo_fl.errors import RemoteProtocolError

Record = TypeVar("Record")

#: Metadata of a field whose dataclass adds no name of its own to keys.
FLAT: Final = types.MappingProxyType({"prefix": ""})
#: More bytes or nodes than there are; sums over all clients stay exact in float64.
MAX_COUNT: Final = 2**48
_MOST_SHOWN: Final = 60


def named(key: str) -> Mapping[str, str]:
    """Return metadata of a field whose key is not its name."""
    return {"key": key}


def flatten(record: object) -> tuple[dict[str, Any], np.ndarray | None]:
    """Return the values of a dataclass by key, and its array if it has one."""
    values: dict[str, Any] = {}
    arrays: list[np.ndarray] = []
    _flatten(record, "", values, arrays)
    assert len(arrays) < 2, "a record has one array at most"
    return values, arrays[0] if arrays else None


def rebuild(
    kind: type[Record], values: Mapping[str, Any], array: np.ndarray | None = None
) -> Record:
    """Return the dataclass that :func:`flatten` was given.

    Args:
        kind: Its class.
        values: By key; a truth value may be 0 or 1, an array may be bytes, which are uint8.
        array: Its array.

    Raises:
        RemoteProtocolError: A value is missing, unknown, or of another type; the message names it.
    """
    reader = _Reader(kind.__name__, values, array)
    record: Record = reader.read(kind, "")
    reader.check_all_known()
    return record


def array_key(kind: type[Any]) -> str:
    """Return the key of the array of a class that has one."""
    return next(item.key for item in _items(cast(Any, kind)) if item.is_array)


def key_of(kind: type[Any], name: str) -> str:
    """Return the key of a field of a class."""
    return _keys_by_name(cast(Any, kind))[name]


@cache
def _keys_by_name(kind: Any) -> dict[str, str]:
    return {item.name: item.key.removesuffix("-") for item in _items(kind)}


@dataclass(frozen=True, slots=True)
class _Item:
    """One field: its name in a message, and what it may hold.

    What follows from its type is found once: a message's fields are read by the thousand.
    """

    name: str
    key: str
    hint: Any
    #: Of a list, what its numbers are; None of all else.
    element: Any
    is_array: bool
    is_record: bool
    is_optional: bool
    default: Any


@cache
def _items(kind: Any) -> tuple[_Item, ...]:
    hints = typing.get_type_hints(kind)
    return tuple(_item(field, hints[field.name]) for field in fields(kind))


def _item(field: Field[Any], hint: Any) -> _Item:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    is_optional = type(None) in kinds
    hint = next(kind for kind in kinds if kind is not type(None))
    key = field.metadata.get("key", field.name.replace("_", "-"))
    is_record = is_dataclass(hint)
    if is_record:
        key = field.metadata.get("prefix", f"{key}-")
    default = field.default
    if field.default_factory is not MISSING:
        default = field.default_factory()
    return _Item(
        name=field.name,
        key=key,
        hint=hint,
        element=typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else None,
        is_array=hint is np.ndarray,
        is_record=is_record,
        is_optional=is_optional,
        default=default,
    )


def _flatten(record: object, prefix: str, values: dict[str, Any], arrays: list[np.ndarray]) -> None:
    for item in _items(cast(Any, type(record))):
        value, key = getattr(record, item.name), prefix + item.key
        if isinstance(value, np.ndarray):
            arrays.append(value)
        elif item.is_record:
            if value is not item.default and value != item.default:
                _flatten(value, key, values, arrays)
        elif isinstance(value, tuple | str):
            if value:
                values[key] = list(value) if isinstance(value, tuple) else value
        elif value is not None:
            values[key] = value.item() if isinstance(value, np.generic) else value


class _Reader:
    """Takes values out of a mapping, each once."""

    def __init__(self, kind: str, values: Mapping[str, Any], array: np.ndarray | None) -> None:
        self._kind = kind
        self._values = dict(values)
        self._array = array

    def read(self, kind: Any, prefix: str) -> Any:
        return kind(**{item.name: self._field(item, prefix + item.key) for item in _items(kind)})

    def check_all_known(self) -> None:
        unknown = [*sorted(self._values), *(["an array"] if self._array is not None else [])]
        if unknown:
            raise RemoteProtocolError(f"{self._kind}: unknown {shown(unknown)}")

    def _field(self, item: _Item, key: str) -> Any:
        if item.is_array:
            return self._array_of(item, key)
        if item.is_record:
            if item.default is not MISSING and not any(k.startswith(key) for k in self._values):
                return item.default
            return self.read(item.hint, key)
        if key not in self._values:
            return self._absent(item, key)
        value = self._values.pop(key)
        if item.element is None:
            return self._checked(item.hint, value, key)
        if not isinstance(value, list):
            raise self._wrong(key, shown(value), "a list of numbers")
        return tuple(self._checked(item.element, number, key) for number in value)

    def _absent(self, item: _Item, key: str) -> Any:
        if item.is_optional:
            return None
        if item.element is not None:
            return ()
        if item.hint is str and item.default is not MISSING:
            return item.default
        raise RemoteProtocolError(f"{self._kind}: {key!r} is missing")

    def _array_of(self, item: _Item, key: str) -> np.ndarray | None:
        array, self._array = self._array, None
        if array is not None:
            if array.ndim != 1:
                raise self._wrong(key, f"of shape {array.shape}", "an array of one dimension")
            return array
        if key in self._values:
            content = self._values.pop(key)
            if not isinstance(content, bytes):
                raise self._wrong(key, shown(content), "bytes")
            return np.frombuffer(content, np.uint8)
        if item.is_optional:
            return None
        raise RemoteProtocolError(f"{self._kind}: array {key!r} is missing")

    def _checked(self, hint: Any, value: Any, key: str) -> Any:
        if hint is int:
            if type(value) is not int or not 0 <= value <= MAX_COUNT:
                raise self._wrong(key, shown(value), f"a count up to {MAX_COUNT}")
            return value
        if hint is float and type(value) is int:
            try:
                return float(value)
            except OverflowError as error:
                raise self._wrong(key, shown(value), "a number that float64 holds") from error
        if hint is bool and type(value) is int and value in {0, 1}:
            return bool(value)
        if type(value) is not hint:
            raise self._wrong(key, shown(value), f"a {hint.__name__}")
        return value

    def _wrong(self, key: str, found: str, expected: str) -> RemoteProtocolError:
        return RemoteProtocolError(f"{self._kind}: {key!r} is {found}; expected {expected}")


def shown(value: object) -> str:
    """Return a refused value as an error repeats it."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
