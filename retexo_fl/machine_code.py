"""Machine code for kernels on arrays, kept on disk for each room that has some.

It is code that this machine compiled for its user, read back by that user only, as ``.pyc`` files
are.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba

logger = logging.getLogger(__name__)

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def compile_kernel(
    function: Callable[_Parameters, _Result],
    folder: Path | None,
    signatures: Sequence[tuple[Any, ...]] | None = None,
) -> Callable[_Parameters, _Result]:
    """Compile a function on arrays and numbers; while it runs, other threads run, too.

    Args:
        function: The kernel.
        folder: Where its machine code is kept, as :func:`kernel_folder` says; None: nowhere.
        signatures: numba's types of the arguments: it is compiled now, for each of these alone.
            None: at the first call, for each types of arguments anew.
    """
    fixed = None if signatures is None else list(signatures)
    with _numba_keeps_in(folder):
        kernel = numba.njit(fixed, nogil=True, cache=folder is not None)(function)
    return cast("Callable[_Parameters, _Result]", kernel)


def kernel_folder(room: Path) -> Path | None:
    """Return where a room's machine code is kept; None where no place can be written to.

    The places asked in turn: the folder that ``NUMBA_CACHE_DIR`` names, ``__pycache__`` beside the
    modules, ``$XDG_CACHE_HOME/retexo-fl`` or ``~/.cache/retexo-fl``. A folder that other users can
    write to is refused with a warning: what lies there is run.

    Each state of the room's sources has a folder of its own there. numba asks only whether the file
    of a kernel has changed, but a kernel holds copies of those that it calls, in other files. A
    service without a folder that it may write to compiles anew in each process.
    """
    name = f"kernels-{sources_digest(room)}"
    folder = next(
        (place / name for place in _places(room) if _is_usable(place / name)),
        None,
    )
    if folder is not None:
        _remove_empty(folder)
    return folder


def sources_digest(room: Path) -> str:
    """Return 16 hexadecimal digits that change with any module of a folder."""
    digest = hashlib.sha256()
    for module in sorted(room.glob("*.py")):
        source = module.read_bytes()
        digest.update(f"{module.name} {len(source)} ".encode() + source)
    return digest.hexdigest()[:16]


def _places(room: Path) -> Iterator[Path]:
    named = os.environ.get("NUMBA_CACHE_DIR", "")
    if named:
        yield Path(named)
    yield room / "__pycache__"
    of_user = os.environ.get("XDG_CACHE_HOME", "")
    if Path(of_user).is_absolute():
        yield Path(of_user) / "retexo-fl"
    else:
        with suppress(RuntimeError):  # A user without a home.
            yield Path.home() / ".cache" / "retexo-fl"


def _is_usable(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        open_to_others = _open_to_others(folder)
    except OSError:
        return False
    if open_to_others is not None:
        logger.warning(
            "%s: machine code is not kept there, since other users can write to %s",
            folder,
            open_to_others,
        )
    return open_to_others is None


def _open_to_others(folder: Path) -> Path | None:
    """Return the folder, or the one above it, in which others can put their own in its place."""
    folder = folder.resolve()
    status = folder.stat()
    if status.st_mode & 0o022 or status.st_uid != os.geteuid():
        return folder
    for above in folder.parents:
        mode = above.stat().st_mode
        # In a sticky folder, such as /tmp, only the owner of a name takes it away.
        if mode & 0o002 and not mode & stat.S_ISVTX:
            return above
    return None


def _remove_empty(folder: Path) -> None:
    """Remove what a power cut has emptied: numba would fail at it instead of compiling anew."""
    for file in (*folder.rglob("*.nbi"), *folder.rglob("*.nbc")):
        with suppress(OSError):  # Another process removed it, or writes it.
            if not file.stat().st_size:
                file.unlink()


@contextmanager
def _numba_keeps_in(folder: Path | None) -> Iterator[None]:
    """Let numba keep the kernels that are made meanwhile in a folder."""
    settings = vars(numba.config)
    before = settings["CACHE_DIR"]
    settings["CACHE_DIR"] = before if folder is None else str(folder)
    try:
        yield
    finally:
        settings["CACHE_DIR"] = before
