"""Facebook pages, GitHub developers and users of LastFM in Asia out of their authors' tables.

Source: Rozemberczki, Allen, Sarkar, "Multi-scale attributed node embedding" (Journal of Complex
Networks, 2021); of LastFM, Rozemberczki and Sarkar, "Characteristic functions on graphs: birds of a
feather, from statistical descriptors to parametric models" (CIKM 2020). Features are the published
0/1 ones. The tables of 128 columns that libraries offer under the same names are reductions of
these, made in ways that are not published.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from itertools import chain
from typing import Any, Final

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.errors import DatasetError
from retexo_fl.graph.sources.named.arrays import Arrays, ascending, once_undirected, sparse_parts

#: The GitHub archive's features are its largest file: 5 MB. Chosen; not tuned.
_MOST_MEMBER_BYTES: Final = 2**26
_MOST_COLUMNS: Final = 2**20
_ENDS: Final = ("id_1", "id_2")
_LASTFM_ENDS: Final = ("node_1", "node_2")
#: Countries are published as numbers alone; the source has 18. Chosen, to refuse another table.
_MOST_LASTFM_CLASSES: Final = 18
_GITHUB_CLASSES: Final = {"0": "web", "1": "machine_learning"}


def facebook_arrays(name: str, files: Mapping[str, bytes]) -> Arrays:
    """Convert ``edges.csv``, ``features.json`` and ``target.csv``.

    Args:
        name: Of the data set.
        files: The three, by these names.

    Returns:
        Arrays of a ``.npz`` data set; classes in alphabetical order.

    Raises:
        DatasetError: A file is damaged, or two contradict each other.
    """
    kinds = _column(name, "target.csv", files["target.csv"], "page_type")
    names = sorted(set(kinds))
    numbers = {kind: number for number, kind in enumerate(names)}
    return _arrays(name, files, [numbers[kind] for kind in kinds], names)


def github_arrays(name: str, files: Mapping[str, bytes]) -> Arrays:
    """Convert ``git_web_ml.zip``: class 0 web, 1 machine learning.

    Args:
        name: Of the data set.
        files: The archive, by its name.

    Raises:
        DatasetError: It is damaged, or its files contradict each other.
    """
    members = _members(name, files, "git_web_ml/musae_git_")
    targets = _column(name, "target.csv", members["target.csv"], "ml_target")
    unknown = sorted(set(targets) - set(_GITHUB_CLASSES))
    if unknown:
        raise DatasetError(f"{name}: target.csv: ml_target is {unknown[0]!r}; expected 0 or 1")
    return _arrays(name, members, [int(t) for t in targets], list(_GITHUB_CLASSES.values()))


def lastfm_arrays(name: str, files: Mapping[str, bytes]) -> Arrays:
    """Convert ``lastfm_asia.zip``: a class is a country, for which the source has a number only.

    Args:
        name: Of the data set.
        files: The archive, by its name.

    Raises:
        DatasetError: It is damaged, or its files contradict each other.
    """
    # The folder is misspelt in the archive.
    members = _members(name, files, "lasftm_asia/lastfm_asia_")
    countries = [str(number) for number in range(_MOST_LASTFM_CLASSES)]
    targets = _column(name, "target.csv", members["target.csv"], "target")
    unknown = sorted(set(targets) - set(countries))
    if unknown:
        raise DatasetError(
            f"{name}: target.csv: target is {unknown[0]!r}; expected 0 to "
            f"{_MOST_LASTFM_CLASSES - 1}"
        )
    return _arrays(name, members, [int(t) for t in targets], countries, ends=_LASTFM_ENDS)


def _members(name: str, files: Mapping[str, bytes], start: str) -> dict[str, bytes]:
    """Return the three tables of the only file, an archive, whose members' names begin alike."""
    (source, content), *_ = files.items()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return {
                kind: _member(archive, f"{start}{kind}")
                for kind in ("edges.csv", "features.json", "target.csv")
            }
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, NotImplementedError) as problem:
        raise DatasetError(
            f"{name}: {source}: damaged, or another archive ({problem})"
        ) from problem


def _member(archive: zipfile.ZipFile, member: str) -> bytes:
    with archive.open(member) as file:
        content = file.read(_MOST_MEMBER_BYTES + 1)
    if len(content) > _MOST_MEMBER_BYTES:
        raise zipfile.BadZipFile(f"{member} is larger than {_MOST_MEMBER_BYTES} bytes")
    return content


def _arrays(
    name: str,
    files: Mapping[str, bytes],
    labels: list[int],
    class_names: list[str],
    ends: tuple[str, str] = _ENDS,
) -> Arrays:
    num_nodes = len(labels)
    edges = np.array(
        [_nodes(name, "edges.csv", files["edges.csv"], key, num_nodes) for key in ends]
    )
    return {
        "edge_index": once_undirected(edges, num_nodes),
        "y": np.array(labels, dtype=np.int16),
        **sparse_parts(_features(name, files["features.json"], num_nodes)),
        "class_names": np.array(class_names),
    }


def _column(name: str, file: str, content: bytes, column: str) -> list[str]:
    """Return a column of a table whose rows are numbered by ``id``, by that number."""
    ids = _nodes(name, file, content, "id", None)
    values = _texts(name, file, content, column)
    if not ids or sorted(ids) != list(range(len(ids))):
        raise DatasetError(f"{name}: {file}: id does not number the rows; expected 0, 1, ...")
    by_id = dict(zip(ids, values, strict=True))
    return [by_id[node] for node in range(len(ids))]


def _nodes(name: str, file: str, content: bytes, column: str, num_nodes: int | None) -> list[int]:
    texts = _texts(name, file, content, column)
    for row, text in enumerate(texts, start=1):
        if not (text.isascii() and text.isdecimal() and len(text) < 10):
            raise DatasetError(f"{name}: {file}: row {row} has no number in {column}")
        if num_nodes is not None and int(text) >= num_nodes:
            raise DatasetError(
                f"{name}: {file}: row {row}: {column} is {text}; expected 0 to {num_nodes - 1}"
            )
    return [int(text) for text in texts]


def _texts(name: str, file: str, content: bytes, column: str) -> list[str]:
    reader = csv.DictReader(io.StringIO(content.decode("utf-8", errors="replace"), newline=""))
    try:
        if column not in (reader.fieldnames or ()):
            raise DatasetError(f"{name}: {file}: has no column {column}")
        return [row[column] or "" for row in reader]
    except csv.Error as problem:
        raise DatasetError(f"{name}: {file}: is damaged ({problem})") from problem


def _features(name: str, content: bytes, num_nodes: int) -> csr_array:
    """Return the [N, F] 0/1 matrix of a JSON object with a list of columns for each node."""
    try:
        columns_of: Any = json.loads(content)
    except (ValueError, RecursionError) as problem:
        raise DatasetError(f"{name}: features.json: is damaged ({problem})") from problem
    rows = []
    for node in range(num_nodes):
        row = columns_of.get(str(node)) if isinstance(columns_of, dict) else None
        if not isinstance(row, list) or not all(
            type(column) is int and 0 <= column < _MOST_COLUMNS for column in row
        ):
            raise DatasetError(f"{name}: features.json: node {node} has no list of columns")
        rows.append(row)
    entries = np.repeat(np.arange(num_nodes), [len(row) for row in rows]) * _MOST_COLUMNS
    entries += np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=len(entries))
    # A column may be listed twice.
    entries = np.unique(entries)
    counts = np.bincount(entries // _MOST_COLUMNS, minlength=num_nodes)
    parts = {
        "indptr": np.concatenate(([0], np.cumsum(counts))),
        "indices": entries % _MOST_COLUMNS,
        "data": np.ones(len(entries), dtype=np.float32),
    }
    return ascending(f"{name}: features.json", parts, int(parts["indices"].max(initial=0)) + 1)
