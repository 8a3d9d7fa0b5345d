"""Copies between the host's memory and a device, and NumPy's memory as a tensor's.

From ordinary memory a GPU copies by a detour, and the thread that asked waits; from page-locked
memory it copies while thread and device work. PyTorch keeps page-locked memory for reuse, and does
not allocate it again before the copies from it have ended.
"""

from __future__ import annotations

import numpy as np
import torch


def onto(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor on a device; what is there, or goes to a CPU, is as ``to`` returns it.

    A copy from the host is ordered before what is asked of the device afterwards, in the same
    stream; the tensor may be changed at once.
    """
    if device.type == "cpu" or tensor.device.type != "cpu":
        return tensor.to(device)
    # Without CUDA there is nothing to lock pages for: what is not a CPU then holds no values.
    locked = tensor.pin_memory() if torch.cuda.is_available() else tensor
    return locked.to(device, non_blocking=True)


def back(tensor: torch.Tensor) -> torch.Tensor:
    """Return a device's tensor in the host's memory, once it is there; itself from a CPU."""
    if tensor.device.type == "cpu":
        return tensor
    locked = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    locked.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensor.device).synchronize()
    return locked


class _Borrowed:
    """Offers an array's memory as writable: the only way to one without a copy or a warning."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def borrowed(array: np.ndarray) -> torch.Tensor:
    """Return a tensor that shares an array's memory, be it read-only; it must not be written to."""
    contiguous = np.ascontiguousarray(array)
    return torch.from_numpy(
        contiguous if contiguous.flags.writeable else np.asarray(_Borrowed(contiguous))
    )
