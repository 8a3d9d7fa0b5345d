"""The site of docs/: its search finds the page that answers, by the script that a browser runs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.commands import ROOT

pytestmark = pytest.mark.system

_SEARCH = ROOT / "tests" / "support" / "site_search.mjs"
_FOUND_FIRST = {
    "PyG Data": "docs/your-own-graph.html",
    "own graph": "docs/your-own-graph.html",
    "class weights": "docs/goals.html",
    "Raspberry Pi": "docs/edge.html",
    "options": "docs/options.html",
    "privacy": "docs/privacy.html",
    "deployment": "docs/deployment.html",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-q", "--strict", "-d", folder],
        cwd=ROOT,
        check=True,
        timeout=300,
    )
    return folder


def test_search_finds_the_page_that_answers_first(site: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node")
    told = subprocess.run(
        [node, _SEARCH, site, *_FOUND_FIRST], capture_output=True, text=True, check=True, timeout=60
    )
    found = [json.loads(line) for line in told.stdout.splitlines()]
    first = dict(zip(_FOUND_FIRST, (pages[0] for pages in found), strict=True))
    assert first == _FOUND_FIRST


def test_search_weighs_pages_that_there_are() -> None:
    facts = tomllib.loads((ROOT / "docs/site/search.toml").read_text(encoding="utf-8"))
    paths = [*facts["keywords"], *facts["boost"]]
    assert [path for path in paths if not [*ROOT.glob(f"{path}*")]] == []


def test_the_landing_page_has_three_cards_that_lead_to_pages(site: Path) -> None:
    page = (site / "index.html").read_text(encoding="utf-8")
    cards = page.partition('<div class="grid cards">')[2].partition("</div>")[0]
    assert cards.count("<strong>") == 3
    links = re.findall(r'href="([^"#]+)', cards)
    assert {"docs/first-training.html", "docs/three-owners.html", "docs/edge.html"} <= set(links)
    assert all((site / link).is_file() for link in links)
    assert '<link rel="stylesheet" href="site/site.css">' in page


def test_links_to_the_readme_lead_to_its_page(site: Path) -> None:
    assert "Who sees what" in (site / "README.html").read_text(encoding="utf-8")
    pages = [path.read_text(encoding="utf-8") for path in (site / "docs").glob("*.html")]
    assert sum('href="../README.html' in page for page in pages) > 1
