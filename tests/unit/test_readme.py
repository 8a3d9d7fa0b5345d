"""What README tells a newcomer to type first is what CI does; pages name what there is."""

from __future__ import annotations

import json
import re

import pytest

import retexo_fl
from retexo_fl import errors
from sims.headline import RESULTS, picture
from tests.support.commands import ROOT, readme_blocks

HEADLINE_BLOCKS = 2


def test_readme_first_commands_are_lines_of_ci_in_their_order() -> None:
    text = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    blocks = readme_blocks()[:HEADLINE_BLOCKS]
    assert "retexo run" in blocks[0]
    assert blocks[1].endswith("pytest")
    # Between those of one block CI does something else, too.
    lines = iter([step for line in text.splitlines() for step in line.strip().split(" && ")])
    missing = [step for block in blocks for step in block.split(" && ") if step not in lines]
    assert missing == []


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_lead_to_files(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_api_reference_has_every_public_name() -> None:
    pages = sorted((ROOT / "docs" / "api").glob("*.md"))
    told = {
        name: page.stem
        for page in pages
        for name in re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.M)
    }
    public = {name for name in retexo_fl.__all__ if not name.startswith("_")}
    listed = {name.rpartition(".")[2] for name in told}
    assert public - listed - set(vars(errors)) == set()
    # The overview leads to each of them.
    overview = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert dict(map(reversed, re.findall(r"\]\(api/([\w-]+)\.md#([\w.]+)\)", overview))) == told


def test_glossary_has_thirty_words_at_most() -> None:
    rows = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    words = [row for row in rows if row.startswith("| ") and not row.startswith("| word |")]
    assert 15 < len(words) <= 30


def test_readme_is_120_lines_at_most_and_trains_in_five_lines_of_shell() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
    assert len(readme_blocks()[HEADLINE_BLOCKS].splitlines()) == 5


def test_readmes_picture_is_drawn_from_the_written_result() -> None:
    result = json.loads((RESULTS / "rivals.json").read_text(encoding="utf-8"))
    assert (RESULTS / "headline.svg").read_text(encoding="utf-8") == picture(result)
