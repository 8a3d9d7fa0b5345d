"""Hooks of MkDocs: the site's pages are the repository's, under the paths that they have there.

A link such as ``../sims/results/gns.md`` then leads to the same page on the site as in a view of
the repository's files. A notebook is a page, too, with the outputs that are committed in it.
Nothing is loaded from elsewhere.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_LINK = re.compile(r"\]\(([^)\s#:]+)(?:#[^)]*)?\)")
#: A role of Sphinx in a docstring.
_ROLE = re.compile(r":(?:attr|class|func|meth|mod):(?=<code>)")
#: Where a page is on the site, if not at its path in the repository.
_ELSEWHERE = {"docs/index.md": "index.html", "README.md": "README.html"}
_LANDING = "docs/index.md"
_LOADED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*(?:src|href)=[\"']?(?:https?:)?//[^>]*>")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Read what the search finds first."""
    path = Path(config.docs_dir) / "site/search.toml"
    config.extra["found_first"] = tomllib.loads(path.read_text(encoding="utf-8"))
    return config


class Notebook(File):
    """A notebook, which is a page."""

    def is_documentation_page(self) -> bool:
        """Return True."""
        return True


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the pages of ``docs/``, ``README.md``, and each file that these lead to."""
    docs = Path(config.docs_dir)
    root = docs.parent
    found = [root / "README.md", *sorted(docs.glob("*.md")), *sorted(docs.glob("*/*.ipynb"))]
    for page in found:  # grows meanwhile
        if page.suffix == ".md":
            text = page.read_text(encoding="utf-8")
            linked = ((page.parent / link).resolve() for link in _LINK.findall(text))
            found += [path for path in dict.fromkeys(linked) if _is_new(path, root, found)]
    others = [
        file
        for file in files
        if not file.is_documentation_page() and not file.src_uri.endswith(".ipynb")
    ]
    return Files([*others, *(_file(path.relative_to(root), config) for path in found)])


def on_page_read_source(page: Page, **_: object) -> str | None:
    """Return a notebook as Markdown; None of other pages, which are read as they are."""
    if not isinstance(page.file, Notebook):
        return None
    cells = json.loads(page.file.content_string)["cells"]
    note = f"*This page is the notebook `{page.file.src_uri}` of the repository.*"
    return "\n\n".join([*(_markdown(cell) for cell in cells), note])


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Return the page as it is, once the search knows its weight and its words."""
    name, facts = page.file.src_uri, config.extra["found_first"]
    begun = max((start for start in facts["boost"] if name.startswith(start)), key=len)
    page.meta["search"] = {"boost": facts["boost"][begun]}
    page.meta["tags"] = facts["keywords"].get(name, [])
    if name == _LANDING:
        page.meta["hide"] = ["navigation", "toc"]
    return markdown


def on_page_content(html: str, **_: object) -> str:
    """Return a page's content without roles."""
    return _ROLE.sub("", html)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Return a page as it is; raise PluginError if it loads something from another host."""
    if loaded := _LOADED.search(output):
        raise PluginError(f"{page.file.src_uri}: loaded from elsewhere: {loaded[0]}")
    return output


def _is_new(path: Path, root: Path, found: list[Path]) -> bool:
    return path.is_file() and path.is_relative_to(root) and path not in found


def _file(path: Path, config: MkDocsConfig) -> File:
    root = str(Path(config.docs_dir).parent)
    kind = Notebook if path.suffix == ".ipynb" else File
    name = path.as_posix()
    file = kind(name, root, config.site_dir, config.use_directory_urls)
    if name in _ELSEWHERE:
        file.dest_uri = _ELSEWHERE[name]
        file.name = Path(file.dest_uri).stem
    return file


def _markdown(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    text = "".join("".join(output.get("text", ())) for output in cell["outputs"]).strip("\n")
    told = f"``` {{.text .output}}\n{text}\n```" if text else ""
    return "\n\n".join([f"```python\n{source}\n```", told, *map(_figure, cell["outputs"])])


def _figure(output: dict[str, Any]) -> str:
    picture = "".join(output.get("data", {}).get("image/png", ())).strip()
    return f'<img alt="Figure" src="data:image/png;base64,{picture}">' if picture else ""
