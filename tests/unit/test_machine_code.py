from __future__ import annotations

from pathlib import Path

import numba
import pytest

from retexo_fl.machine_code import compile_kernel, kernel_folder


def _doubled(number: int) -> int:
    return 2 * number


def test_a_kernel_with_a_signature_is_compiled_and_kept_before_its_first_call(
    tmp_path: Path,
) -> None:
    kernel = compile_kernel(_doubled, tmp_path, (numba.types.int64,))
    assert len(list(tmp_path.rglob("*.nbc"))) == 1
    assert kernel(4) == 8
    with pytest.raises(TypeError, match="No matching definition"):
        kernel("text")  # type: ignore[arg-type]


def test_a_kernel_without_a_folder_is_kept_nowhere() -> None:
    assert compile_kernel(_doubled, None, (numba.types.int64,))(4) == 8


def test_each_room_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))
    folders = set()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "module.py").write_text(f"name = {name!r}\n", encoding="utf-8")
        folders.add(kernel_folder(tmp_path / name))
    assert len(folders) == 2
    assert all(folder is not None and folder.parent == tmp_path / "kept" for folder in folders)
