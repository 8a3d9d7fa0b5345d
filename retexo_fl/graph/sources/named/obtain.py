"""A named data set on this machine: found, made from files by hand, or downloaded."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from retexo_fl.downloads.remote_file import Limits, RemoteFile
from retexo_fl.errors import DatasetError
from retexo_fl.files import write_whole
from retexo_fl.graph.sources.named.arrays import npz_content
from retexo_fl.graph.sources.named.table import NamedDataset
from retexo_fl.units import counted

#: Address of a mirror that serves ``NAME/FILE`` for each source file. Checksums hold there too.
MIRROR_VARIABLE: Final = "RETEXO_DATASETS_URL"
#: A file by hand may be so large: the largest known one has 16 MB. Chosen; not tuned.
_MOST_BYTES_BY_HAND: Final = 2**27


def cache_folder() -> Path:
    """Return where data sets are kept when no folder is given; it may not exist yet.

    Source: XDG Base Directory Specification: a relative ``XDG_CACHE_HOME`` is passed over.

    Raises:
        DatasetError: The user has no home.
    """
    named = os.environ.get("XDG_CACHE_HOME", "")
    if Path(named).is_absolute():
        return Path(named) / "retexo-fl"
    try:
        return Path.home() / ".cache" / "retexo-fl"
    except RuntimeError as error:
        raise DatasetError(
            "dataset: there is no home folder to keep a download in; give --data-dir DIR"
        ) from error


def kept_path(name: str) -> Path | None:
    """Return the ``.npz`` file of a named data set in the cache folder, if it is there."""
    path = cache_folder() / f"{name}.npz"
    return path if path.is_file() else None


def obtain(
    dataset: NamedDataset,
    *,
    data_dir: Path | None,
    quiet: bool = False,
    limits: Limits | None = None,
) -> Path:
    """Return the ``.npz`` file of a named data set, made on its first use.

    Looked for in this order: the file in ``data_dir``, source files in ``data_dir / NAME``, the
    file in the cache folder, the network.

    Args:
        dataset: Which one.
        data_dir: Where the file is put; None for the cache folder.
        quiet: Show no progress.
        limits: Of a download.

    Raises:
        DatasetError: It is not on this machine and cannot be made; nothing is left behind.
    """
    folder = cache_folder() if data_dir is None else data_dir
    path = folder / f"{dataset.name}.npz"
    if path.is_file():
        return path
    if data_dir is not None and _has_sources(dataset, data_dir):
        files = {file.name: _by_hand(dataset, file, data_dir) for file in dataset.files}
    elif (kept := kept_path(dataset.name)) is not None:
        return kept
    else:
        files = _download(dataset, quiet=quiet, limits=limits or Limits())
    content = npz_content(dataset.convert(dataset.name, files))
    try:
        write_whole(path, [content])
    except OSError as error:
        raise DatasetError(
            f"dataset: {path} cannot be written ({error.strerror}); "
            "give --data-dir DIR with room for it"
        ) from error
    return path


def _has_sources(dataset: NamedDataset, data_dir: Path) -> bool:
    return any((data_dir / dataset.name / file.name).is_file() for file in dataset.files)


def _by_hand(dataset: NamedDataset, file: RemoteFile, data_dir: Path) -> bytes:
    """Read a source file that the user has put there."""
    path = data_dir / dataset.name / file.name
    try:
        with path.open("rb") as opened:
            content = opened.read(_MOST_BYTES_BY_HAND + 1)
    except OSError as error:
        raise DatasetError(
            f"dataset: {path} cannot be read ({error.strerror}); put {file.url} there"
        ) from error
    if len(content) > _MOST_BYTES_BY_HAND:
        raise DatasetError(f"dataset: {path} is larger than {_MOST_BYTES_BY_HAND} bytes")
    digest = hashlib.sha256(content).hexdigest()
    if file.sha256 not in (None, digest):
        raise DatasetError(
            f"dataset: {path} has SHA-256 {digest}; expected {file.sha256}, that of {file.url}"
        )
    return content


def _download(dataset: NamedDataset, *, quiet: bool, limits: Limits) -> dict[str, bytes]:
    if not dataset.downloadable:
        raise DatasetError(_how_by_hand(dataset))
    # Only here: an HTTP client takes a tenth of a second to import.
    from retexo_fl.downloads.bar import DownloadBar
    from retexo_fl.downloads.fetch import fetch

    files = [_mirrored(dataset, file) for file in dataset.files]
    host = urlsplit(files[0].url).hostname
    head = f"{dataset.name}: downloading {counted(len(files), 'file')} from {host}"
    contents = {}
    try:
        with DownloadBar(head, quiet=quiet) as bars:
            for file in files:
                bar = bars.file(file.name)
                contents[file.name] = fetch(file, bar, limits)
                bar.end(len(contents[file.name]))
    except DatasetError as error:
        name = dataset.name
        raise DatasetError(
            f"dataset: {name!r} cannot be downloaded: {error}; without a network, put {name}.npz "
            f"or a folder {name} with its source files into DIR and give --data-dir DIR"
        ) from error
    return contents


def _mirrored(dataset: NamedDataset, file: RemoteFile) -> RemoteFile:
    """Return the file at the address that the user prefers."""
    base = os.environ.get(MIRROR_VARIABLE, "")
    if not base:
        return file
    try:
        parts = urlsplit(base)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        usable = False
    if not usable or not base.isprintable():
        raise DatasetError(f"{MIRROR_VARIABLE}: got {base[:80]!r}; expected http[s]://HOST[/PATH]")
    return RemoteFile(
        name=file.name,
        url=f"{base.rstrip('/')}/{dataset.name}/{file.name}",
        sha256=file.sha256,
        size_bytes=file.size_bytes,
    )


def _how_by_hand(dataset: NamedDataset) -> str:
    where = dataset.files[0].url.rpartition("/")[0]
    names = ", ".join(file.name for file in dataset.files)
    return (
        f"dataset: {dataset.name!r} is not downloaded, as no SHA-256 of its source is known; "
        f"put {names} from {where} into DIR/{dataset.name} and give --data-dir DIR"
    )
