"""Graphs for goals other than common classes: made from a public one, and the bank of the example.

Neither is a copy of data in the project: both are written to a folder when a recipe runs.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import numpy as np
from scipy import sparse

from retexo_fl.errors import EngineFailed
from sims.catalogue import Setting

#: The public graph: students of one university, with columns of one-hot codes.
SOURCE: Final = "fb100_berkeley13"
#: Names of what is made of it.
ATTRIBUTES: Final = "berkeley13-attributes"
YEARS: Final = "berkeley13-years"
#: What each label of the attributes says.
LABELS: Final = ("gender 2", "status 1", "graduates in 2007 or later", "names a minor")
#: Columns that remain inputs beside these labels: none of them tells a label.
INPUTS: Final = ("major", "housing")
_FIRST_YEAR: Final = 2004.0
_LATER: Final = 2007 - 2004

_SCRIPT: Final = Path(__file__).resolve().parents[1] / "examples" / "fraud" / "make_bank.py"


def write_derived_graphs(setting: Setting, folder: Path) -> None:
    """Write two graphs with the edges of :data:`SOURCE` to a folder, as ``.npz`` data sets.

    ``berkeley13-attributes`` has several labels a node, -1 where the profile does not say.
    ``berkeley13-years`` has the year of graduation, NaN where there is none from 2004 to 2009; its
    inputs are those of the source, which hold no year.

    Raises:
        ConfigurationError: The source is not in ``setting.data_dir``.
    """
    path = Path(setting.folder_with(SOURCE)) / f"{SOURCE}.npz"
    with np.load(path, allow_pickle=False) as source:
        edges, years = source["edge_index"], source["y"]
        codes = [str(name) for name in source["feature_names"]]
        profile = sparse.csr_matrix(
            (source["x_data"], source["x_indices"], source["x_indptr"]),
            shape=tuple(source["x_shape"]),
        )
    kinds = np.array([code.partition(":")[0] for code in codes])
    inputs = profile[:, np.isin(kinds, INPUTS)]
    _write(folder / f"{ATTRIBUTES}.npz", edges, inputs, _attributes(profile, codes, kinds, years))
    numbers = np.where(years >= 0, _FIRST_YEAR + years, np.nan)
    _write(folder / f"{YEARS}.npz", edges, profile, numbers)


def _attributes(
    profile: sparse.csr_matrix, codes: list[str], kinds: np.ndarray, years: np.ndarray
) -> np.ndarray:
    """Return the [N, 4] labels of :data:`LABELS`: 1, 0, and -1 for unknown."""

    def has(columns: np.ndarray) -> np.ndarray:
        return np.asarray(profile[:, columns].sum(axis=1)).ravel() > 0

    def code(name: str) -> np.ndarray:
        return has(np.array([codes.index(name)]))

    of_kind = {kind: has(np.flatnonzero(kinds == kind)) for kind in ("gender", "status", "minor")}
    columns = (
        np.where(of_kind["gender"], code("gender:2"), -1),
        np.where(of_kind["status"], code("status:1"), -1),
        np.where(years >= 0, years >= _LATER, -1),
        of_kind["minor"],
    )
    return np.stack(columns, axis=1).astype(np.int8)


def _write(path: Path, edges: np.ndarray, features: sparse.csr_matrix, labels: np.ndarray) -> None:
    np.savez(
        path,
        edge_index=edges,
        y=labels,
        x_indptr=features.indptr.astype(np.int32),
        x_indices=features.indices.astype(np.int32),
        x_data=features.data.astype(np.float32),
        x_shape=np.array(features.shape, dtype=np.int64),
    )


def write_bank(folder: Path, *options: str) -> None:
    """Write the tables of the example's bank to a new folder.

    Args:
        folder: New.
        options: Of ``examples/fraud/make_bank.py``, such as ``--seed``.

    Raises:
        EngineFailed: The script failed.
    """
    command = [sys.executable, str(_SCRIPT), "--out", str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EngineFailed(f"{_SCRIPT.name} ended with {done.returncode}: {done.stderr.strip()}")
