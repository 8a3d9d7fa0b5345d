from __future__ import annotations

import gc
import os
import resource
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from retexo_fl.additions.devices.workers.shared_arrays import (
    ALIGNMENT_BYTES,
    SharedArrays,
    tensor_of,
)
from retexo_fl.errors import DeviceFailed

ANY_ARRAY = st_numpy.arrays(
    st.sampled_from([np.dtype(name) for name in ("f4", "f8", "i4", "i8", "u1", "?")]),
    st_numpy.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
)


def open_descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@given(st.dictionaries(st.text(max_size=4), ANY_ARRAY, max_size=4))
def test_arrays_are_what_they_were(arrays: dict[str, np.ndarray]) -> None:
    with SharedArrays.holding(arrays) as shared:
        mapped = shared.mapped("read")
    assert set(mapped) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(mapped[name], array)
        assert mapped[name].dtype == array.dtype


def test_array_that_is_not_contiguous_is_what_it_was() -> None:
    array = np.arange(24).reshape(4, 6).T[::2]
    with SharedArrays.holding({"a": array}) as shared:
        np.testing.assert_array_equal(shared.mapped("read")["a"], array)


def test_arrays_begin_on_cache_lines() -> None:
    arrays = {str(n): np.zeros(n, np.uint8) for n in (1, 63, 64, 65)}
    with SharedArrays.holding(arrays) as shared:
        mapped = shared.mapped("read")
    assert all(array.ctypes.data % ALIGNMENT_BYTES == 0 for array in mapped.values())


def test_copy_keeps_what_is_written_to_itself() -> None:
    with SharedArrays.holding({"a": np.zeros(2)}) as shared:
        copy, reading = shared.mapped("copy")["a"], shared.mapped("read")["a"]
    copy[0] = 1
    assert copy.tolist() == [1, 0]
    assert reading.tolist() == [0, 0]


def test_mapped_arrays_cannot_be_written() -> None:
    with SharedArrays.holding({"a": np.zeros(3)}) as shared:
        mapped = shared.mapped("read")["a"]
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 1


def test_what_one_mapping_writes_another_reads() -> None:
    with SharedArrays.zeros({"a": (2,), "b": (2, 3)}, np.dtype(np.float32)) as shared:
        writing, reading = shared.mapped("write"), shared.mapped("read")
    writing["b"][1] = [1, 2, 3]
    assert reading["b"].tolist() == [[0, 0, 0], [1, 2, 3]]
    assert reading["b"].dtype == np.float32


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs Linux")  # noqa: PTH112
def test_nothing_stays_open() -> None:
    before = open_descriptors()
    with SharedArrays.holding({"a": np.zeros(3)}) as shared:
        mapped = shared.mapped("read")
    assert mapped["a"].sum() == 0
    del mapped
    assert open_descriptors() == before


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs Linux")  # noqa: PTH112
def test_refused_memory_is_a_named_failure_leaving_nothing_open() -> None:
    before = open_descriptors()
    with largest_file(2**20), pytest.raises(DeviceFailed, match=r"no room for 2 MB .*too large"):
        SharedArrays.holding({"a": np.zeros(2**18)})
    assert open_descriptors() == before


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs Linux")  # noqa: PTH112
def test_more_than_the_machine_has_is_not_even_asked_for() -> None:
    # Eight petabytes, all of them the same eight bytes.
    huge = np.broadcast_to(np.zeros(1), (2**50,))
    with pytest.raises(DeviceFailed, match=r"9007199255 MB .* MB are free"):
        SharedArrays.holding({"a": huge})


def test_tensor_of_a_read_only_array_raises_no_warning() -> None:
    with SharedArrays.holding({"a": np.arange(3)}) as shared:
        mapped = shared.mapped("read")["a"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(tensor_of(mapped), torch.arange(3))
