"""A file that only grows, by one line of JSON at a time, its owner's alone."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeVar

from retexo_fl.errors import CheckpointError
from retexo_fl.files import force

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Line = TypeVar("Line", bound="DataclassInstance")
#: Longer than any line.
_TAIL_BYTES: Final = 2**20


def of_line(kind: type[Line], line: object) -> Line:
    """Return a line as a dataclass: it has its fields, each of the type that is declared.

    Raises:
        ValueError: It is none.
    """
    kinds = {item.name: str(item.type) for item in fields(kind)}
    if (
        not isinstance(line, Mapping)
        or {key: type(value).__name__ for key, value in line.items()} != kinds
    ):
        raise ValueError
    return kind(**line)


class LineLog:
    """Lines of JSON (mode 0600).

    Args:
        path: Of the file; its folder is made if needed, for its owner alone.
        durable: What is added outlives a power cut, not only the process.
    """

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self.path = path
        self._durable = durable

    def read(self) -> list[Any]:
        """Return what all whole lines say, the first one first.

        Raises:
            CheckpointError: The file cannot be read, or is damaged.
        """
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be read ({error.strerror})") from error
        lines = content[: content.rfind(b"\n") + 1].splitlines()
        try:
            return [json.loads(line) for line in lines]
        except (ValueError, RecursionError) as error:
            raise CheckpointError(
                f"{self.path}: is damaged; expected a line of JSON each"
            ) from error

    def add(self, entry: Any) -> None:
        """Add a line; if durable, it is on the disk when this returns.

        Raises:
            CheckpointError: It could not be written.
        """
        is_new = not self.path.exists()
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "r+b") as file:
                # Nothing has followed from what a power cut left of a line.
                file.truncate(_whole_bytes(file))
                file.seek(0, os.SEEK_END)
                file.write(json.dumps(entry).encode() + b"\n")
                file.flush()
                if self._durable:
                    os.fsync(file.fileno())
            if is_new and self._durable:
                force(self.path.parent)
        except OSError as error:
            raise CheckpointError(
                f"{self.path}: could not be written ({error.strerror})"
            ) from error


def _whole_bytes(file: BinaryIO) -> int:
    """Return how many bytes the whole lines have."""
    start = max(file.seek(0, os.SEEK_END) - _TAIL_BYTES, 0)
    file.seek(start)
    return start + file.read().rfind(b"\n") + 1
