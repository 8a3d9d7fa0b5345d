"""Weights and sums as Flower arrays: the ``.npy`` form, written and read without a second copy."""

from __future__ import annotations

import io
import math
import re
from functools import lru_cache
from typing import Final

import numpy as np
from flwr.app import Array
from numpy.lib import format as npy

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.units import counted

#: What Flower calls this form.
_FORM: Final = "numpy.ndarray"
#: Magic bytes, version 1.0, and two bytes that hold the length of the header behind them.
_VERSION_1: Final = b"\x93NUMPY\x01\x00"
_PREFIX_BYTES: Final = 10
_HEADER: Final = re.compile(
    rb"\{'descr': '(?P<dtype><f4|<f8)', 'fortran_order': False, "
    rb"'shape': \((?P<shape>\d{1,18},(?: ?\d{1,18})?)\), \} *\n"
)


def pack(values: np.ndarray) -> Array:
    """Wrap an array in C order; equal in its bytes to ``Array(values)``."""
    dtype, shape = str(values.dtype), values.shape
    data = b"".join((_head(dtype, shape), np.ascontiguousarray(values).data))
    return Array(dtype=dtype, shape=shape, stype=_FORM, data=data)


def unpack(array: Array) -> np.ndarray:
    """Return a read-only view of the values.

    Raises:
        RemoteProtocolError: The bytes are not one whole array of float32 or float64 in little
            endian, of one dimension or two, that is what the record announces.
    """
    try:
        head = _head_bytes(array)
        dtype, shape = _parsed(head)
    except ValueError as error:
        raise RemoteProtocolError(f"got weights that are not a .npy array ({error})") from error
    if (array.dtype, tuple(array.shape)) != (dtype, shape):
        raise RemoteProtocolError(
            f"got weights announced as {array.dtype} of shape {tuple(array.shape)} that are "
            f"{dtype} of shape {shape}"
        )
    expected_bytes = len(head) + math.prod(shape) * np.dtype(dtype).itemsize
    if len(array.data) != expected_bytes:
        raise RemoteProtocolError(
            f"got {counted(len(array.data), 'byte')} of weights of shape {shape}; expected "
            f"{expected_bytes}"
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
    # NumPy's own parser evaluates a literal and has many ways to fail; this form is all it writes.
    found = _HEADER.fullmatch(head[_PREFIX_BYTES:])
    if found is None:
        raise ValueError("its header is not that of a float array")
    sizes = found["shape"].decode().split(",")
    return str(np.dtype(found["dtype"].decode())), tuple(int(size) for size in sizes if size)
