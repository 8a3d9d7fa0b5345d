"""What can be trained on, and where it is."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from retexo_fl.errors import DatasetError
from retexo_fl.graph.sources.datasets import DIGITS, npz_files
from retexo_fl.graph.sources.digits import load_digits_graph
from retexo_fl.graph.sources.named.obtain import kept_path
from retexo_fl.graph.sources.named.table import NAMED, NamedDataset
from retexo_fl.graph.sources.npz_graph import describe_npz_graph
from retexo_fl.graph.sources.synthetic import PRESETS, SYNTHETIC, parse_synthetic

logger = logging.getLogger(__name__)

#: ``download``: on its first use; ``by hand``: from source files that the user has to fetch.
Place = Literal["built in", "synthetic", "here", "download", "by hand"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetInfo:
    """One line of a list of data sets.

    Attributes:
        name: What :func:`~retexo_fl.graph.sources.datasets.load_dataset` takes.
        nodes: N.
        edges: Undirected edges, each counted once.
        features: F.
        classes: C; None where a file has so many labels that they are not read for a list.
        split: Nodes of the published split, ``140/500/1000``, or ``none``; ``-`` as for classes.
        place: Where it is.
        source: The file, the address of its first source file, or what it is made from.
    """

    name: str
    nodes: int
    edges: int
    features: int
    classes: int | None
    split: str
    place: Place
    source: str


def list_datasets(
    data_dir: Path | None, *, named: Mapping[str, NamedDataset] = NAMED
) -> list[DatasetInfo]:
    """Describe the data sets that there are.

    The built-in and the synthetic ones come first, then the files of ``data_dir``, then the public
    ones that are not among them, those of the cache folder first. A file that is not a data set is
    left out with a warning.

    Args:
        data_dir: As in :func:`~retexo_fl.graph.sources.datasets.load_dataset`.
        named: The public data sets.

    Raises:
        DatasetError: ``data_dir`` is not a folder.
    """
    files = npz_files(data_dir)
    others = [one for name, one in named.items() if name not in {path.stem for path in files}]
    kept = {one.name: path for one in others if (path := kept_path(one.name)) is not None}
    presets = (SYNTHETIC, *(f"{SYNTHETIC}:{preset}" for preset in PRESETS))
    return [
        _digits_info(),
        *map(_synthetic_info, presets),
        *(info for path in (*files, *kept.values()) if (info := _file_info(path)) is not None),
        *(_named_info(one) for one in others if one.name not in kept),
    ]


def _digits_info() -> DatasetInfo:
    digits = load_digits_graph()
    return DatasetInfo(
        name=DIGITS,
        nodes=digits.num_nodes,
        edges=digits.num_edges,
        features=digits.num_features,
        classes=digits.num_classes,
        split="none",
        place="built in",
        source="UCI, by scikit-learn",
    )


def _synthetic_info(name: str) -> DatasetInfo:
    spec = parse_synthetic(name)
    return DatasetInfo(
        name=name,
        nodes=spec.nodes,
        edges=spec.edges,
        features=spec.features,
        classes=spec.classes,
        split="none",
        place="synthetic",
        source=f"seed {spec.seed}",
    )


def _file_info(path: Path) -> DatasetInfo | None:
    try:
        sizes = describe_npz_graph(path)
    except DatasetError as error:
        logger.warning("left out: %s", error)
        return None
    return DatasetInfo(name=path.stem, place="here", source=str(path), **sizes)


def _named_info(one: NamedDataset) -> DatasetInfo:
    return DatasetInfo(
        name=one.name,
        nodes=one.nodes,
        edges=one.edges,
        features=one.features,
        classes=one.classes,
        split=one.split,
        place="download" if one.downloadable else "by hand",
        source=one.files[0].url,
    )
