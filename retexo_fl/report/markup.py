"""Pieces of HTML: tables, cards, notes. Text goes in as text and comes out escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from retexo_fl.units import UNKNOWN, format_bytes, format_count, format_number, format_share


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A table cell; ``value`` is set for quantities, which are aligned right and sorted by it."""

    text: str
    value: float | None = None
    quantity: bool = True


def words(text: str) -> Cell:
    """Return a cell of words."""
    return Cell(text=text, quantity=False)


def name(number: int) -> Cell:
    """Return a cell of a number that is a name, such as a client's: sorted, not measured."""
    return Cell(text=str(number), value=number, quantity=False)


def size(value: int | None) -> Cell:
    """Return a cell of bytes."""
    return Cell(text=format_bytes(value), value=value)


def count(value: int | None) -> Cell:
    """Return a cell of a count."""
    return Cell(text=format_count(value), value=value)


def number(value: float | None) -> Cell:
    """Return a cell of a loss or ratio."""
    return Cell(text=format_number(value), value=value)


def share(value: float | None, *, digits: int = 2) -> Cell:
    """Return a cell of a share, as per cent."""
    return Cell(text=format_share(value, digits=digits), value=value)


def table(
    caption: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    sortable: bool = False,
    last_is_total: bool = False,
) -> str:
    """Return a table in a frame that scrolls sideways when it must.

    Args:
        caption: What it holds; read aloud, not shown.
        columns: Heads of the columns.
        rows: Cells, one sequence per row; the first cell of a row is its head.
        sortable: Whether the page's script lets the reader sort it.
        last_is_total: Whether the last row is set off as the sum of the others.
    """
    body = [list(row) for row in rows]
    right = [bool(body) and body[0][index].quantity for index in range(len(columns))]
    head = "".join(
        f'<th scope="col"{_class(is_right)}>{escape(name)}</th>'
        for name, is_right in zip(columns, right, strict=True)
    )
    kinds = " ".join(
        name for name, wanted in (("sortable", sortable), ("total", last_is_total)) if wanted
    )
    lines = "".join(f"<tr>{''.join(_cells(row))}</tr>" for row in body)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f'<table class="{kinds}"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def _cells(row: Sequence[Cell]) -> Iterable[str]:
    for index, cell in enumerate(row):
        tag = 'th scope="row"' if index == 0 else "td"
        value = "" if cell.value is None else f' data-value="{cell.value}"'
        yield f"<{tag}{_class(cell.quantity)}{value}>{_shown(cell.text)}</{tag[:2]}>"


def _shown(text: str) -> str:
    return escape(text) if text != UNKNOWN else '<span class="soft">&ndash;</span>'


def _class(is_right: bool) -> str:
    return ' class="n"' if is_right else ""


def card(name: str, value: str, detail: str) -> str:
    """Return one headline figure."""
    return (
        f'<div class="card"><dt>{escape(name)}</dt>'
        f'<dd><b>{_shown(value)}</b><span class="soft">{escape(detail)}</span></dd></div>'
    )


def section(name: str, heading: str, *content: str) -> str:
    """Return a section of the page; nothing when it has no content."""
    inner = "".join(content)
    if not inner:
        return ""
    return (
        f'<section aria-labelledby="{name}"><h2 id="{name}">{escape(heading)}</h2>{inner}</section>'
    )


def paragraph(text: str, style: str = "soft") -> str:
    """Return a paragraph."""
    return f'<p class="{style}">{escape(text)}</p>'


def folded(summary: str, content: str) -> str:
    """Return content that opens on demand."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"
