"""Files that are whole or absent: written beside their place and renamed into it; their names."""

from __future__ import annotations

import os
import secrets
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

from retexo_fl.errors import ConfigurationError

#: Far above a peers file of a million clients.
_MOST_TOML_BYTES: Final = 2**26
#: Inode, bytes, and when it was written in ns.
FileStamp: TypeAlias = tuple[int, int, int]


def write_whole(
    path: Path, parts: Iterable[bytes], *, durable: bool = False, private: bool = False
) -> int:
    """Put a file at ``path`` as a whole; after a crash the former one, or the new one, is there.

    Args:
        path: Its folder is made if needed.
        parts: Content, in order.
        durable: Wait until the content is on the disk, so that it outlives a power cut.
        private: Only this user may read or write it.

    Returns:
        Bytes written.

    Raises:
        OSError: It could not be written; what was at ``path`` is still there, and nothing else.
    """
    # It is no link to another place: nobody foresees the name, and it must be new.
    beside = path.with_name(f"{path.name}.{os.getpid()}{secrets.randbelow(10**9):09}.part")
    written = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(beside, mode=0o600 if private else 0o666) as file:
            for part in parts:
                written += file.write(part)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        beside.replace(path)
        if durable:
            force(path.parent)
    except BaseException:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
    return written


def new_file(path: Path, *, mode: int) -> BinaryIO:
    """Open a file for writing where there is none; it has its mode, less the umask, at once.

    Raises:
        FileExistsError: Something has this name, even a link to nothing.
        OSError: It cannot be made.
    """
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb")


def force(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, are on the disk.

    Raises:
        OSError: The disk is full, or failed.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_stamp(path: Path) -> FileStamp | None:
    """Return what changes with every write to a file, None where there is no file.

    Two writes within one tick of the file system's clock (milliseconds) that leave its size alone
    look like one.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def bare_name(path: Path) -> str:
    """Return a file's name without folder and endings: ``papers`` for ``data/papers.csv.gz``.

    Of a pattern it is that of the folder: ``papers`` for ``papers/*.parquet``.
    """
    if "*" in path.name and path.parent.name:
        return bare_name(path.parent)
    return path.name.partition(".")[0] or path.name


def several_paths(text: str) -> tuple[Path, ...]:
    """Return the files that a text names: with commas between them, or one that has them."""
    if "," not in text or Path(text).exists():
        return (Path(text),) if text else ()
    return tuple(Path(part.strip()) for part in text.split(",") if part.strip())


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file that somebody wrote.

    Raises:
        ConfigurationError: As :func:`read_toml_bytes`; or it is not TOML.
    """
    return parse_toml(read_toml_bytes(path), path)


def read_toml_bytes(path: Path) -> bytes:
    """Read the text of a TOML file, for :func:`parse_toml`.

    Raises:
        ConfigurationError: It is no file, cannot be read, or is longer than 64 MiB.
    """
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            # A pipe that nobody writes to would be waited for.
            raise ConfigurationError(f"{path}: is not a file; expected a TOML file")
        with path.open("rb") as file:
            content = file.read(_MOST_TOML_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error.strerror})") from error
    if len(content) > _MOST_TOML_BYTES:
        raise ConfigurationError(
            f"{path}: more than {_MOST_TOML_BYTES} bytes; expected a TOML file of fewer"
        )
    return content


def parse_toml(content: bytes, path: Path) -> dict[str, Any]:
    """Return what TOML says.

    Args:
        content: The text, UTF-8.
        path: How errors name it.

    Raises:
        ConfigurationError: It is no TOML.
    """
    try:
        return tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        # Beside bad TOML: numbers of thousands of digits, tables in tables without end.
        raise ConfigurationError(f"{path}: not a TOML file ({error})") from error
