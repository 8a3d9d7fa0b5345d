"""Which folder is of which layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from retexo_fl.errors import DatasetError
from retexo_fl.graph.graph import Graph
from retexo_fl.graph.sources.layouts.musae import is_musae, read_musae
from retexo_fl.graph.sources.layouts.ogb import is_ogb, read_ogb
from retexo_fl.graph.sources.reading import Reading

_Read: TypeAlias = Callable[[Path, Sequence[str], Reading], Graph]
#: Which folders are of a layout, and what reads one.
_LAYOUTS: Final[Sequence[tuple[Callable[[Path], bool], _Read]]] = (
    (is_ogb, read_ogb),
    (is_musae, read_musae),
)


def is_laid_out(folder: Path) -> bool:
    """Return whether a folder is of a layout that is known."""
    return folder.is_dir() and any(is_one(folder) for is_one, _ in _LAYOUTS)


def read_folder(folder: Path, attributes: Sequence[str], reading: Reading) -> Graph:
    """Read the graph of a folder.

    Raises:
        TableError: Its tables are damaged or contradict each other; a line for each problem.
        DatasetError: It is of no known layout, or makes no graph that can be trained on.
    """
    read = next((read for is_one, read in _LAYOUTS if is_one(folder)), None)
    if read is None:
        raise DatasetError(
            f"dataset: {folder} is a folder of no known layout; expected that of OGB "
            "(raw/edge.csv.gz, raw/num-node-list.csv.gz) or of MUSAE (*edges.csv, *target.csv), a "
            ".npz file, or tables as --nodes and --edges"
        )
    return read(folder, attributes, reading)
