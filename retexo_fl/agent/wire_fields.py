"""Requests and answers as JSON and one array, and back with every field's type checked."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Final, TypeVar, cast

import numpy as np

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.units import counted

Record = TypeVar("Record")

#: The dtypes of weights, updates and parcels, by their names on the wire: little-endian everywhere.
_DTYPES: Final = {"float32": "<f4", "float64": "<f8", "uint8": "|u1"}
_MOST_SHOWN: Final = 60
_MAX_INT: Final = 2**63 - 1


def to_fields(record: object) -> dict[str, Any]:
    """Return a dataclass as JSON can say it; its arrays are left out."""
    assert is_dataclass(record)
    return {
        item.name: _to_json(getattr(record, item.name))
        for item in fields(record)
        if not isinstance(getattr(record, item.name), np.ndarray)
    }


def array_of(record: object) -> tuple[str, np.ndarray] | None:
    """Return the name and value of the one array of a dataclass, None if it has none."""
    assert is_dataclass(record)
    found = [(item.name, getattr(record, item.name)) for item in fields(record)]
    arrays = [(name, value) for name, value in found if isinstance(value, np.ndarray)]
    assert len(arrays) < 2, "a message carries one array"
    return arrays[0] if arrays else None


def describe_array(name: str, array: np.ndarray) -> dict[str, Any]:
    """Return what is said of an array beside its bytes."""
    assert array.ndim == 1
    assert array.dtype.name in _DTYPES
    return {"name": name, "dtype": array.dtype.name, "length": len(array)}


def array_bytes(array: np.ndarray) -> memoryview:
    """Return an array's bytes as they go over the wire."""
    return np.ascontiguousarray(array, _DTYPES[array.dtype.name]).data.cast("B")


def read_array(described: object, body: bytes | memoryview) -> tuple[str, np.ndarray] | None:
    """Return the name and the (P,) values of an array, None where none is described.

    Raises:
        RemoteProtocolError: It is not what is said of it.
    """
    if described is None:
        if body:
            raise RemoteProtocolError(f"followed by {counted(len(body), 'byte')}; expected none")
        return None
    facts = read_mapping(described, "array")
    dtype = _DTYPES.get(str(facts.get("dtype")))
    length, name = facts.get("length"), facts.get("name")
    if dtype is None or type(length) is not int or not isinstance(name, str):
        raise RemoteProtocolError(f"array is {_shown(described)}; expected name, dtype and length")
    if length < 0 or length * np.dtype(dtype).itemsize != len(body):
        raise RemoteProtocolError(f"array of {length} {dtype} in {counted(len(body), 'byte')}")
    return name, np.frombuffer(body, dtype=dtype)


def read_mapping(value: object, name: str) -> Mapping[str, Any]:
    """Return a JSON object.

    Raises:
        RemoteProtocolError: It is none.
    """
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"{name} is {_shown(value)}; expected an object")
    return value


def from_fields(
    kind: type[Record], values: object, array: tuple[str, np.ndarray] | None = None
) -> Record:
    """Rebuild a dataclass.

    Args:
        kind: Its class.
        values: From :func:`to_fields`.
        array: Name and value of its array.

    Raises:
        RemoteProtocolError: A field is missing, unknown, or of another type; the message names it.
    """
    found = dict(read_mapping(values, kind.__name__))
    read: dict[str, Any] = {}
    for name, hint in _hints(cast(Any, kind)).items():
        place = f"{kind.__name__}.{name}"
        if array is not None and array[0] == name and _takes_array(hint):
            read[name] = array[1]
            array = None
        elif name not in found:
            if hint is np.ndarray or not _takes_array(hint):
                raise RemoteProtocolError(f"{place}: missing")
            read[name] = None
        else:
            read[name] = _from_json(hint, found.pop(name), place)
    if found or array is not None:
        raise RemoteProtocolError(f"{kind.__name__}: unknown {_shown(sorted(found) or array)}")
    return kind(**read)


@cache
def _hints(kind: type[Any]) -> Mapping[str, Any]:
    return typing.get_type_hints(kind)


def _takes_array(hint: Any) -> bool:
    return hint is np.ndarray or np.ndarray in typing.get_args(hint)


def _to_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if is_dataclass(value):
        return to_fields(value)
    if isinstance(value, np.generic):
        return value.item()
    return list(value) if isinstance(value, tuple) else value


def _from_json(hint: Any, value: Any, place: str) -> Any:
    """Read one value of the type that a field declares."""
    if typing.get_origin(hint) in {types.UnionType, typing.Union}:
        if value is None and type(None) in typing.get_args(hint):
            return None
        hint = next(kind for kind in typing.get_args(hint) if kind is not type(None))
    if is_dataclass(hint) and isinstance(hint, type):
        return from_fields(hint, value)
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise _wrong(place, value, "a list of numbers")
        return tuple(_from_json(typing.get_args(hint)[0], item, place) for item in value)
    return _scalar(hint, value, place)


def _scalar(hint: Any, value: Any, place: str) -> Any:
    if hint is bytes:
        try:
            return bytes.fromhex(value)
        except (TypeError, ValueError) as error:
            raise _wrong(place, value, "hexadecimal digits") from error
    if hint is float and type(value) is int:
        try:
            return float(value)
        except OverflowError as error:
            raise _wrong(place, value, "a number that float64 holds") from error
    if type(value) is not hint:
        raise _wrong(place, value, f"a value of type {hint.__name__}")
    if hint is int and not 0 <= value <= _MAX_INT:
        raise _wrong(place, value, f"a count up to {_MAX_INT}")
    return value


def _wrong(place: str, value: object, expected: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"{place} is {_shown(value)}; expected {expected}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
