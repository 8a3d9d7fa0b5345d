"""What README tells a newcomer to type first is what CI does, to the letter."""

from __future__ import annotations

import re

import pytest

from tests.support.commands import ROOT, readme_blocks

HEADLINE_BLOCKS = 2


def test_readme_first_commands_are_lines_of_ci() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    lines = [line.strip() for line in script.splitlines()]
    commands = readme_blocks()[:HEADLINE_BLOCKS]
    assert "retexo run" in commands[0]
    assert commands[1].endswith("pytest")
    assert [command for command in commands if command not in lines] == []


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_lead_to_files(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_glossary_has_thirty_words_at_most() -> None:
    rows = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    words = [row for row in rows if row.startswith("| ") and not row.startswith("| word |")]
    assert 15 < len(words) <= 30
