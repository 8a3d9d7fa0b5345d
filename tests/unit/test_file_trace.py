"""Lines of the tracer, as it writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.file_trace import FileAccess, opened, read_trace

CWD = Path("/work")


def accesses(tmp_path: Path, *lines: str) -> list[FileAccess]:
    trace = tmp_path / "trace"
    trace.write_text("".join(f"{line}\n" for line in lines))
    return read_trace(trace, cwd=CWD)


def test_a_file_counts_by_its_name_and_by_its_real_name(tmp_path: Path) -> None:
    found = accesses(
        tmp_path,
        '7 openat(AT_FDCWD</home>, "alias", O_RDONLY|O_CLOEXEC) = 3</data/part-1/x.npy>',
        '7 openat(4</data>, "\\303\\274.part", O_WRONLY|O_CREAT, 0666) = 5</data/\\303\\274.part>',
        '7 openat(AT_FDCWD</home>, "/data/none", O_RDONLY) = -1 ENOENT (No such file or directory)',
        "7 +++ exited with 0 +++",
    )
    assert opened(found, writes=False) == {
        *(Path("/home/alias"), Path("/data/part-1/x.npy"), Path("/data/none")),
    }
    assert opened(found, writes=True) == {Path("/data/ü.part")}


def test_a_call_interrupted_by_another_thread_is_read_to_its_end(tmp_path: Path) -> None:
    found = accesses(
        tmp_path,
        '7 openat(AT_FDCWD</home>, "a", O_RDONLY <unfinished ...>',
        '8 openat(AT_FDCWD</home>, "b", O_RDWR) = 4</home/b>',
        "7 <... openat resumed>) = 3</data/a>",
    )
    assert opened(found, writes=False) == {Path("/home/a"), Path("/data/a")}
    assert opened(found, writes=True) == {Path("/home/b")}
    assert {access.pid for access in found} == {7, 8}


def test_moves_and_links_change_both_names(tmp_path: Path) -> None:
    found = accesses(
        tmp_path,
        '7 rename("/data/a", "b") = 0',
        '7 linkat(AT_FDCWD</home>, "../c", 3</data>, "d", 0) = 0',
        '7 symlink("../never/opened", "/data/e") = 0',
        '7 unlink("f") = 0',
    )
    assert opened(found, writes=True) == {
        *(Path("/data/a"), CWD / "b", Path("/c"), Path("/data/d"), Path("/data/e"), CWD / "f"),
    }


def test_arguments_of_a_program_are_no_files(tmp_path: Path) -> None:
    found = accesses(tmp_path, '7 execve("/bin/cat", ["cat", "/data/x"], 0x7ffd /* 9 vars */) = 0')
    assert opened(found) == {Path("/bin/cat")}


@pytest.mark.parametrize(
    "line",
    [
        '7 chdir("/data") = 0',
        "7 process_vm_readv(9, [], 1, [], 1, 0) = 4",
        "7 open_by_handle_at(3</>, {}, O_RDONLY) = 4</data/x>",
        "7 openat(AT_FDCWD</home>, 0x7f00, O_RDONLY) = -1 EFAULT (Bad address)",
        "something else",
    ],
)
def test_what_hides_a_file_is_an_error(tmp_path: Path, line: str) -> None:
    with pytest.raises(AssertionError):
        accesses(tmp_path, line)
