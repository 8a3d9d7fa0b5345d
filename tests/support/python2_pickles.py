"""Pickles as Python 2 wrote them, byte for byte: protocol 2 of ``cPickle``.

It numbers what it remembers from 1 and remembers only objects that something else refers to; both
can be seen in the public files, whose SHA-256 the files written here must have.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.sparse import csr_array

_BATCH = 1000


def pickled_array(values: np.ndarray) -> bytes:
    """Return the pickle of an array."""
    return b"\x80\x02" + _array(values, _Memo()) + b"."


def pickled_csr(matrix: csr_array) -> bytes:
    """Return the pickle of a ``scipy.sparse.csr.csr_matrix``."""
    memo = _Memo()
    content = b"\x80\x02" + memo.once("csr", b"cscipy.sparse.csr\ncsr_matrix\n")
    content += b")\x81" + memo.new() + b"}" + memo.new() + b"("
    content += _string(b"_shape") + memo.new() + _int(matrix.shape[0]) + _int(matrix.shape[1])
    content += b"\x86" + memo.new()
    for name in ("indices", "indptr", "data"):
        content += _string(name.encode()) + memo.new() + _array(getattr(matrix, name), memo)
    return content + _string(b"maxprint") + memo.new() + b"K2ub."


def pickled_graph(neighbours: Mapping[int, Sequence[int]]) -> bytes:
    """Return the pickle of a ``defaultdict(list)``."""
    memo = _Memo()
    content = b"\x80\x02" + memo.once("defaultdict", b"ccollections\ndefaultdict\n")
    content += memo.once("list", b"c__builtin__\nlist\n") + b"\x85R" + memo.new()
    items = list(neighbours.items())
    for first in range(0, len(items), _BATCH):
        content += b"("
        for node, near in items[first : first + _BATCH]:
            content += _int(node) + b"]" + memo.new()
            content += b"(" + b"".join(map(_int, near)) + b"e" if near else b""
        content += b"u"
    return content + b"."


class _Memo:
    def __init__(self) -> None:
        self._count = 0
        self._places: dict[str, int] = {}

    def new(self) -> bytes:
        """Remember the last value."""
        self._count += 1
        return self._opcode(b"q", b"r", self._count)

    def once(self, name: str, content: bytes) -> bytes:
        """Write something the first time, and refer to it afterwards."""
        if name in self._places:
            return self._opcode(b"h", b"j", self._places[name])
        content += self.new()
        self._places[name] = self._count
        return content

    @staticmethod
    def _opcode(short: bytes, long: bytes, place: int) -> bytes:
        return short + bytes([place]) if place < 256 else long + struct.pack("<I", place)


def _array(values: np.ndarray, memo: _Memo) -> bytes:
    content = memo.once("reconstruct", b"cnumpy.core.multiarray\n_reconstruct\n")
    content += memo.once("ndarray", b"cnumpy\nndarray\n")
    content += b"K\x00\x85U\x01b\x87R" + memo.new() + b"(K\x01"
    content += b"".join(map(_int, values.shape)) + {1: b"\x85", 2: b"\x86"}[values.ndim]
    code = values.dtype.str[1:]
    if code in memo._places:
        content += memo.once(code, b"")
    else:
        content += memo.once("dtype", b"cnumpy\ndtype\n") + _string(code.encode()) + b"K\x00K\x01"
        content += memo.once(code, b"\x87R")
        content += b"(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    return content + b"\x89" + _string(values.tobytes()) + b"tb"


def _string(content: bytes) -> bytes:
    if len(content) < 256:
        return b"U" + bytes([len(content)]) + content
    return b"T" + struct.pack("<i", len(content)) + content


def _int(value: int) -> bytes:
    if value < 256:
        return b"K" + bytes([value])
    return b"M" + struct.pack("<H", value) if value < 65536 else b"J" + struct.pack("<i", value)
