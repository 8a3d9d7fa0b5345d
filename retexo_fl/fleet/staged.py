"""Files of a folder that are new or other, beside it until all of them are made."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from retexo_fl.replacing import beside, is_taken, remove_left

#: Of whom the folder is, nobody else may look into it.
FOLDER_MODE: Final = 0o700
SECRET_MODE: Final = 0o600
PUBLIC_MODE: Final = 0o644


class Staged:
    """A folder as it is to be; until :meth:`place` nothing in it has changed.

    A new folder comes as a whole. In one that is there each file, or new folder, takes its place
    in one step; who is interrupted amid them does the rest by doing all again. What a process that
    was killed has left beside the folder is removed by the next.

    Args:
        folder: Made if needed, for its owner alone. No other process makes it meanwhile.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> Self:
        """Make the place beside the folder.

        Raises:
            OSError: Nothing can be made there.
        """
        remove_left(self.folder)
        self._work = beside(self.folder)
        self._work.mkdir(mode=FOLDER_MODE)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove what was not put into its place."""
        shutil.rmtree(self._work, ignore_errors=True)

    def found(self, name: str) -> Path | None:
        """Return where a file is, new or old; None where there is none."""
        places = (self._work / name, self.folder / name)
        return next((place for place in places if place.exists()), None)

    def new(self, name: str) -> Path:
        """Return where a new file is to be written.

        Raises:
            OSError: Its folder cannot be made.
        """
        path = self._work / name
        _make_folder(path.parent)
        return path

    def put(self, name: str, content: bytes, mode: int = PUBLIC_MODE) -> None:
        """Have a file hold this; nothing happens where it does.

        Raises:
            OSError: The former one cannot be read, or this one not be written.
        """
        known = self.found(name)
        if known is None or known.read_bytes() != content:
            path = self.new(name)
            path.unlink(missing_ok=True)
            path.touch(mode=mode, exist_ok=False)
            path.write_bytes(content)
            path.chmod(mode)

    def place(self) -> list[str]:
        """Put all into the folder; return the names of files, sorted, that were not so before.

        Raises:
            OSError: Not all of it could be put there; what has taken its place is whole.
        """
        names = sorted(
            str(path.relative_to(self._work)) for path in self._work.rglob("*") if path.is_file()
        )
        if is_taken(self.folder):
            _move(self._work, self.folder)
        else:
            self._work.rename(self.folder)
        return names


def _make_folder(path: Path) -> None:
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for one in reversed(missing):
        one.mkdir(mode=FOLDER_MODE)


def _move(source: Path, target: Path) -> None:
    for path in sorted(source.iterdir()):
        place = target / path.name
        if path.is_dir() and place.is_dir():
            _move(path, place)
        else:
            path.replace(place)
