"""Outputs of ours that give way to new ones where a user asks for it: the one rule for all of them.

What a command wrote may be replaced by what the same kind of command writes. A folder that holds
anything else, even one file, is refused by that file's name; so is one that a process is at work
in. The new one is made beside the old one, as ``.NAME.PID.part``, and takes its place in one step;
where the file system cannot do that, in two. Until then the old one stays as it is.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from retexo_fl.errors import ConfigurationError, InputError

#: Predictions lie with what they were made of, unless somebody says otherwise, and go with it.
PREDICTIONS: Final = r"predictions\.json|predictions-\d+\.[a-z-]+"
_BESIDE: Final = ".{}.{}.part"
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
#: Errors by which two names cannot be exchanged in one step here.
_NO_EXCHANGE: Final = frozenset((errno.EINVAL, errno.ENOSYS, errno.ENOTSUP))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a command writes.

    Attributes:
        name: As errors have it: ``a run``.
        files: Matches the path, below the folder, of each file that may be there.
        is_one: Says of a folder without any other file whether it is one.
        hold: Holds one for this process, or raises that another is at work in it.
        error: Raised of one that cannot be replaced.
    """

    name: str
    files: re.Pattern[str]
    is_one: Callable[[Path], bool]
    hold: Callable[[Path], AbstractContextManager[object]]
    error: type[InputError] = ConfigurationError


def is_taken(place: Path) -> bool:
    """Return whether there is anything but an empty folder.

    Raises:
        OSError: It cannot be looked into.
    """
    is_there = place.exists() or place.is_symlink()
    return is_there and (not place.is_dir() or any(place.iterdir()))


def check_replaceable(place: Path, kind: Kind) -> None:
    """Check that what is at ``place`` may give way to another of its kind, now.

    Raises:
        InputError: Of the kind's class; names a file that is no part of one, or another process.
    """
    if not place.is_dir():
        raise kind.error(f"out: {place} is no folder; expected {kind.name}, which is replaced")
    try:
        foreign = _foreign(place, kind)
        if not os.access(place.resolve().parent, os.W_OK | os.X_OK):
            raise kind.error(
                f"out: {place} cannot be replaced; expected {place.resolve().parent} to be a "
                "directory that can be written to"
            )
    except OSError as error:
        raise kind.error(f"out: {place} cannot be used ({error.strerror})") from error
    if foreign is not None:
        raise kind.error(
            f"out: {place} holds {foreign}, which is no file of {kind.name}, and is not replaced; "
            "expected another directory"
        )
    if not kind.is_one(place):
        raise kind.error(
            f"out: {place} is not {kind.name}, and is not replaced; expected another directory"
        )
    with kind.hold(place):
        pass


class Replacement:
    """A folder in the making that is to take the place of another, which is held meanwhile.

    Attributes:
        place: The folder that is there.
        new: Empty at first; to be filled.

    Args:
        place: A folder of this kind.
        kind: Of both.
        mode: Of the new folder.

    Raises:
        InputError: As :func:`check_replaceable`.
        OSError: Nothing can be made beside it.
    """

    def __init__(self, place: Path, kind: Kind, *, mode: int = 0o777) -> None:
        check_replaceable(place, kind)
        self.place = place.resolve()
        self.new = beside(self.place)
        self._held = ExitStack()
        self._held.enter_context(kind.hold(place))
        try:
            remove_left(self.place)
            self.new.mkdir(mode=mode)
        except BaseException:
            self._held.close()
            raise

    def swap(self) -> None:
        """Put the new folder in the other's place, and that in the new one's; or back again.

        Raises:
            OSError: It is not possible, and nothing was changed.
        """
        _exchange(self.new, self.place)

    def close(self) -> None:
        """Remove what is not in its place, and release the place."""
        shutil.rmtree(self.new, ignore_errors=True)
        self._held.close()


def beside(place: Path) -> Path:
    """Return where this process makes what is to replace ``place``."""
    return place.with_name(_BESIDE.format(place.name, os.getpid()))


def remove_left(place: Path) -> None:
    """Remove what processes left that were killed; whoever calls this holds off others."""
    for left in _beside(place):
        shutil.rmtree(left, ignore_errors=True)


def in_the_making(place: Path) -> Path:
    """Return where the replacement of ``place`` is now, for a process that did not begin it."""
    return next(iter(_beside(place.resolve())), place)


def _beside(place: Path) -> list[Path]:
    ours = re.compile(rf"\.{re.escape(place.name)}\.[0-9]+\.part")
    with suppress(OSError):
        return [path for path in place.parent.iterdir() if ours.fullmatch(path.name)]
    return []


def check_new_file(
    path: Path, *, overwrite: bool, read: Callable[[Path], object], what: str
) -> None:
    """Refuse a file that is there, unless it is to be replaced and is of the same kind.

    Args:
        path: Where one is to be written.
        overwrite: Whether it is to be replaced.
        read: Reads one of this kind.
        what: Its kind, as errors have it: ``a recipe``.

    Raises:
        ConfigurationError: Something is there that is not replaced.
    """
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise ConfigurationError(
            f"out: {path} exists; expected a new file, or --overwrite to replace {what}"
        )
    try:
        read(path)
    except InputError as error:
        raise ConfigurationError(
            f"out: {path} is not {what}, and is not replaced; expected another file ({error})"
        ) from error


def _foreign(place: Path, kind: Kind) -> Path | None:
    """Return the first thing in a folder that no command of a kind has put there."""

    def fail(error: OSError) -> None:
        raise error

    for folder, folders, files in os.walk(place, onerror=fail):
        here = Path(folder)
        folders.sort()
        links = [name for name in folders if (here / name).is_symlink()]
        for name in sorted((*files, *links)):
            path = here / name
            inside = path.relative_to(place)
            if path.is_symlink() or not path.is_file() or not kind.files.fullmatch(str(inside)):
                return inside
        # A folder that nobody made a file in is not ours to remove, either.
        is_empty = here != place and not folders and not files
        if is_empty and not kind.files.fullmatch(f"{here.relative_to(place)}/"):
            return here.relative_to(place)
    return None


def _exchange(one: Path, other: Path) -> None:
    """Exchange two folders: in one step on Linux, else in two."""
    with suppress(AttributeError):
        rename = ctypes.CDLL(None, use_errno=True).renameat2
        names = os.fsencode(one), os.fsencode(other)
        if rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
            return
        number = ctypes.get_errno()
        if number not in _NO_EXCHANGE:
            raise OSError(number, os.strerror(number), str(other))
    aside = one.with_name(f"{one.name.removesuffix('.part')}0.part")
    other.rename(aside)
    try:
        one.rename(other)
    except BaseException:
        aside.rename(other)
        raise
    aside.rename(one)
