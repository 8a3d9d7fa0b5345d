"""The server's checkpoint: one safetensors file, replaced as a whole after a round."""

from __future__ import annotations

import csv
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from retexo_fl.errors import CheckpointError
from retexo_fl.files import write_whole

#: Raised when the meaning of a checkpoint's content changes.
CHECKPOINT_VERSION: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A training after ``round`` rounds of ``stage``.

    Attributes:
        facts: The part in JSON: job, attempt, stage, round, best score, history.
        tensors: ``weights``, ``best`` (absent before the first candidate), ``adam.*``,
            ``control-*``.
    """

    facts: Mapping[str, Any]
    tensors: Mapping[str, np.ndarray] = field(default_factory=dict)


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint at ``path``; after a crash at any moment one of the two is whole.

    Raises:
        CheckpointError: The disk is full or not writable; the former checkpoint is intact.
    """
    facts = json.dumps({"version": CHECKPOINT_VERSION, **checkpoint.facts})
    tensors = {name: np.ascontiguousarray(item) for name, item in checkpoint.tensors.items()}
    content = save(tensors, metadata={"facts": facts, "crc32": checksum(facts, tensors)})
    replace_file(path, content)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        CheckpointError: There is none, or it is damaged or of another version.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    with named_damage(path):
        tensors = load(content)
        metadata = metadata_of(content)
        facts = json.loads(metadata["facts"])
        intact = metadata["crc32"] == checksum(metadata["facts"], tensors)
        version = facts.get("version")
    if version != CHECKPOINT_VERSION:
        raise CheckpointError(f"{path}: version {version!r:.40}; expected {CHECKPOINT_VERSION}")
    if not intact:
        raise CheckpointError(f"{path}: damaged (its checksum does not fit its content)")
    return Checkpoint(facts=facts, tensors=tensors)


@contextmanager
def named_damage(place: Path | str, problem: str = "damaged") -> Iterator[None]:
    """Name the file in whatever its content causes where it is not as it was written.

    Args:
        place: The file.
        problem: What is wrong with it.

    Raises:
        CheckpointError: Something was absent, of another type, or no number.
    """
    try:
        yield
    except (
        SafetensorError,
        AttributeError,
        LookupError,
        OverflowError,
        RecursionError,
        TypeError,
        ValueError,
        csv.Error,
    ) as error:
        raise CheckpointError(f"{place}: {problem} ({error})") from error


def metadata_of(content: bytes) -> Mapping[str, str]:
    """Return the metadata of a safetensors file.

    Raises:
        ValueError: Its header is not JSON.
        KeyError: It has none.
    """
    header_bytes = int.from_bytes(content[:8], "little")
    metadata: Mapping[str, str] = json.loads(content[8 : 8 + header_bytes])["__metadata__"]
    return metadata


def checksum(facts: str, tensors: Mapping[str, np.ndarray]) -> str:
    """Return a CRC-32 over the content of a file of tensors, against damage on the disk."""
    crc = zlib.crc32(facts.encode())
    for name in sorted(tensors):
        item = tensors[name]
        crc = zlib.crc32(f"{name} {item.dtype} {item.shape}".encode(), crc)
        crc = zlib.crc32(np.ascontiguousarray(item).tobytes(), crc)
    return f"{crc:08x}"


def replace_file(path: Path, content: bytes) -> None:
    """Write a file beside ``path`` and put it in its place.

    Raises:
        CheckpointError: It could not be written; what stood at ``path`` still does.
    """
    try:
        write_whole(path, [content], durable=True)
    except OSError as error:
        raise CheckpointError(f"{path}: could not be written ({error.strerror})") from error
