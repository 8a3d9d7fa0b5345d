"""Primitives of the charts: one drawing, texts, rules. Colours come from the page's style."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

_CHARACTER_PX: Final = 6.7  # mean width of a character at the charts' 12.5 px


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Width and height of one drawing, in pixels at its natural size."""

    width: int
    height: int


def both_sizes(draw: Callable[[Size, str], str], wide: Size, narrow: Size) -> str:
    """Return a drawing for wide screens and one for phones; the style shows one of them.

    Args:
        draw: Called with a size and a suffix for ids.
        wide: Natural size on wide screens and on paper.
        narrow: Natural size on phones.
    """
    return (
        f'<div class="wide" style="max-width:{wide.width}px">{draw(wide, "-wide")}</div>'
        f'<div class="narrow">{draw(narrow, "-narrow")}</div>'
    )


def drawing(name: str, title: str, description: str, size: Size, parts: Sequence[str]) -> str:
    """Return one ``svg`` element that names and describes itself.

    Args:
        name: Unique on the page.
        title: What it shows.
        description: What is to be seen in it.
        size: Natural size.
        parts: Its elements, as markup.
    """
    return (
        f'<svg class="chart" viewBox="0 0 {size.width} {size.height}" role="img" '
        f'aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-desc">{escape(description)}</desc>{"".join(parts)}</svg>'
    )


def text_width(content: str) -> float:
    """Return the approximate width of a text, in pixels."""
    return len(content) * _CHARACTER_PX


def text(x: float, y: float, content: str, *, anchor: str = "start", style: str = "tick") -> str:
    """Return a text on the base line ``y``."""
    return (
        f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f"{escape(content)}</text>"
    )


def rule(x1: float, y1: float, x2: float, y2: float, *, style: str = "grid") -> str:
    """Return a straight line."""
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
