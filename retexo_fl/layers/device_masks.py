"""The masks of keyed dropout where the rows are: the same integers, in PyTorch's operations.

PyTorch has no arithmetic on unsigned integers. Sums and products of signed ones hold the same bits,
shifts are cut to the bits that an unsigned shift leaves, and comparing begins at the other sign. A
mask of 280,000 x 128 values is ten passes over 144 MB: nothing beside copying it from a CPU.

Symbols: R rows, D width, E edges.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from retexo_fl.transfers import onto

_INT32_LEAST: Final = -(2**31)


def on_device(hashes: np.ndarray, device: torch.device) -> torch.Tensor:
    """Return (R,) uint64 hashes as int64 of the same bits."""
    return onto(torch.from_numpy(np.ascontiguousarray(hashes).view(np.int64)), device)


def splitmix(values: torch.Tensor, constants: tuple[int, int, int]) -> torch.Tensor:
    """Mix int64 values as :func:`~retexo_fl.layers.dropout.splitmix` does.

    Args:
        values: Of any shape.
        constants: Its increment and both multipliers.
    """
    gamma, first, second = (_signed(number, 64) for number in constants)
    mixed = values + gamma
    mixed = (mixed ^ _shifted(mixed, 30, 64)) * first
    mixed = (mixed ^ _shifted(mixed, 27, 64)) * second
    return mixed ^ _shifted(mixed, 31, 64)


def high_halves(values: torch.Tensor) -> torch.Tensor:
    """Return the upper 32 bits of int64 values as int32."""
    return (values >> 32).to(torch.int32)


def kept_factors(
    keys: torch.Tensor, multipliers: tuple[int, int], *, rate: float, dtype: torch.dtype
) -> torch.Tensor:
    """Return 0 (dropped) or ``1 / (1 - rate)`` for each int32 key, which is used up.

    Args:
        keys: Of any shape; mixed here by the finaliser with these multipliers.
        multipliers: Of the finaliser.
        rate: Share dropped, above 0 and below 1.
        dtype: Of the factors.
    """
    first, second = (_signed(number, 32) for number in multipliers)
    keys ^= _shifted(keys, 16, 32)
    keys *= first
    keys ^= _shifted(keys, 15, 32)
    keys *= second
    keys ^= _shifted(keys, 16, 32)
    kept = (keys ^ _INT32_LEAST) >= int(rate * 2**32) + _INT32_LEAST
    return kept.to(dtype).mul_(1.0 / (1.0 - rate))


def _shifted(values: torch.Tensor, places: int, bits: int) -> torch.Tensor:
    """Shift to the right as if the values had no sign."""
    return (values >> places) & ((1 << (bits - places)) - 1)


def _signed(number: int, bits: int) -> int:
    """Return the signed number with the bits of an unsigned one."""
    return number - (1 << bits) if number >> (bits - 1) else number
