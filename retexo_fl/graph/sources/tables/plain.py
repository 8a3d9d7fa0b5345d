"""Cells as libraries hold them, as the few types that all formats of tables have."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np

from retexo_fl.dates import date_text
from retexo_fl.graph.sources.foreign import is_absent
from retexo_fl.graph.sources.tables.source import Cells


def plain_cells_of(cells: list[Any]) -> Cells:
    """Return text, numbers and None: dates as ISO 8601 text, decimals as numbers, UUIDs as text.

    Returns:
        A list, or [n, F] where cells are lists of as many numbers each; what is none of these stays
        as it is, for whoever reads the column to refuse.
    """
    plain = [_plain(cell) for cell in cells]
    lengths = {len(cell) if isinstance(cell, list) else -1 for cell in plain}
    if len(lengths) == 1 and -1 not in lengths:
        return np.array(plain)
    return plain


def plain_array(array: np.ndarray) -> np.ndarray:
    """Return an array in this machine's byte order, dates as ISO 8601 text."""
    if array.dtype.kind == "M":
        return np.array([date_text(cell) or "" for cell in array.reshape(-1)]).reshape(array.shape)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _plain(cell: Any) -> Any:
    if is_absent(cell):
        return None
    if isinstance(cell, Decimal):
        return int(cell) if cell == cell.to_integral_value() else float(cell)
    if (text := str(cell) if isinstance(cell, UUID) else date_text(cell)) is not None:
        return text
    if isinstance(cell, np.generic):
        return cell.item()
    if isinstance(cell, np.ndarray | tuple | list) or hasattr(cell, "to_list"):
        return [_plain(each) for each in cell]
    return cell
