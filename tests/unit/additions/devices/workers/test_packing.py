from __future__ import annotations

from multiprocessing import reduction

import numpy as np
import pytest
import torch

from retexo_fl.additions.devices.workers.packing import (
    LEAST_SHARED_BYTES,
    not_packed,
    pack,
    pack_apart,
    unpack_apart,
)
from retexo_fl.additions.devices.workers.shared_arrays import SharedArrays
from retexo_fl.errors import ConfigurationError

LARGE = np.arange(LEAST_SHARED_BYTES // 8, dtype=np.float64)


def test_large_arrays_are_taken_out_and_put_back() -> None:
    tensor = torch.from_numpy(LARGE + 1)
    value = {"large": LARGE, "again": LARGE, "tensor": tensor, "small": 3}
    content, arrays = pack_apart(value)
    assert len(content) < 1000
    assert len(arrays) == 2
    found = unpack_apart(content, arrays)
    assert found["small"] == 3
    assert found["large"] is found["again"]
    np.testing.assert_array_equal(found["large"], LARGE)
    assert torch.equal(found["tensor"], tensor)


def test_task_is_not_shown_what_was_taken_out() -> None:
    _, arrays = pack_apart([LARGE])
    assert not_packed({**arrays, "rows": LARGE}).keys() == {"rows"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_module_arrives_as_a_copy_in_memory_of_its_own(dtype: torch.dtype) -> None:
    model = torch.nn.Linear(1000, 600, dtype=dtype)
    content, arrays = pack_apart(model)
    with SharedArrays.holding(arrays) as shared:
        found = unpack_apart(content, shared.mapped("copy"))
    assert torch.equal(found.weight, model.weight)
    assert found.weight.requires_grad
    with torch.no_grad():
        found.weight.zero_()
    assert model.weight.abs().sum() > 0
    assert not model.weight.is_shared()  # type: ignore[no-untyped-call]


def test_large_tensor_of_a_type_that_numpy_lacks_is_copied() -> None:
    tensor = torch.ones(LEAST_SHARED_BYTES, dtype=torch.bfloat16)
    content, arrays = pack_apart(tensor)
    assert not arrays
    assert torch.equal(unpack_apart(content, {}), tensor)


def test_packed_message_needs_nothing_beside_it() -> None:
    found = reduction.ForkingPickler.loads(pack((LARGE, "text")))
    np.testing.assert_array_equal(found[0], LARGE)


def test_what_cannot_be_sent_is_a_named_failure() -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be sent .* at the level of a module"):
        pack(lambda: None)
