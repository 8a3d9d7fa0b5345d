"""READMEs of rooms name what there is, and are a screen each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.commands import ROOT

ROOMS = sorted((ROOT / "retexo_fl").rglob("README.md"))
MOST_LINES = 70
#: Class.attribute, module_function(), CONSTANT or ClassName.
_NAME = re.compile(r"_?[A-Za-z]\w*(\.\w+)+|_?[A-Za-z]+_\w+|[A-Z][a-z]+[A-Z]\w*")
_FILE = re.compile(r"[\w./-]+\.(py|md)")


@pytest.fixture(scope="module")
def files() -> frozenset[str]:
    """Paths of all sources and pages, each also by its endings: ``c``, ``b/c``, ``a/b/c``."""
    found = set[str]()
    for top in ("retexo_fl", "tests", "docs", "sims"):
        for path in (ROOT / top).rglob("*.*"):
            parts = path.relative_to(ROOT).parts
            found.update("/".join(parts[start:]) for start in range(len(parts)))
    return frozenset(found)


@pytest.fixture(scope="module")
def words() -> frozenset[str]:
    """All words of all sources."""
    found = set[str]()
    for top in ("retexo_fl", "tests"):
        for path in (ROOT / top).rglob("*.py"):
            found.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    return frozenset(found)


def quoted(page: Path) -> list[str]:
    """Return what stands between backticks, but for blocks of code."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text)


@pytest.mark.parametrize("page", ROOMS, ids=lambda page: page.parent.relative_to(ROOT).as_posix())
def test_what_a_room_names_is_there(
    page: Path, files: frozenset[str], words: frozenset[str]
) -> None:
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []
    named = [item for item in quoted(page) if "NAME" not in item and "*" not in item]
    wanted = [item.removeprefix("../") for item in named if _FILE.fullmatch(item)]
    assert [item for item in wanted if item not in files] == []
    names = [item for item in named if _NAME.fullmatch(item) and not _FILE.fullmatch(item)]
    assert [item for item in names if not words.issuperset(re.findall(r"\w+", item))] == []
    assert len(text.splitlines()) <= MOST_LINES
