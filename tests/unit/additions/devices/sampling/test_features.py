from __future__ import annotations

import numpy as np
import pytest
import torch

from retexo_fl.additions.devices.sampling.features import FeatureStore, ReusedBuffer
from retexo_fl.errors import DatasetError


def rows(dtype: type[np.floating] = np.float32) -> np.ndarray:
    return np.arange(60, dtype=dtype).reshape(20, 3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("ids_dtype", [np.int32, np.int64])
def test_gather_brings_the_rows_in_order_and_counts_them(
    dtype: type[np.floating], ids_dtype: type[np.integer]
) -> None:
    store = FeatureStore(rows(dtype))
    buffer = store.buffer()
    ids = np.array([7, 0, 19, 7], ids_dtype)
    found = store.gather(ids, buffer.view(4))
    np.testing.assert_array_equal(found.numpy(), rows(dtype)[ids])
    assert store.gather(ids[:0], buffer.view(0)).shape == (0, 3)
    assert (store.rows_read, store.bytes_read) == (4, 4 * 3 * np.dtype(dtype).itemsize)


def test_rows_that_nobody_may_write_are_read_in_place() -> None:
    given = rows()
    given.flags.writeable = False
    store = FeatureStore(given)
    found = store.gather(np.array([3]), store.buffer().view(1))
    np.testing.assert_array_equal(found.numpy(), given[[3]])
    assert store.width == 3
    assert store.num_rows == 20


def test_buffer_is_the_same_memory_until_it_must_grow() -> None:
    buffer = ReusedBuffer(2, torch.float32)
    first = buffer.view(700)
    assert buffer.view(1000).data_ptr() == first.data_ptr()
    larger = buffer.view(1500)
    assert larger.shape == (1500, 2)
    assert buffer.view(2048).data_ptr() == larger.data_ptr()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros((2, 3), np.int64), "features: got int64 of (2, 3); expected float32 or float64"),
        (np.zeros(3, np.float32), "features: got float32 of (3,); expected float32 or float64"),
        (np.zeros((2, 3), np.float32).T, "features: got rows that are not contiguous"),
    ],
)
def test_features_of_another_form_are_refused(given: np.ndarray, message: str) -> None:
    with pytest.raises(DatasetError) as refused:
        FeatureStore(given)
    assert str(refused.value).startswith(message)


@pytest.mark.gpu
def test_buffer_for_a_gpu_is_pinned() -> None:
    assert FeatureStore(rows()).buffer(pinned=True).view(5).is_pinned()
