"""Print how long the sentences of each page are: `python -m tests.support.reading [PAGE...]`.

A lamp, not a limit: whoever rewrites a page sees where a reader must take breath. Words are those
with a letter in them, outside fenced code. A heading, an item of a list and a table's cell are
sentences of their own; a colon and a semicolon do not end one.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LONG_SENTENCE_WORDS = 35
LONG_CELL_WORDS = 20


def pages() -> list[Path]:
    """Return README and all pages of the documentation, the changelog left out."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def _plain(text: str) -> str:
    """Return text as it is read: links by their words, without marks."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return text.replace("*", "").replace("`", "")


def _blocks(text: str) -> Iterator[tuple[str, bool]]:
    """Yield what stands apart on a page, and whether it is a table's cell."""
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    paragraph: list[str] = []
    for line in [*text.splitlines(), ""]:
        apart = re.match(r"\s*(#|\||[-*] |\d+\. |$)", line)
        if apart and paragraph:
            yield " ".join(paragraph), False
            paragraph = []
        if line.lstrip().startswith("|"):
            for cell in re.split(r"(?<!\\)\|", line.strip().strip("|")):
                yield cell, True
        elif line.strip():
            paragraph.append(re.sub(r"^\s*(#+|[-*]|\d+\.) ", "", line).strip())
        if line.lstrip().startswith("#"):
            yield " ".join(paragraph), False
            paragraph = []


def _words(text: str) -> int:
    return sum(1 for word in text.split() if re.search(r"[A-Za-z]", word))


def lengths(text: str) -> tuple[list[int], list[int]]:
    """Return the words of each sentence of a page, and of each cell of its tables."""
    sentences, cells = [], []
    for block, is_cell in _blocks(text):
        parts = re.split(r"(?<=[.!?])[)\"”]?\s+(?=[^a-z])", _plain(block))
        sentences += [count for count in map(_words, parts) if count]
        if is_cell:
            cells.append(_words(_plain(block)))
    return sentences, cells


def main(names: list[str]) -> None:
    """Print a line for each page, and one for all of them."""
    _show("words", "median", "90 %", "longest", "over 35", "cells over 20", "page")
    every: list[int] = []
    every_cell: list[int] = []
    for page in [Path(name).resolve() for name in names] or pages():
        sentences, cells = lengths(page.read_text(encoding="utf-8"))
        every += sentences
        every_cell += cells
        _show(*_row(sentences, cells), str(page.relative_to(ROOT)))
    _show(*_row(every, every_cell), "all")


def _row(sentences: list[int], cells: list[int]) -> list[str]:
    # A word or two are a heading or a cell, not what takes a reader's breath.
    running = sorted(count for count in sentences if count > 2) or [0]
    numbers = (
        sum(sentences),
        round(statistics.median(running)),
        running[int(0.9 * (len(running) - 1))],
        running[-1],
        sum(count > LONG_SENTENCE_WORDS for count in running),
        sum(count > LONG_CELL_WORDS for count in cells),
    )
    return [str(number) for number in numbers]


def _show(*columns: str) -> None:
    *numbers, name = columns
    sys.stdout.write(" ".join(f"{number:>13}" for number in numbers) + f"  {name}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
