"""Which files a process opened, moved or removed, as the system's tracer saw it (strace)."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

#: Calls that give a file away by its name. A question mark: not on every processor.
_CALLS: Final = (
    *("?open", "openat", "?openat2", "?creat", "?truncate", "execve", "?execveat"),
    *("?rename", "?renameat", "?renameat2", "?link", "linkat", "?symlink", "symlinkat"),
    *("?unlink", "unlinkat"),
)
#: Calls that could give away the content of another process or file without its name.
_BACK_DOORS: Final = (
    *("open_by_handle_at", "process_vm_readv", "ptrace", "?pidfd_getfd", "?io_uring_setup"),
    *("mount", "?open_tree", "chdir", "fchdir", "chroot", "pivot_root"),
)
_LINE: Final = re.compile(r"^(?P<pid>\d+) +(?P<call>\w+)\((?P<arguments>.*)$")
_RESUMED: Final = re.compile(r"^(?P<pid>\d+) +<\.\.\. (?P<call>\w+) resumed>(?P<rest>.*)$")
#: The report of a signal or an exit.
_NOTE: Final = re.compile(r"^\d+ +(---|\+\+\+) ")
#: Which strings of a call are files that it reaches, where not all are: behind the program of an
#: execve stand its arguments, and a symbolic link's first string is only its content.
_MEANT: Final = {
    **dict.fromkeys(("execve", "execveat"), slice(1)),
    **dict.fromkeys(("symlink", "symlinkat"), slice(-1, None)),
}
#: A path, and the folder that it starts from where the call names one.
_PATH: Final = re.compile(r'(?:(?:AT_FDCWD|\d+)<(?P<folder>[^>]*)>, )?"(?P<path>(?:[^"\\]|\\.)*)"')
#: The file that a call returned, by its real name.
_RETURNED: Final = re.compile(r" = \d+<(?P<path>/[^>]*)>")
_WRITING: Final = re.compile(r"\bO_(WRONLY|RDWR|CREAT|TRUNC)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileAccess:
    """One file in one call.

    Attributes:
        pid: Of the process or thread.
        call: Of the system.
        path: Absolute; of a file that was opened also its real path, as an access of its own.
        writes: Whether the call may change the file or its name.
    """

    pid: int
    call: str
    path: Path
    writes: bool


def tracer(output: Path) -> list[str]:
    """Return the command under which a program writes its trace to ``output``.

    Skips the calling test where strace is not installed or may not trace.
    """
    calls = ",".join(("?" + call.lstrip("?")) for call in (*_CALLS, *_BACK_DOORS))
    command = ["strace", "-f", "--seccomp-bpf", "-qq", "-y", "-e", f"trace={calls}", "-o"]
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    trial = subprocess.run([*command, "/dev/null", "true"], check=False, capture_output=True)
    if trial.returncode:
        pytest.skip(f"strace may not trace here: {trial.stderr.decode()[-200:]}")
    return [*command, str(output)]


def read_trace(output: Path, *, cwd: Path) -> list[FileAccess]:
    """Return all accesses of a trace, whether they succeeded or not.

    Args:
        output: What :func:`tracer` named.
        cwd: Where the program was started; no part of it may leave this folder.

    Raises:
        AssertionError: A line is not understood, or a call was made that names no file.
    """
    return list(_accesses(output.read_text(encoding="utf-8").splitlines(), cwd))


def opened(accesses: Sequence[FileAccess], *, writes: bool | None = None) -> set[Path]:
    """Return the files of a trace, all or those that were only read, or also written."""
    return {found.path for found in accesses if writes is None or found.writes == writes}


def _accesses(lines: Sequence[str], cwd: Path) -> Iterator[FileAccess]:
    writing: dict[tuple[int, str], bool] = {}
    back_doors = {call.lstrip("?") for call in _BACK_DOORS}
    for line in lines:
        if (resumed := _RESUMED.match(line)) is not None:
            pid, call, rest = int(resumed["pid"]), resumed["call"], resumed["rest"]
            yield from _returned(pid, call, rest, writes=writing[pid, call])
            continue
        if _NOTE.match(line):
            continue
        found = _LINE.match(line)
        assert found is not None, f"the trace has a line of another kind: {line[:200]}"
        pid, call, arguments = int(found["pid"]), found["call"], found["arguments"]
        assert call not in back_doors, f"a file may have been reached without its name: {line}"
        writes = not call.startswith(("open", "execve")) or bool(_WRITING.search(arguments))
        writing[pid, call] = writes
        paths = list(_PATH.finditer(arguments))
        assert paths, f"a call without a path: {line[:200]}"
        for path in paths[_MEANT.get(call, slice(None))]:
            yield FileAccess(pid=pid, call=call, path=_absolute(path, cwd), writes=writes)
        yield from _returned(pid, call, arguments, writes=writes)


def _returned(pid: int, call: str, text: str, *, writes: bool) -> Iterator[FileAccess]:
    found = _RETURNED.search(text)
    if found is not None:
        yield FileAccess(pid=pid, call=call, path=Path(_plain(found["path"])), writes=writes)


def _absolute(found: re.Match[str], cwd: Path) -> Path:
    folder = Path(_plain(found["folder"])) if found["folder"] else cwd
    # Without a look at the disk, where a link may have gone since.
    return Path(os.path.normpath(folder / _plain(found["path"])))


def _plain(text: str) -> str:
    """Undo the escapes of a C string."""
    found = ast.literal_eval(f'b"{text}"')
    assert isinstance(found, bytes)
    return found.decode()
