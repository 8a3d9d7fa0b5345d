"""Modules that are executed late are as others, once somebody uses them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from retexo_fl import late_modules


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module ``behind`` that is executed late."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(late_modules, "_LATE", {"behind"})
    monkeypatch.setattr(late_modules, "_UNUSED", "behind.unused")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    late_modules.import_late()
    yield tmp_path / "behind.py"
    del sys.modules["behind"], sys.modules["behind.unused"]


def test_a_module_is_executed_once_by_the_first_attribute(
    late: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late.write_text("print('executed')\nvalue = 3\n")
    import behind  # type: ignore[import-not-found]

    assert behind.__file__ == str(late)
    assert capsys.readouterr().out == ""
    assert (behind.value, behind.value) == (3, 3)
    assert capsys.readouterr().out == "executed\n"
    with pytest.raises(AttributeError, match="other"):
        _ = behind.other


def test_one_that_fails_fails_each_time(late: Path) -> None:
    late.write_text("raise ImportError('no compiler')\n")
    import behind

    for _ in range(2):
        with pytest.raises(ImportError, match="no compiler"):
            _ = behind.value


def test_one_that_looks_for_its_own_name_finds_what_it_has(late: Path) -> None:
    late.write_text("import behind\nfound = hasattr(behind, 'later')\nlater = 1\n")
    import behind

    assert (behind.found, behind.later) == (False, 1)
