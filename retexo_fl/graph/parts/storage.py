"""Partitions on disk: a folder of NumPy arrays and a manifest; the room's README has the layout."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from retexo_fl.errors import ConfigurationError, PartitionError
from retexo_fl.file_lock import locked_folder
from retexo_fl.files import new_file
from retexo_fl.graph.checks import ArrayChecks
from retexo_fl.graph.features import Features
from retexo_fl.graph.neighbours import EdgeValues
from retexo_fl.graph.npy import open_npy
from retexo_fl.graph.parts.manifest import MANIFEST_NAME, Manifest, StoredArray, read_manifest
from retexo_fl.graph.parts.partition import GraphPartition, check_partition
from retexo_fl.graph.recipes.recipe import RECIPE_NAME, FeatureRecipe, read_recipe
from retexo_fl.relations import relations_of
from retexo_fl.replacing import PREDICTIONS, Kind, Replacement, check_replaceable, is_taken
from retexo_fl.units import counted

#: Features, labels and edges are the client's own.
_PRIVATE: Final = 0o600
_PART: Final = "part-"
#: Stored as they are, under the names of the fields.
_FIELDS: Final = (
    "node_keys",
    "indptr",
    "indices",
    "boundary_keys",
    "boundary_owners",
    "node_hashes",
    "boundary_hashes",
    "labels",
    "train_mask",
    "val_mask",
    "test_mask",
)
_SPARSE_PARTS: Final = ("indptr", "indices", "data")
_SPARSE_DTYPES: Final = {"indptr": "<i8", "indices": "<i4", "data": "<f4"}

_FILES: Final = rf"{re.escape(MANIFEST_NAME)}|{re.escape(RECIPE_NAME)}|[a-z_]+\.npy"


def _hold(folder: Path) -> AbstractContextManager[None]:
    return locked_folder(folder, doing="at work in")


#: A folder of one part.
PART: Final = Kind(
    name="a part",
    files=re.compile(_FILES),
    is_one=lambda folder: (folder / MANIFEST_NAME).is_file(),
    hold=_hold,
    error=PartitionError,
)
#: A folder of parts, with what clients make such parts by, and predictions.
PARTS: Final = Kind(
    name="a folder of parts",
    files=re.compile(
        rf"{_PART}\d+/(?:{_FILES})|peers\.toml|{re.escape(RECIPE_NAME)}"
        rf"|{PREDICTIONS}|\.(?:predictions-[0-9a-f]+|{_PART}\d+\.\d+)\.part/.*"
    ),
    is_one=lambda folder: any(folder.glob(f"{_PART}*/{MANIFEST_NAME}")),
    hold=_hold,
    error=PartitionError,
)


def write_partition(partition: GraphPartition, directory: Path, *, overwrite: bool = False) -> None:
    """Store one partition in files of mode 0600, in a folder of mode 0700.

    Args:
        partition: To be stored.
        directory: New, or empty.
        overwrite: It may hold a partition, which is replaced.

    Raises:
        PartitionError: ``directory`` holds something, or cannot be written; nothing is left there.
    """
    with _new_folder(directory, PART if overwrite else None) as beside:
        _write_arrays(partition, beside)


def write_partitions(
    parts: Sequence[GraphPartition],
    out: Path,
    *,
    beside: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> None:
    """Store all partitions of a graph as ``out/part-0``, ``out/part-1``, ...; for this user alone.

    Args:
        parts: To be stored.
        out: New, or empty; it appears with all parts in it or not at all.
        beside: Texts of other files in ``out``, by name.
        overwrite: It may hold partitions, which are replaced, with predictions beside them.

    Raises:
        PartitionError: ``out`` holds something, or cannot be written; nothing is left there.
    """
    with _new_folder(out, PARTS if overwrite else None) as place:
        for partition in parts:
            folder = place / part_name(partition.client)
            folder.mkdir(mode=0o700)
            _write_arrays(partition, folder)
        for name, text in (beside or {}).items():
            _write_private(place / name, text.encode())


def part_name(client: int) -> str:
    """Return the name of the folder of a client's part."""
    return f"{_PART}{client}"


def find_partitions(out: Path) -> list[Path]:
    """Return the folders that :func:`write_partitions` made, in client order.

    Raises:
        PartitionError: There are none.
    """
    found = [path for path in out.glob(f"{_PART}*") if path.name[len(_PART) :].isdecimal()]
    if not found:
        raise PartitionError(f"{out}: no folder {_PART}0; expected one made by 'retexo partition'")
    return sorted(found, key=lambda path: int(path.name[len(_PART) :]))


def open_partition(directory: Path, *, verify: bool = True) -> GraphPartition:
    """Open a stored partition.

    Args:
        directory: The folder of one partition.
        verify: Read everything, compare the checksums and check what must be true of a partition.
            Without it, only what is in manifest and headers is checked and large arrays are
            read when they are used: for a folder that was verified before.

    Returns:
        A partition of read-only arrays, large ones mapped from their files.

    Raises:
        PartitionError: A file is missing, truncated, altered or of another version, or a check
            failed; the message names the file.
    """
    manifest = read_manifest(directory / MANIFEST_NAME)
    arrays = {
        name: _open_array(directory / f"{name}.npy", entry, verify=verify)
        for name, entry in manifest.arrays.items()
    }
    partition = GraphPartition(
        partitioning=manifest.partitioning,
        client=manifest.client,
        num_clients=manifest.num_clients,
        num_classes=manifest.num_classes,
        recipe=_recipe(directory, manifest),
        relations=relations_of(manifest.relations),
        features=_features(directory, manifest, arrays),
        is_structural=False,
        edge_values=EdgeValues(
            weights=arrays.get("edge_weights"), attributes=arrays.get("edge_attributes")
        ),
        **{name: arrays[name] for name in _FIELDS},
    )
    if verify:
        check_partition(partition, source=str(directory))
    return partition


def check_new_folder(target: Path, replaced: Kind | None = None) -> bool:
    """Check that a folder is absent or empty, before there is anything to be written to it.

    Args:
        target: The folder.
        replaced: :data:`PART` or :data:`PARTS`, which it may hold.

    Returns:
        Whether it holds one.

    Raises:
        PartitionError: It holds something else, or cannot be read; or another process is at work
            in it.
    """
    try:
        taken = is_taken(target)
    except OSError as error:
        raise PartitionError(f"{target}: cannot be read ({error.strerror})") from error
    if taken and replaced is None:
        raise PartitionError(
            f"{target}: exists; expected a new or empty folder, or --overwrite to replace parts"
        )
    if taken and replaced is not None:
        check_replaceable(target, replaced)
    return taken


@contextmanager
def _new_folder(target: Path, replaced: Kind | None = None) -> Iterator[Path]:
    """Yield a folder beside ``target`` that takes its place at the end, or vanishes."""
    if check_new_folder(target, replaced) and replaced is not None:
        with _replacing(target, replaced) as new:
            yield new
        return
    place = target.resolve()
    beside = place.with_name(f".{place.name}.{os.getpid()}.part")
    made: list[Path] = []
    try:
        made = [parent for parent in place.parents if not parent.exists()]
        beside.mkdir(mode=0o700, parents=True)
        yield beside
        beside.replace(place)
    except OSError as error:
        reason = error.strerror or error
        raise PartitionError(f"{target}: could not be written ({reason})") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        for parent in made:
            # What is not empty stays: the partition, or what others put there meanwhile.
            with suppress(OSError):
                parent.rmdir()


@contextmanager
def _replacing(target: Path, kind: Kind) -> Iterator[Path]:
    try:
        replacement = Replacement(target, kind, mode=0o700)
        try:
            yield replacement.new
            replacement.swap()
        finally:
            replacement.close()
    except OSError as error:
        reason = error.strerror or error
        raise PartitionError(f"{target}: could not be written ({reason})") from error


def _write_arrays(partition: GraphPartition, folder: Path) -> None:
    if partition.is_structural:
        # They are made again of the edges.
        none = np.empty((partition.num_inner, 0), np.float32)
        partition = replace(partition, features=none, is_structural=False)
    stored = {}
    for name, array in _stored_form(partition).items():
        path = folder / f"{name}.npy"
        with new_file(path, mode=_PRIVATE) as file:
            np.save(file, array, allow_pickle=False)
        stored[name] = StoredArray(
            shape=array.shape,
            dtype=array.dtype.str,
            sha256=_file_sha256(path),
            bytes=path.stat().st_size,
        )
    manifest = Manifest(
        partitioning=partition.partitioning,
        client=partition.client,
        num_clients=partition.num_clients,
        num_classes=partition.num_classes,
        num_features=partition.num_features,
        arrays=stored,
        recipe=partition.recipe_digest,
        relations=partition.relations_text,
    )
    if partition.recipe is not None:
        _write_private(folder / RECIPE_NAME, partition.recipe.to_toml().encode())
    _write_private(folder / MANIFEST_NAME, manifest.to_json().encode("ascii"))


def _write_private(path: Path, content: bytes) -> None:
    with new_file(path, mode=_PRIVATE) as file:
        file.write(content)


def _stored_form(partition: GraphPartition) -> dict[str, np.ndarray]:
    """Return the arrays as the files have them: little-endian, C order, fixed dtypes."""
    arrays: dict[str, np.ndarray] = {name: getattr(partition, name) for name in _FIELDS}
    arrays |= partition.edge_values.named()
    features = partition.features
    if isinstance(features, np.ndarray):
        arrays["features"] = features
    else:
        for part in _SPARSE_PARTS:
            arrays[f"features_{part}"] = getattr(features, part).astype(_SPARSE_DTYPES[part])
    return {
        name: np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        for name, array in arrays.items()
    }


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _open_array(path: Path, entry: StoredArray, *, verify: bool) -> np.ndarray:
    try:
        size_bytes = path.stat().st_size
        if size_bytes != entry.bytes:
            found = counted(size_bytes, "byte")
            raise PartitionError(f"{path}: {found}; expected {entry.bytes}")
        if verify and _file_sha256(path) != entry.sha256:
            raise PartitionError(f"{path}: altered; expected SHA-256 {entry.sha256}")
    except FileNotFoundError as error:
        expected = counted(entry.bytes, "byte")
        raise PartitionError(f"{path}: missing; expected {expected}") from error
    except OSError as error:
        raise PartitionError(f"{path}: cannot be read ({error.strerror})") from error
    array = open_npy(path, error=PartitionError)
    if array.shape != entry.shape or array.dtype.str != entry.dtype:
        raise PartitionError(
            f"{path}: got {array.dtype.str} of shape {array.shape}; "
            f"expected {entry.dtype} of shape {entry.shape}"
        )
    return array


def _recipe(directory: Path, manifest: Manifest) -> FeatureRecipe | None:
    """Return the recipe that a manifest names, from the file beside it."""
    if not manifest.recipe:
        return None
    path = directory / RECIPE_NAME
    try:
        recipe = read_recipe(path)
    except ConfigurationError as error:
        raise PartitionError(str(error)) from error
    if recipe.digest != manifest.recipe:
        raise PartitionError(
            f"{path}: is recipe {recipe.digest[:16]}; expected {manifest.recipe[:16]}, which the "
            "part was made by"
        )
    return recipe


def _features(directory: Path, manifest: Manifest, arrays: dict[str, np.ndarray]) -> Features:
    if not manifest.is_sparse:
        return arrays["features"]
    checks = ArrayChecks(source=str(directory), error=PartitionError)
    parts = {part: arrays[f"features_{part}"] for part in _SPARSE_PARTS}
    return checks.sparse_features("features", parts, num_columns=manifest.num_features)
