"""Updates without their zeros: to the bit, never longer, and checked before they are believed."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.updates.zeros import Groups, bytes_with_zeros, with_zeros, without_zeros

HEAD = struct.Struct("<BBQI")


@st.composite
def updates(draw: st.DrawFn) -> np.ndarray:
    """Return values of which many groups are zero, some with a sign, and some are odd."""
    dtype = draw(st.sampled_from(["float32", "float64"]))
    size = draw(st.integers(0, 300))
    values = draw(
        arrays(
            dtype,
            size,
            elements=st.sampled_from([0.0, -0.0, 1.5, -2.0, float("nan"), float("inf")]),
            fill=st.just(0.0),
        )
    )
    return np.asarray(values)


@given(updates())
def test_every_bit_comes_back_and_nothing_grows(values: np.ndarray) -> None:
    coded = without_zeros(values)
    assert coded.nbytes <= values.nbytes
    back = with_zeros(coded)
    assert back.dtype == values.dtype
    assert back.tobytes() == values.tobytes()
    if coded.dtype == np.uint8:
        assert bytes_with_zeros(coded.tobytes()) == values.nbytes


@given(updates(), st.data())
def test_spans_change_nothing(values: np.ndarray, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(values)), max_size=12, unique=True).map(sorted))
    spans = np.array(cuts[: len(cuts) // 2 * 2], np.int64).reshape(-1, 2)
    inside = np.zeros(len(values), bool)
    for start, stop in spans:
        inside[start:stop] = True
    within = np.where(inside, values, values.dtype.type(0))
    assert without_zeros(within, spans).tobytes() == without_zeros(within).tobytes()


@given(updates())
def test_groups_add_up_as_their_values_do(values: np.ndarray) -> None:
    many = np.concatenate([np.zeros(400, values.dtype), values])
    coded = without_zeros(many)
    assume(coded.dtype == np.uint8)
    groups = Groups.read(coded)
    assert (groups.shape, groups.dtype) == (many.shape, many.dtype)
    before = np.random.default_rng(0).normal(size=len(many)).astype(many.dtype)
    before[::3] = 0
    total, expected = before.copy(), before.copy()
    with np.errstate(invalid="ignore"):
        expected += many
        groups.add_to(total)
    assert total.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_of_features_that_a_client_lacks_take_no_bytes(dtype: str) -> None:
    rows = np.zeros((1000, 16), dtype)
    rows[::20] = 1.0
    values = np.concatenate([rows.reshape(-1), np.ones(5, dtype)])
    assert without_zeros(values).nbytes < values.nbytes / 15
    whole = np.ones(800, dtype)
    assert without_zeros(whole) is whole


def test_other_codes_count_as_they_are() -> None:
    assert bytes_with_zeros(b"") == 0
    assert bytes_with_zeros(bytes(range(1, 200))) == 199


def coded(**changes: bytes | int) -> np.ndarray:
    """Return 800 coded values, 8 of them no zeros, with a part of it changed."""
    values = np.zeros(800, np.float32)
    values[8:16] = 1.0
    content = without_zeros(values).tobytes()
    form, size, count, packed = HEAD.unpack_from(content)
    bits = changes.get("bits", content[HEAD.size : HEAD.size + packed])
    assert isinstance(bits, bytes)
    head = HEAD.pack(
        changes.get("form", form), changes.get("size", size), changes.get("count", count), len(bits)
    )
    body = changes.get("body", content[HEAD.size + packed :])
    assert isinstance(body, bytes)
    return np.frombuffer(head + bits + body, np.uint8)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"form": 1}, "begins with form 1"),
        ({"size": 5}, "5 bytes a value"),
        ({"count": 2**40}, "at most 268435456"),
        ({"count": 2**28}, "bytes of bits; expected 4194304"),
        ({"count": 700}, "bytes of bits; expected 11"),
        ({"bits": b"no"}, "without zeros: Error -3"),
        ({"bits": zlib.compress(bytes(10**6))}, "has 14 bytes of bits; expected 13"),
        ({"bits": zlib.compress(bytes(13)) + b"more"}, "bytes of bits"),
        ({"bits": zlib.compress(bytes(13))}, "has 32 bytes of values; expected 0"),
        ({"body": b"123"}, "has 3 bytes of values; expected 32"),
    ],
)
def test_what_cannot_be_decoded_is_refused(changes: dict[str, bytes | int], expected: str) -> None:
    with pytest.raises(RemoteProtocolError, match=expected):
        with_zeros(coded(**changes))


def test_less_than_a_head_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="is 3 bytes"):
        with_zeros(np.zeros(3, np.uint8))
