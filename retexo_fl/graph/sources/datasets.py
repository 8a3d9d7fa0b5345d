"""Data sets by name: built in, made from a seed, ``NAME.npz`` files, and public ones."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from retexo_fl.errors import ConfigurationError, DatasetError
from retexo_fl.graph.graph import Graph
from retexo_fl.graph.sources.attributes import demand_attributes
from retexo_fl.graph.sources.digits import load_digits_graph
from retexo_fl.graph.sources.edge_rules import check_ready
from retexo_fl.graph.sources.label_choice import refuse_choice
from retexo_fl.graph.sources.layouts.folders import is_laid_out, read_folder
from retexo_fl.graph.sources.named.obtain import obtain
from retexo_fl.graph.sources.named.table import NAMED, NamedDataset
from retexo_fl.graph.sources.npz_graph import count_npz_values, read_npz_graph
from retexo_fl.graph.sources.plugin_graph import load_plugin_graph
from retexo_fl.graph.sources.reading import TRAINING, Reading
from retexo_fl.graph.sources.synthetic import SYNTHETIC, is_synthetic, make_synthetic
from retexo_fl.plugins import is_plugin

DIGITS: Final = "digits"
_NPZ: Final = ".npz"


def load_dataset(
    name: str,
    *,
    data_dir: Path | None,
    attributes: Sequence[str] = (),
    reading: Reading | None = None,
    quiet: bool = False,
    named: Mapping[str, NamedDataset] = NAMED,
) -> Graph:
    """Load a data set.

    Args:
        name: ``digits``, ``synthetic[:...]``, the name of a ``.npz`` file in ``data_dir`` without
            its ending, or of a folder there of a known layout (:mod:`.layouts`), the path of such a
            file or folder, a public data set, or ``module:attribute`` of a function that returns a
            graph.
        data_dir: Folder of ``.npz`` files, where a download is put, too; None for none.
        attributes: Attributes of the nodes that the graph is to have: arrays [N] of the file.
        reading: How it is read; None to train on it for classes, or for what the labels of a file
            are.
        quiet: Show no progress of a download.
        named: The public data sets, which are downloaded on their first use.

    Raises:
        DatasetError: There is no such data set, it cannot be had, it has no such attribute, or its
            file is not as documented.
        PluginError: The function cannot be imported or called, or returned no graph.
    """
    name, data_dir = located(name, data_dir)
    load = _source_of(name)
    if load is not None:
        return load(name, attributes, reading or TRAINING)
    if (folder := _folder(name, data_dir, named)) is not None:
        return read_folder(folder, attributes, reading or TRAINING)
    path = _npz_path(name, data_dir, named, quiet=quiet)
    graph = read_npz_graph(path, attributes=attributes, reading=reading)
    return _without_made_up_labels(graph) if name == "citeseer" else graph


def count_dataset_values(name: str, attribute: str, *, data_dir: Path | None) -> int:
    """Return how many different values an attribute of a data set has.

    Args:
        name: As in :func:`load_dataset`, as are ``data_dir`` and what is raised. Of a ``.npz``
            file nothing but the attribute is read.
        attribute: Its name.
        data_dir: As in :func:`load_dataset`.
    """
    name, data_dir = located(name, data_dir)
    if _source_of(name) is None and _folder(name, data_dir, NAMED) is None:
        return count_npz_values(_npz_path(name, data_dir, NAMED, quiet=False), attribute)
    graph = load_dataset(name, data_dir=data_dir, attributes=(attribute,))
    return len(np.unique(graph.attributes[attribute]))


def _synthetic(name: str, attributes: Sequence[str], reading: Reading) -> Graph:
    demand_attributes(f"data set {name!r}", {}, attributes)
    graph = make_synthetic(name)
    check_ready(f"data set {name!r}", graph, reading.rules)
    refuse_choice(f"data set {name!r}", reading.label)
    return graph


def _of_own_function(name: str, attributes: Sequence[str], reading: Reading) -> Graph:
    return load_plugin_graph(name, attributes=attributes, reading=reading)


def _digits(name: str, attributes: Sequence[str], reading: Reading) -> Graph:
    graph = load_digits_graph()
    demand_attributes(f"data set {name!r}", graph.attributes, attributes)
    check_ready(f"data set {name!r}", graph, reading.rules)
    refuse_choice(f"data set {name!r}", reading.label)
    return graph


def _is_digits(name: str) -> bool:
    return name == DIGITS


_Loader: TypeAlias = Callable[[str, Sequence[str], Reading], Graph]
#: Sources that are no ``.npz`` file: which names are theirs, and what loads one.
_SOURCES: Final[Sequence[tuple[Callable[[str], bool], _Loader]]] = (
    (is_synthetic, _synthetic),
    (is_plugin, _of_own_function),
    (_is_digits, _digits),
)
#: Of these, names that no file can have.
_RESERVED: Final = (DIGITS, SYNTHETIC)


def _source_of(name: str) -> _Loader | None:
    """Return what loads a data set; None where it is a ``.npz`` file."""
    return next((load for is_named, load in _SOURCES if is_named(name)), None)


def located(name: str, data_dir: Path | None) -> tuple[str, Path | None]:
    """Return the name and the folder of a data set that is given by a path; others as they are.

    A path has a separator, or ends in ``.npz``.

    Raises:
        ConfigurationError: There is a folder beside it, or its name is one that no file can have.
    """
    separators = {"/", os.sep}
    if is_plugin(name) or not (separators & {*name} or name.endswith(_NPZ)):
        return name, data_dir
    path = Path(name)
    stem = path.name.removesuffix(_NPZ)
    if not stem or is_synthetic(stem) or is_plugin(stem) or _is_digits(stem):
        raise ConfigurationError(f"dataset: {name!r} cannot be the name of a file or folder")
    if data_dir is not None:
        raise ConfigurationError(
            f"data-dir: cannot be given with the path {name!r} as dataset; expected one of the two"
        )
    if not path.is_dir() and not (path.is_file() and path.suffix == _NPZ):
        what = "is neither a .npz file nor a folder" if path.exists() else "is not there"
        raise ConfigurationError(
            f"dataset: {name!r} {what}; expected one of a known layout, or tables as --nodes and "
            "--edges"
        )
    return stem, path.parent


def _folder(name: str, data_dir: Path | None, named: Mapping[str, NamedDataset]) -> Path | None:
    """Return the folder of a data set that is one; a file, or source files that are known, win."""
    folder = None if data_dir is None else data_dir / name
    if folder is None or name in {"", ".", ".."} or Path(name).name != name or not folder.is_dir():
        return None
    if folder.with_name(f"{name}{_NPZ}").is_file():
        return None
    is_source = name in named and any((folder / one.name).is_file() for one in named[name].files)
    known = is_laid_out(folder)
    return folder if (known and not is_source) or name not in named else None


def _npz_path(
    name: str, data_dir: Path | None, named: Mapping[str, NamedDataset], *, quiet: bool
) -> Path:
    path = None if data_dir is None else data_dir / f"{name}.npz"
    if path is not None and Path(name).name == name and path.is_file():
        return path
    files = npz_files(data_dir)
    if name not in named:
        raise DatasetError(_unknown(name, data_dir, files, named))
    return obtain(named[name], data_dir=data_dir, quiet=quiet)


def npz_files(data_dir: Path | None) -> list[Path]:
    """Return the files of a folder that may be data sets, by name.

    Raises:
        DatasetError: ``data_dir`` is not a folder.
    """
    if data_dir is None:
        return []
    if not data_dir.is_dir():
        raise DatasetError(f"data-dir: {data_dir} is not a folder; expected one with .npz files")
    return sorted(path for path in data_dir.glob("*.npz") if path.stem not in _RESERVED)


def _unknown(
    name: str, data_dir: Path | None, files: list[Path], named: Mapping[str, NamedDataset]
) -> str:
    known = list(dict.fromkeys((*_RESERVED, *(path.stem for path in files), *named)))
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    where = "data-dir is not set" if data_dir is None else f"looked for NAME.npz in {data_dir}"
    return f"dataset: {name!r} is unknown; {hint}there is: {', '.join(known)} ({where})"


def _without_made_up_labels(graph: Graph) -> Graph:
    """Take back the label 0 of nodes that Citeseer's source leaves out.

    They are known by their empty features and are in no mask. They stay in the graph, unlabelled.
    """
    split = graph.published_split
    if split is None or isinstance(graph.features, np.ndarray):
        return graph
    made_up = np.diff(graph.features.indptr) == 0
    made_up &= ~(split.train | split.val | split.test)
    labels = np.where(made_up, -1, graph.labels)
    return replace(graph, labels=labels)
