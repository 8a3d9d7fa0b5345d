from __future__ import annotations

import io

import numpy as np
import pytest
from flwr.app import Array
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.federation.flat_arrays import pack, unpack

FLOATS = st.sampled_from([np.float32, np.float64])


@given(arrays(dtype=FLOATS, shape=st.integers(0, 20)))
def test_pack_writes_what_flower_writes_and_unpack_reads_it(values: np.ndarray) -> None:
    packed, flower = pack(values), Array(values)
    assert (packed.dtype, packed.shape, packed.stype) == (
        flower.dtype,
        flower.shape,
        flower.stype,
    )
    assert packed.data == flower.data
    for array in (packed, flower):
        result = unpack(array)
        assert result.dtype == values.dtype
        assert result.tobytes() == values.tobytes()


def test_pack_of_a_view_takes_its_values_only() -> None:
    assert unpack(pack(np.arange(6.0)[::2])).tolist() == [0.0, 2.0, 4.0]


def test_unpack_gives_a_view_that_cannot_be_changed() -> None:
    packed = pack(np.ones(3))
    result = unpack(packed)
    assert not result.flags.writeable
    assert np.shares_memory(result, np.frombuffer(packed.data, np.uint8))


def altered(**changes: object) -> Array:
    good = pack(np.arange(3.0))
    given_ = {name: getattr(good, name) for name in ("dtype", "shape", "stype", "data")}
    return Array(**(given_ | changes))


def objects() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array(["x"], dtype=object), allow_pickle=True)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (altered(stype="torch"), "not a .npy array"),
        (altered(data=b""), "not a .npy array"),
        (altered(data=b"PK\x03\x04" + bytes(100)), "not a .npy array"),
        (altered(data=pack(np.arange(3.0)).data[:40]), "not a .npy array"),
        (altered(data=b"\x93NUMPY\x01\x00\x40\x00" + b"import os".ljust(63) + b"\n"), "not a .npy"),
        (
            altered(data=pack(np.arange(3.0)).data[:10] + b"(".ljust(117) + b"\n"),
            "not a .npy array",
        ),
        (altered(shape=(4,)), "announced as"),
        (altered(dtype="float32"), "announced as"),
        (altered(dtype="object", shape=(1,), data=objects()), "not that of a float array"),
        (pack(np.arange(3)), "not that of a float array"),
        (altered(data=pack(np.arange(3.0)).data[:-1]), "151 bytes"),
        (altered(data=pack(np.arange(3.0)).data + b"x"), "153 bytes"),
    ],
)
def test_unpack_refuses_what_is_not_one_whole_float_array(array: Array, said: str) -> None:
    with pytest.raises(RemoteProtocolError, match=said):
        unpack(array)


@given(st.binary(max_size=200))
def test_unpack_of_any_bytes_fails_by_name(data: bytes) -> None:
    head = pack(np.arange(3.0)).data[:10]
    for candidate in (data, head + data):
        with pytest.raises(RemoteProtocolError):
            unpack(altered(data=candidate))
