"""Friendships within American universities of September 2005 (Facebook100).

Source: Traud, Mucha, Porter, "Social structure of Facebook networks" (Physica A, 2012). Codes are
anonymous. The label is the year of graduation, 2004 to 2009; any other year is unlabelled.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.sparse import csr_array, issparse

from retexo_fl.errors import DatasetError
from retexo_fl.graph.sources.named.arrays import Arrays, once_undirected, sparse_parts

#: Columns of ``local_info`` that become features; the year follows, the high school is left out.
_ATTRIBUTES: Final = ("status", "gender", "major", "minor", "housing")
_YEAR_COLUMN: Final = 5
_YEARS: Final = range(2004, 2010)
_MOST_CODE: Final = 2**20
#: What SciPy's reader raises for a file that is none, or is damaged.
_READ_ERRORS: Final = (
    *(ValueError, TypeError, KeyError, IndexError, NotImplementedError, MemoryError),
    *(OSError, EOFError, struct.error, zlib.error),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _School:
    """One university.

    Attributes:
        ends: [2, m] nodes of its edges, each in both directions.
        codes: [n, 6] integers: the attributes and the year; 0 is not known.
    """

    ends: np.ndarray
    codes: np.ndarray


def facebook100_arrays(name: str, files: Mapping[str, bytes]) -> Arrays:
    """Convert one university, or put several side by side; no edge joins two of them.

    Features are one-hot codes; a code of 0 sets no column.

    Args:
        name: Of the data set.
        files: One MATLAB file for each university, by name.

    Raises:
        DatasetError: A file is damaged, or not of this form.
    """
    schools = [_read(f"{name}: {file}", content) for file, content in files.items()]
    sizes = [len(school.codes) for school in schools]
    first = np.cumsum([0, *sizes])
    codes = np.concatenate([school.codes for school in schools])
    ends = [school.ends + offset for school, offset in zip(schools, first[:-1], strict=True)]
    years = codes[:, _YEAR_COLUMN]
    labelled = (years >= _YEARS.start) & (years < _YEARS.stop)
    features, feature_names = _one_hot(codes)
    arrays = {
        "edge_index": once_undirected(np.concatenate(ends, axis=1), len(codes)),
        "y": np.where(labelled, years - _YEARS.start, -1).astype(np.int16),
        **sparse_parts(features),
        "class_names": np.array([str(year) for year in _YEARS]),
        "feature_names": np.array(feature_names),
    }
    if len(schools) > 1:
        arrays["school"] = np.repeat(np.arange(len(schools)), sizes).astype(np.int16)
        arrays["school_names"] = np.array([file.removesuffix(".mat") for file in files])
    return arrays


def _read(source: str, content: bytes) -> _School:
    # Only here: it takes a while to import.
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        found = loadmat(io.BytesIO(content), variable_names=("A", "local_info"))
    except (MatReadError, *_READ_ERRORS) as error:
        raise DatasetError(f"{source}: not a MATLAB file of version 5, or damaged") from error
    adjacency, info = found.get("A"), found.get("local_info")
    if not issparse(adjacency) or not isinstance(info, np.ndarray) or info.ndim != 2:
        raise DatasetError(f"{source}: has no sparse A and no table local_info; expected both")
    num_nodes, num_columns = info.shape
    if adjacency.shape != (num_nodes, num_nodes) or num_columns <= _YEAR_COLUMN or not num_nodes:
        raise DatasetError(
            f"{source}: A is {adjacency.shape}, local_info {info.shape}; expected (n, n), (n, 7)"
        )
    codes = info[:, : _YEAR_COLUMN + 1]
    # So written that what is no number fails, too.
    if codes.dtype.kind not in "iuf" or not (codes.min() >= 0 and codes.max() <= _MOST_CODE):
        raise DatasetError(
            f"{source}: local_info does not hold whole numbers from 0 to {_MOST_CODE}; "
            "expected codes"
        )
    entries = adjacency.tocoo()
    ends = np.stack((entries.row, entries.col)).astype(np.int64)
    return _School(ends=ends, codes=codes.astype(np.int64))


def _one_hot(codes: np.ndarray) -> tuple[csr_array, list[str]]:
    """Return the [N, F] matrix, and ``attribute:code`` for each column."""
    rows, columns = [], []
    names: list[str] = []
    for place, attribute in enumerate(_ATTRIBUTES):
        values = codes[:, place]
        seen = np.unique(values[values > 0])
        known = np.flatnonzero(values > 0)
        rows.append(known)
        columns.append(len(names) + np.searchsorted(seen, values[known]))
        names += [f"{attribute}:{code}" for code in seen]
    if not names:
        raise DatasetError("local_info holds no code; expected features")
    row, column = np.concatenate(rows), np.concatenate(columns)
    order = np.lexsort((column, row))
    indptr = np.concatenate(([0], np.cumsum(np.bincount(row, minlength=len(codes)))))
    ones = np.ones(len(row), dtype=np.float32)
    return csr_array((ones, column[order], indptr), shape=(len(codes), len(names))), names
