"""An assignment from a file: the client of each node, in the node order of the data set."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from retexo_fl.errors import PartitionError
from retexo_fl.graph.npy import open_npy
from retexo_fl.units import counted

#: Python refuses to read numbers of thousands of digits in its own words.
_MOST_DIGITS: Final = 18


def read_assignment(path: Path, *, num_nodes: int, clients: int) -> np.ndarray:
    """Read the client of each node.

    Args:
        path: A ``.npy`` file with an integer array, or text with one client per line.
        num_nodes: N.
        clients: Number of clients.

    Returns:
        [N] integers from 0 to ``clients - 1``.

    Raises:
        PartitionError: The file cannot be read or holds anything else; the message names the line.
    """
    if path.suffix == ".npy":
        values = open_npy(path, error=PartitionError)
        if values.dtype.kind not in "iu" or values.shape != (num_nodes,):
            raise PartitionError(
                f"{path}: got {values.dtype} of shape {values.shape}; "
                f"expected integers of shape ({num_nodes},)"
            )
        outside = np.flatnonzero((values < 0) | (values >= clients))
        if len(outside):
            row = int(outside[0])
            raise PartitionError(
                f"{path}: row {row} is {values[row]}; expected a client from 0 to {clients - 1}"
            )
        return values
    return _read_text(path, num_nodes=num_nodes, clients=clients)


def _read_text(path: Path, *, num_nodes: int, clients: int) -> np.ndarray:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError as error:
        raise PartitionError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise PartitionError(f"{path}: not a text file; expected one client per line") from error
    values = np.empty(len(lines), dtype=np.int64)
    for number, line in enumerate(lines):
        text = line.strip()
        if not text.isdecimal() or len(text) > _MOST_DIGITS or int(text) >= clients:
            raise PartitionError(
                f"{path}: line {number + 1} is {text[:40]!r}; "
                f"expected a client from 0 to {clients - 1}"
            )
        values[number] = int(text)
    if len(values) != num_nodes:
        raise PartitionError(
            f"{path}: got {counted(len(values), 'line')}; expected {num_nodes}, one for each node"
        )
    return values
