"""Objects as bytes for a worker process, their large arrays apart, in memory that all can map.

PyTorch teaches ``multiprocessing`` to share every tensor through ``/dev/shm``, in the sender's own
memory; a worker that sets its model's weights would set the host's. Here every array and tensor
arrives as a copy, of which only pages that are written take room.
"""

from __future__ import annotations

import copyreg
import io
from collections.abc import Mapping
from multiprocessing import reduction
from typing import Any, Final

import numpy as np
import torch

from retexo_fl.errors import ConfigurationError

#: Arrays from this size on are shared; smaller ones are copied to every worker.
LEAST_SHARED_BYTES: Final = 2**20
_PREFIX: Final = "packed:"
#: The arrays of what is being unpacked, which a worker does one object at a time.
_unpacking: dict[str, np.ndarray] = {}


def pack(value: object) -> bytes:
    """Return an object as bytes.

    Raises:
        ConfigurationError: It holds something that another process cannot make again.
    """
    content, _ = _packed(value, least_bytes=None)
    return content


def pack_apart(value: object) -> tuple[bytes, dict[str, np.ndarray]]:
    """Return an object as bytes, and the large arrays and tensors in it by name.

    Raises:
        ConfigurationError: As :func:`pack`.
    """
    return _packed(value, least_bytes=LEAST_SHARED_BYTES)


def unpack_apart(content: bytes, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return the object whose large arrays are among ``arrays``; these become parts of it.

    Args:
        content: Of :func:`pack_apart`.
        arrays: Mapped as ``copy``, for an object's own arrays may be written.
    """
    _unpacking.update(arrays)
    try:
        return reduction.ForkingPickler.loads(content)
    finally:
        _unpacking.clear()


def not_packed(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays that no packed object holds."""
    return {name: array for name, array in arrays.items() if not name.startswith(_PREFIX)}


class _Packer(reduction.ForkingPickler):
    def __init__(self, file: io.BytesIO, least_bytes: int | None) -> None:
        super().__init__(file)
        # Without what PyTorch has registered for its tensors; see above.
        self.dispatch_table = copyreg.dispatch_table
        self.arrays: dict[str, np.ndarray] = {}
        self._least_bytes = least_bytes

    def reducer_override(self, value: Any) -> Any:
        if type(value) is torch.Tensor and self._is_shared_tensor(value):
            return _tensor_named, (self._name_for(value.numpy()),)
        if type(value) in (np.ndarray, np.memmap) and self._is_shared(value):
            return _array_named, (self._name_for(value),)
        return NotImplemented

    def _is_shared_tensor(self, value: torch.Tensor) -> bool:
        plain = value.device.type == "cpu" and value.layout == torch.strided
        # What NumPy has no type for, such as bfloat16, is copied.
        known = value.dtype in (torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8)
        return plain and known and not value.requires_grad and self._is_shared(value.numpy())

    def _is_shared(self, value: np.ndarray) -> bool:
        large = self._least_bytes is not None and value.nbytes >= self._least_bytes
        return large and not value.dtype.hasobject

    def _name_for(self, value: np.ndarray) -> str:
        name = f"{_PREFIX}{len(self.arrays)}"
        self.arrays[name] = value
        return name


def _packed(value: object, *, least_bytes: int | None) -> tuple[bytes, dict[str, np.ndarray]]:
    file = io.BytesIO()
    packer = _Packer(file, least_bytes)
    try:
        packer.dump(value)
    except Exception as error:
        raise ConfigurationError(
            f"this cannot be sent to worker processes ({error}); expected functions and classes "
            "defined at the level of a module"
        ) from error
    return file.getvalue(), packer.arrays


def _array_named(name: str) -> np.ndarray:
    return _unpacking[name]


def _tensor_named(name: str) -> torch.Tensor:
    return torch.from_numpy(_unpacking[name])
