"""Standard output and error of a process whose reader may go while it works."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any, Final

#: The other end of a pipe ended, or the terminal is gone: nobody is left to read it.
_READER_GONE: Final = frozenset((errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO))
_STANDARD_OUTPUT, _STANDARD_ERROR = 1, 2


class _Descriptor(io.FileIO):
    """A descriptor that takes everything: what it cannot write is gone, and ``lost`` says why."""

    lost: OSError | None = None

    def write(self, content: Any, /) -> int:
        """See :class:`io.FileIO`."""
        if self.lost is None:
            try:
                return super().write(content)
            except OSError as error:
                self.lost = error
        return memoryview(content).nbytes


def outlive_readers() -> None:
    """Have whatever this process writes to standard output and error never end it.

    A descriptor that was closed before the process began leads nowhere, rather than to the first
    file that is opened. Streams that somebody has put in their places are left alone.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    while nowhere <= _STANDARD_ERROR:
        os.set_inheritable(nowhere, True)
        nowhere = os.open(os.devnull, os.O_RDWR)
    os.close(nowhere)
    if sys.stdout is sys.__stdout__:
        sys.stdout = _outliving(_STANDARD_OUTPUT, sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _outliving(_STANDARD_ERROR, sys.stderr)


def check_output() -> None:
    """Raise what kept standard output from being written, unless nobody was left to read it.

    Raises:
        OSError: A full disk, say.
    """
    sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    lost = raw.lost if isinstance(raw, _Descriptor) else None
    if lost is not None and lost.errno not in _READER_GONE:
        raise OSError(lost.errno, lost.strerror, "standard output")


def _outliving(descriptor: int, before: object) -> io.TextIOWrapper:
    """Return a stream as it was, on a descriptor that takes everything."""
    raw = _Descriptor(descriptor, "wb", closefd=False)
    if not isinstance(before, io.TextIOWrapper):
        return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace")
    before.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=before.encoding,
        errors=before.errors,
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )
