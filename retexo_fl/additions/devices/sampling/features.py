"""The features of all nodes in the host's memory, gathered into buffers that are used again.

A fresh array for each batch costs more than the copy into it: its pages are mapped and cleared one
fault at a time. So rows go into a buffer that has been there before, pinned where a GPU takes them.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from retexo_fl.errors import DatasetError

_SMALLEST_ROWS: Final = 1024


class ReusedBuffer:
    """Memory for (n, D) rows with any n; it grows by doubling and never shrinks.

    Args:
        width: D.
        dtype: Of the values.
        device: Where it lies.
        pinned: Page-locked, so that a GPU copies from it while this thread continues.
    """

    def __init__(
        self,
        width: int,
        dtype: torch.dtype,
        *,
        device: torch.device | str = "cpu",
        pinned: bool = False,
    ) -> None:
        self._width = width
        self._pinned = pinned
        self._rows = torch.empty((0, width), dtype=dtype, device=device)

    def view(self, count: int) -> torch.Tensor:
        """Return (count, D), not cleared; valid until the next call."""
        if count > len(self._rows):
            rows = max(count, 2 * len(self._rows), _SMALLEST_ROWS)
            self._rows = torch.empty(
                (rows, self._width),
                dtype=self._rows.dtype,
                device=self._rows.device,
                pin_memory=self._pinned,
            )
        return self._rows[:count]


class FeatureStore:
    """Features of N nodes in the host's memory; counts what is read.

    Args:
        rows: (N, D) float32 or float64, C-contiguous; may be read-only, and is not copied.

    Attributes:
        rows_read: Rows returned so far.

    Raises:
        DatasetError: The array is of another form.
    """

    def __init__(self, rows: np.ndarray) -> None:
        if rows.ndim != 2 or rows.dtype not in (np.float32, np.float64):
            raise DatasetError(
                f"features: got {rows.dtype} of {rows.shape}; expected float32 or float64 of (N, D)"
            )
        if not rows.flags.c_contiguous:
            raise DatasetError("features: got rows that are not contiguous; expected C order")
        self._rows = _shared(rows)
        self.rows_read = 0

    @property
    def num_rows(self) -> int:
        """N."""
        return len(self._rows)

    @property
    def width(self) -> int:
        """D."""
        return self._rows.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """Of the values."""
        return self._rows.dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.width * self._rows.element_size()

    @property
    def bytes_read(self) -> int:
        """Bytes of all rows returned so far."""
        return self.rows_read * self.row_bytes

    def buffer(self, *, pinned: bool = False) -> ReusedBuffer:
        """Return memory that :meth:`gather` can fill."""
        return ReusedBuffer(self.width, self.dtype, pinned=pinned)

    def gather(self, ids: np.ndarray, out: torch.Tensor) -> torch.Tensor:
        """Write the rows of (n,) int32 or int64 ``ids`` into (n, D) ``out`` and return it."""
        if len(ids):
            torch.index_select(self._rows, 0, torch.from_numpy(ids), out=out)
        self.rows_read += len(ids)
        return out


class _Writable:
    """Offers an array's memory as writable: the only way to a tensor without copy or warning."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def _shared(rows: np.ndarray) -> torch.Tensor:
    """Return a tensor on the array's own memory, which must not be written to."""
    return torch.from_numpy(rows if rows.flags.writeable else np.asarray(_Writable(rows)))
