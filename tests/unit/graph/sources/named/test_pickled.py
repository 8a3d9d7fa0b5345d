"""Pickles: arrays of all protocols are read, and nothing else is, whatever a pickle tries."""

from __future__ import annotations

import os
import pickle  # noqa: TID251  only here are pickles made, to show that none is run
import re
import subprocess
import time
import tracemalloc
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from retexo_fl.errors import DatasetError
from retexo_fl.graph.sources.named import pickled
from retexo_fl.graph.sources.named.pickled import read_pickled
from retexo_fl.graph.sources.named.pickled_objects import PickledArray, PickledCsr
from tests.support.python2_pickles import pickled_array

_PROTOCOLS = (0, 1, 2)


def _read(content: bytes) -> object:
    return read_pickled(content, where="file")


def _refused(content: bytes) -> str:
    with pytest.raises(DatasetError) as caught:
        _read(content)
    told = str(caught.value)
    assert told.startswith("file: byte ")
    assert "\n" not in told
    assert len(told) < 200
    return told


def _told(content: bytes) -> str:
    """Return what is said of a pickle that may be in order."""
    try:
        _read(content)
    except DatasetError as error:
        return str(error)
    return "file: byte is in order"


# ---- what is read -------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", _PROTOCOLS)
@pytest.mark.parametrize("dtype", ["<i4", ">i2", "|b1", "<f8", "|u1", "<f4", ">i8"])
def test_arrays_come_back(protocol: int, dtype: str) -> None:
    values = np.arange(6).reshape(2, 3).astype(dtype)
    for array in (values, np.asfortranarray(values), values[0], values[:0]):
        read = _read(pickle.dumps(array, protocol=protocol))
        assert isinstance(read, PickledArray)
        assert read.values is not None
        np.testing.assert_array_equal(read.values, array, strict=True)


@pytest.mark.parametrize("protocol", _PROTOCOLS)
def test_matrices_come_back(protocol: int) -> None:
    matrix = csr_matrix(np.array([[0, 1.5, 0], [2, 0, 3]], dtype=np.float32))
    read = _read(pickle.dumps(matrix, protocol=protocol))
    assert isinstance(read, PickledCsr)
    assert read.attributes["_shape"] == (2, 3)
    for part in ("indptr", "indices", "data"):
        array = read.attributes[part]
        assert isinstance(array, PickledArray)
        assert array.values is not None
        np.testing.assert_array_equal(array.values, getattr(matrix, part))


@pytest.mark.parametrize("protocol", _PROTOCOLS)
def test_plain_values_come_back(protocol: int) -> None:
    graph = defaultdict(list, {0: [1, 70000, -3], 300: [], 2: [2**40, -(2**70)]})
    assert _read(pickle.dumps(graph, protocol=protocol)) == graph
    values = [True, False, None, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), "t\xe4xt\n", {}, {1: 2}]
    assert _read(pickle.dumps(values, protocol=protocol)) == values
    assert _read(pickle.dumps(b"b\x00y\xfftes", protocol=protocol)) == b"b\x00y\xfftes"
    assert _read(pickle.dumps(np.int32(7), protocol=protocol)) == 7


def test_strings_of_python_2_come_back() -> None:
    assert _read(b"S'a\\x00\\xff\\n\\'\"\\\\'\np1\n.") == b"a\x00\xff\n'\"\\"
    assert _read(b'S"it\'s"\n.') == b"it's"
    assert _read(b"U\x03a\x00\xff.") == b"a\x00\xff"
    assert _read(b"(I01\nI00\nL12345678901234567890L\ntp0\n.") == (
        True,
        False,
        12345678901234567890,
    )


def test_values_are_shared_as_they_were() -> None:
    near: list[int] = [1]
    read = _read(pickle.dumps({0: near, 1: near}, protocol=2))
    assert isinstance(read, dict)
    assert read[0] is read[1]


# ---- what a pickle could do ---------------------------------------------------------------------


class _Calls:
    """Pickled as a call."""

    def __init__(self, function: Any, *arguments: object) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[object, ...]]:
        return self._call


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_no_call_is_made(protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    attacks: list[Any] = [
        _Calls(os.system, f"touch {mark}"),
        _Calls(eval, f"open({str(mark)!r}, 'w')"),
        _Calls(exec, f"open({str(mark)!r}, 'w')"),
        _Calls(subprocess.run, ["touch", str(mark)]),
        _Calls(open, str(mark), "w"),
        _Calls(np.save, str(mark), np.ones(1)),
        _Calls(getattr, "text", "__class__"),
        _Calls(pickle.loads, b"N."),
    ]
    for attack in attacks:
        for content in (attack, [1, {2: attack}], np.array([attack])):
            told = _refused(pickle.dumps(content, protocol=protocol))
            assert any(reason in told for reason in ("names '", "is of protocol", "calls DTYPE"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"cos\nsystem\n(S'true'\ntR.", "names 'os.system'"),
        (b"cbuiltins\neval\n(X\x01\x00\x00\x001tR.", "names 'builtins.eval'"),
        (b"cnumpy\nload\n(S'x'\ntR.", "names 'numpy.load'"),
        (b"(S'true'\nios\nsystem\n.", "has opcode b'i'"),
        (b"(cos\nsystem\nS'true'\no.", "names 'os.system'"),
        (b"cnumpy\nndarray\n)\x81.", "instantiates NDARRAY"),
        (b"cnumpy\ndtype\n(U\x01OK\x00K\x01tR.", "calls DTYPE in an unknown way"),
        (b"cnumpy\ndtype\n(U\x02V8K\x00K\x01tR.", "calls DTYPE in an unknown way"),
        (b"ccollections\ndefaultdict\ncnumpy\ndtype\n\x85R.", "calls DEFAULTDICT in an unknown"),
        (b"c__builtin__\nlist\n(K\x01tR.", "calls LIST in an unknown way"),
        (b"Pid\n.", "has opcode b'P'"),
        (b"\x82\x01.", "has opcode b'\\x82'"),
        (b"\x80\x04N.", "is of protocol 4"),
        (b"K\x01(K\x02tR.", "not a function"),
        (b"]}b.", "sets the state of a list"),
    ],
)
def test_what_is_not_an_array_is_refused(content: bytes, expected: str) -> None:
    assert expected in _refused(content)


def test_arrays_of_objects_are_refused() -> None:
    for protocol in _PROTOCOLS:
        assert "DTYPE" in _refused(pickle.dumps(np.array([None, "x"]), protocol=protocol))
        fields = np.zeros(2, dtype=[("a", "i4")])
        assert _refused(pickle.dumps(fields, protocol=protocol))
        assert "names 'collections.OrderedDict'" in _refused(
            pickle.dumps(OrderedDict(), protocol=protocol)
        )


def _array_of(shape: bytes, data: bytes) -> bytes:
    """Return the pickle of an int32 array whose parts may contradict each other."""
    head, _, tail = pickled_array(np.zeros((1, 1), dtype=np.int32)).partition(
        b"(K\x01K\x01K\x01\x86"
    )
    start, _, _ = tail.partition(b"\x89")
    return head + b"(K\x01" + shape + start + b"\x89" + data + b"tb."


@pytest.mark.parametrize(
    ("shape", "data"),
    [
        (b"J\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x86", b"U\x04abcd"),
        (b"L" + b"9" * 4000 + b"L\n\x85", b"U\x04abcd"),
        (b"J\xff\xff\xff\xff\x85", b"U\x04abcd"),
        (b"K\x02\x85", b"U\x04abcd"),
        (b"K\x00\x85", b"U\x04abcd"),
        (b"K\x01K\x01K\x01\x87", b"U\x04abcd"),
        (b"U\x01x\x85", b"U\x04abcd"),
        (b"K\x01\x85", b"]"),
        (b"K\x01\x85", b"N"),
        (b"K\x01", b"U\x04abcd"),
    ],
)
def test_shapes_without_their_bytes_are_refused(shape: bytes, data: bytes) -> None:
    _refused(_array_of(shape, data))


def test_bombs_cost_no_more_than_their_bytes() -> None:
    doubled = b"]" + b"".join(
        b"q" + bytes([n]) + b"]q" + bytes([n + 1]) + b"(h" + bytes([n]) + b"h" + bytes([n]) + b"e"
        for n in range(0, 200, 2)
    )
    nested = b"(" * 30_000 + b"t" * 30_000 + b"."
    hashed = b")q\x00" + b"h\x00\x86q\x00" * 200 + b"}h\x00h\x00s."
    bombs = {
        "a place in the memo of two thousand million": b"Nr\xff\xff\xff\x7f.",
        "a string of two gigabytes": b"T\xff\xff\xff\x7fabc",
        "a negative string": b"T\xff\xff\xff\xffabc",
        "a text of four gigabytes": b"X\xff\xff\xff\xffabc",
        "a deep tuple": nested,
        "lists of lists, doubled a hundred times": doubled + b".",
        "a key whose hash takes for ever": hashed,
        "a number of too many digits": b"I" + b"9" * 100_000 + b"\n.",
        "marks only": b"(" * 100_000,
        "a list that holds itself": b"]q\x00h\x00a.",
    }
    for name, content in bombs.items():
        tracemalloc.start()
        begun = time.thread_time()
        _told(content)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 200 * len(content) + 100_000, name
        assert time.thread_time() - begun < 10, name


def test_opcodes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickled, "MOST_OPCODES", 10)
    assert _read(b"(" + b"N" * 7 + b"t.") == (None,) * 7
    assert "has more than 10 opcodes" in _refused(b"(" + b"N" * 8 + b"t.")


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    assert _told(content).startswith("file: byte ")


_REAL = pickle.dumps(
    [csr_matrix(np.eye(3, dtype=np.float32)), np.eye(2), defaultdict(list, {1: [2, 3]})], protocol=2
)


@given(st.integers(0, len(_REAL) - 1), st.integers(0, 255), st.booleans())
def test_damaged_pickles_are_read_or_refused(place: int, byte: int, cut: bool) -> None:
    content = _REAL[:place] if cut else _REAL[:place] + bytes([byte]) + _REAL[place + 1 :]
    assert _told(content).startswith("file: byte ")


def test_the_damage_names_its_place() -> None:
    content = pickled_array(np.ones((2, 2), dtype=np.int32))
    place = content.index(b"U\x10") + 2
    told = _refused(content[:-10])
    assert re.fullmatch(f"file: byte {place}: .* 16 .*bytes.*; expected .*plain arrays", told)
