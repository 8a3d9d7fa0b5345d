"""Weights and sums as Flower arrays: the ``.npy`` form, written and read without a second copy."""

from __future__ import annotations

import io
import math
from functools import lru_cache
from typing import Final

import numpy as np
from flwr.app import Array
from numpy.lib import format as npy

from retexo_fl.errors import RemoteProtocolError

#: What Flower calls this form.
_FORM: Final = "numpy.ndarray"
#: Magic bytes, version 1.0, and two bytes that hold the length of the header behind them.
_VERSION_1: Final = b"\x93NUMPY\x01\x00"
_PREFIX_BYTES: Final = 10
#: The arithmetic of a training; nothing else is read from a message.
_DTYPES: Final = ("float32", "float64")


def pack(values: np.ndarray) -> Array:
    """Wrap an array in C order; equal in its bytes to ``Array(values)``."""
    dtype, shape = str(values.dtype), values.shape
    data = b"".join((_head(dtype, shape), np.ascontiguousarray(values).data))
    return Array(dtype=dtype, shape=shape, stype=_FORM, data=data)


def unpack(array: Array) -> np.ndarray:
    """Return a read-only view of the values.

    Raises:
        RemoteProtocolError: The bytes are not one whole float array of the announced shape.
    """
    try:
        head = _head_bytes(array)
        dtype, shape = _parsed(head)
    except ValueError as error:
        raise RemoteProtocolError(f"got weights that are no .npy array ({error})") from error
    if (array.dtype, tuple(array.shape)) != (dtype, shape) or dtype not in _DTYPES:
        raise RemoteProtocolError(
            f"got {array.dtype} weights of shape {tuple(array.shape)} that hold {dtype} of shape "
            f"{shape}; expected {' or '.join(_DTYPES)}, announced as they are"
        )
    expected_bytes = len(head) + math.prod(shape) * np.dtype(dtype).itemsize
    if len(array.data) != expected_bytes:
        raise RemoteProtocolError(
            f"got {len(array.data)} bytes of weights of shape {shape}; expected {expected_bytes}"
        )
    return np.frombuffer(array.data, dtype=dtype, offset=len(head)).reshape(shape)


def _head_bytes(array: Array) -> bytes:
    data = array.data
    if array.stype != _FORM or data[: len(_VERSION_1)] != _VERSION_1:
        raise ValueError(f"{array.stype!r} beginning with {data[: len(_VERSION_1)]!r}")
    return data[: _PREFIX_BYTES + int.from_bytes(data[8:_PREFIX_BYTES], "little")]


# All messages of a round have the same head, and building or parsing one costs more than the rest.
@lru_cache(maxsize=32)
def _head(dtype: str, shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    described = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(stream, described)
    return stream.getvalue()


@lru_cache(maxsize=32)
def _parsed(head: bytes) -> tuple[str, tuple[int, ...]]:
    stream = io.BytesIO(head)
    npy.read_magic(stream)
    shape, fortran_order, dtype = npy.read_array_header_1_0(stream)
    if fortran_order and len(shape) > 1:
        raise ValueError("columns first")
    return str(dtype), shape
