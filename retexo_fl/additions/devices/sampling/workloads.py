"""What each root would cost alone, for cutting mini-batches in shares of equal work."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Final

import numpy as np

from retexo_fl.additions.devices.sampling.base import CountingSampler, Sampler, checked_roots
from retexo_fl.errors import ConfigurationError
from retexo_fl.files import write_whole

#: Part of every file's name; another one when files of before would be wrong.
_VERSION: Final = "workloads 1"
#: Roots whose scopes are in memory at once.
_AT_ONCE: Final = 4096
_DIGEST_BYTES: Final = 32


def root_workloads(sampler: Sampler, roots: np.ndarray, *, cache: Path | None) -> np.ndarray:
    """Return for each root the aggregations of a sample that it is alone in.

    They are taken from the sampler itself, at mini-batch 0 of epoch 0. A sample of several roots
    costs at most their sum: what they share is drawn once.

    Source: Lin, Deng and Prasanna, "A Unified CPU-GPU Protocol for GNN Training" (CF'24); there
    they are the mean of several passes.

    Args:
        sampler: Counts them itself if it is a ``CountingSampler``.
        roots: (B,) distinct node ids.
        cache: Folder for the results, made if needed; None keeps none. A file is found again for
            the same graph, sampler and roots; one that is damaged is made anew.

    Returns:
        (B,) float64.

    Raises:
        DatasetError: A root is no node of the graph, or given twice.
        ConfigurationError: The folder cannot be written to.
    """
    roots = checked_roots(roots, sampler.adjacency.num_nodes)
    if cache is None:
        return _counted(sampler, roots)
    file = cache / f"{_name(sampler, roots)}.npy"
    found = _read(file, len(roots))
    if found is None:
        found = _counted(sampler, roots)
        _write(file, found)
    return found


def _counted(sampler: Sampler, roots: np.ndarray) -> np.ndarray:
    counts = np.empty(len(roots), dtype=np.float64)
    if isinstance(sampler, CountingSampler):
        for start in range(0, len(roots), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            counts[some] = sampler.count_aggregations(roots[some], epoch=0, batch=0)
        return counts
    for place in range(len(roots)):
        alone = sampler.sample(roots[place : place + 1], epoch=0, batch=0)
        counts[place] = alone.num_aggregations
    return counts


def _name(sampler: Sampler, roots: np.ndarray) -> str:
    digest = hashlib.sha256(f"{_VERSION}\n{sampler.spec}\n".encode())
    digest.update(sampler.adjacency.digest())
    digest.update(roots.data)
    return f"workloads-{digest.hexdigest()[:32]}"


def _read(file: Path, count: int) -> np.ndarray | None:
    """Return the (count,) float64 of a file, or None if it is absent or not as it was written."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    array, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    if hashlib.sha256(array).digest() != digest:
        return None
    found: np.ndarray = np.load(io.BytesIO(array), allow_pickle=False)
    return found if found.shape == (count,) and found.dtype == np.float64 else None


def _write(file: Path, counts: np.ndarray) -> None:
    """Store an array as ``.npy``, with the SHA-256 of the file behind it."""
    buffer = io.BytesIO()
    np.save(buffer, counts, allow_pickle=False)
    array = buffer.getvalue()
    try:
        write_whole(file, [array, hashlib.sha256(array).digest()])
    except OSError as error:
        raise ConfigurationError(
            f"workloads: {file} cannot be written ({error.strerror}); "
            "expected a folder with free space that this user can write to"
        ) from error
