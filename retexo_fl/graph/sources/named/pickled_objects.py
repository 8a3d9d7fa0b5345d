"""What a pickle of arrays may build: arrays, their dtypes, CSR matrices, dictionaries."""

from __future__ import annotations

import enum
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Final, NoReturn, final

import numpy as np

from retexo_fl.units import counted

#: Raises the error of a pickle that builds something else.
Fail = Callable[[str], NoReturn]

#: Plain numbers of one, two, four or eight bytes.
_DTYPES: Final = frozenset(("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"))
_BYTE_ORDERS: Final = frozenset("<>=|")
#: Labels and dense features have two dimensions.
_MOST_DIMENSIONS: Final = 2


class Global(enum.Enum):
    """A name that a pickle may use: it says what this reader does, and is no object."""

    NEW_ARRAY = enum.auto()
    NDARRAY = enum.auto()
    DTYPE = enum.auto()
    SCALAR = enum.auto()
    CSR_MATRIX = enum.auto()
    NEW_OBJECT = enum.auto()
    OBJECT = enum.auto()
    DEFAULTDICT = enum.auto()
    LIST = enum.auto()
    ENCODE = enum.auto()
    BYTES = enum.auto()


#: By module and name, as NumPy, SciPy and both Pythons have written them over the years.
GLOBALS: Final[Mapping[tuple[str, str], Global]] = {
    ("numpy.core.multiarray", "_reconstruct"): Global.NEW_ARRAY,
    ("numpy._core.multiarray", "_reconstruct"): Global.NEW_ARRAY,
    ("numpy", "ndarray"): Global.NDARRAY,
    ("numpy", "dtype"): Global.DTYPE,
    ("numpy.core.multiarray", "scalar"): Global.SCALAR,
    ("numpy._core.multiarray", "scalar"): Global.SCALAR,
    ("scipy.sparse.csr", "csr_matrix"): Global.CSR_MATRIX,
    ("scipy.sparse._csr", "csr_matrix"): Global.CSR_MATRIX,
    ("copy_reg", "_reconstructor"): Global.NEW_OBJECT,
    ("copyreg", "_reconstructor"): Global.NEW_OBJECT,
    ("__builtin__", "object"): Global.OBJECT,
    ("builtins", "object"): Global.OBJECT,
    ("collections", "defaultdict"): Global.DEFAULTDICT,
    ("__builtin__", "list"): Global.LIST,
    ("builtins", "list"): Global.LIST,
    # How Python 3 writes bytes in a protocol of Python 2, and empty ones.
    ("_codecs", "encode"): Global.ENCODE,
    ("__builtin__", "bytes"): Global.BYTES,
    ("builtins", "bytes"): Global.BYTES,
}


class PickledObject(ABC):
    """Something that a pickle makes first and gives its state afterwards."""

    @abstractmethod
    def build(self, state: object, fail: Fail) -> None:
        """Take the state."""


@final
class PickledDtype(PickledObject):
    """The type of an array's values, by default in this machine's byte order."""

    def __init__(self, code: str) -> None:
        self._code = code
        self._order = "="

    def build(self, state: object, fail: Fail) -> None:
        """Take the byte order; fields and subarrays are refused."""
        if not isinstance(state, tuple) or len(state) < 5 or any(state[2:5]):
            fail("has a dtype that is not a plain number")
        order = plain_text(state[1])
        if order not in _BYTE_ORDERS:
            fail("has a dtype of an unknown byte order")
        self._order = order

    @property
    def dtype(self) -> np.dtype:
        """As NumPy knows it."""
        return np.dtype(self._order + self._code)


@final
class PickledArray(PickledObject):
    """An array; ``values`` is None until its state has come."""

    def __init__(self) -> None:
        self.values: np.ndarray | None = None

    def build(self, state: object, fail: Fail) -> None:
        """Take version, shape, dtype, order and data."""
        match state:
            case (int(), tuple() as shape, PickledDtype() as kind, bool() | int() as by_columns, d):
                self.values = _array(shape, kind.dtype, d, fail, order="F" if by_columns else "C")
            case _:
                fail("has an array whose state is not that of plain numbers")


@final
class PickledCsr(PickledObject):
    """A CSR matrix: its attributes by name."""

    def __init__(self) -> None:
        self.attributes: dict[str, object] = {}

    def build(self, state: object, fail: Fail) -> None:
        """Take the attributes."""
        if not isinstance(state, dict):
            fail("has a matrix without attributes")
        self.attributes = {plain_text(key): value for key, value in state.items()}


def reduced(function: Global, arguments: tuple[object, ...], fail: Fail) -> object:
    """Return what a name makes of its arguments."""
    value: object = None
    match function, arguments:
        case Global.NEW_ARRAY, (Global.NDARRAY, tuple(), _):
            value = PickledArray()
        case Global.DTYPE, (code, *_) if plain_text(code) in _DTYPES:
            value = PickledDtype(plain_text(code))
        case Global.SCALAR, (PickledDtype() as kind, bytes() as data):
            value = _array((), kind.dtype, data, fail, order="C").item()
        case Global.CSR_MATRIX, ():
            value = PickledCsr()
        case Global.NEW_OBJECT, (Global.CSR_MATRIX, Global.OBJECT, None):
            value = PickledCsr()
        case Global.DEFAULTDICT, () | (Global.LIST,):
            value = {}
        case Global.ENCODE, (str() as text, encoding) if plain_text(encoding) == "latin1":
            value = text.encode("latin-1")
        case Global.BYTES, ():
            value = b""
    if value is None:
        fail(f"calls {function.name} in an unknown way")
    return value


def plain_text(value: object) -> str:
    """Return a string of either Python as text; empty for anything else."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str) else ""


def _array(
    shape: tuple[object, ...], dtype: np.dtype, data: object, fail: Fail, *, order: str
) -> np.ndarray:
    if not isinstance(data, bytes):
        fail("has an array of Python objects")
    sizes = [size for size in shape if isinstance(size, int) and 0 <= size < 2**31]
    if len(sizes) != len(shape) or len(shape) > _MOST_DIMENSIONS:
        fail("has an array of an impossible shape")
    if math.prod(sizes) * dtype.itemsize != len(data):
        size = counted(len(data), "byte")
        fail(f"has {size} for an array of {dtype} of shape {tuple(sizes)}")
    flat = np.frombuffer(data, dtype=dtype)
    return flat.reshape(sizes, order="F" if order == "F" else "C")
