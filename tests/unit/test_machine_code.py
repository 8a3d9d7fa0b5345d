from __future__ import annotations

import os
from pathlib import Path

import numba
import pytest

from retexo_fl.machine_code import compile_kernel, kernel_folder


def _doubled(number: int) -> int:
    return 2 * number


def test_kernel_with_signature_is_compiled_and_kept_before_calls(
    tmp_path: Path,
) -> None:
    kernel = compile_kernel(_doubled, tmp_path, [(numba.types.int64,)])
    assert len(list(tmp_path.rglob("*.nbc"))) == 1
    assert kernel(4) == 8
    with pytest.raises(TypeError, match="No matching definition"):
        kernel("text")  # type: ignore[arg-type]


def test_a_kernel_without_a_folder_is_kept_nowhere() -> None:
    assert compile_kernel(_doubled, None, [(numba.types.int64,)])(4) == 8


def test_each_room_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))
    folders = set()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "module.py").write_text(f"name = {name!r}\n", encoding="utf-8")
        folders.add(kernel_folder(tmp_path / name))
    assert len(folders) == 2
    assert all(folder is not None and folder.parent == tmp_path / "kept" for folder in folders)


@pytest.mark.parametrize(
    ("kernels", "above", "kept"),
    [
        (0o700, 0o755, True),
        (0o755, 0o1777, True),  # as below /tmp
        (0o770, 0o755, False),
        (0o702, 0o755, False),
        (0o700, 0o777, False),
    ],
)
def test_a_folder_that_others_can_write_to_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kernels: int,
    above: int,
    kept: bool,
) -> None:
    room, named, home = (tmp_path / name for name in ("room", "named", "home"))
    (room / "__pycache__").mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(named))
    folder = kernel_folder(room)
    assert folder is not None
    assert folder.parent == named
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(kernels)
    named.chmod(above)
    again = kernel_folder(room)
    assert again == (folder if kept else room / "__pycache__" / folder.name)
    assert ("other users can write to" in caplog.text) is not kept


def test_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "__pycache__").mkdir()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "named"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert kernel_folder(tmp_path) is not None
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert kernel_folder(tmp_path) is None
