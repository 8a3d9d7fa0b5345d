"""What is shown of results in an interpreter and in a notebook, which asks for HTML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from retexo_fl.report.markup import Cell, paragraph, table
from retexo_fl.units import UNKNOWN, counted, format_bytes, format_count

#: Rows and characters that are shown of more.
_MOST_ROWS: Final = 20
_MOST_CHARACTERS: Final = 60


class PlanFacts(dict[str, Any]):
    """The facts of a plan: a dict, with a short form to be shown."""

    def __repr__(self) -> str:
        clients = counted(len(self["clients"]), "client")
        return f"<plan: {clients}, algorithm {self._heading}; a dict of {', '.join(self)}>"

    @property
    def _heading(self) -> str:
        return f"{self['algorithm']}, profile {self['profile']['name']}"

    def _repr_html_(self) -> str:
        profiles = [
            {
                "profile": name,
                "rounds": facts["rounds"],
                "payload, at most": format_bytes(facts["payload_at_most"]),
                "messages": facts["messages"],
            }
            for name, facts in self.get("profiles", {}).items()
            if facts is not None
        ]
        chosen = paragraph(f"Algorithm {self._heading}")
        shown = chosen + (cells_table("What profiles would move", profiles) if profiles else "")
        return shown + cells_table("Parts of the clients", self["clients"])


def cells_table(caption: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return HTML of rows of cells by the names of their columns: the first of many."""
    columns = [*dict.fromkeys(name for row in rows for name in row)]
    body = [[_cell(row.get(name)) for name in columns] for row in rows[:_MOST_ROWS]]
    left = len(rows) - len(body)
    more = paragraph(f"{format_count(left)} more of {counted(len(rows), 'row')}") if left else ""
    return table(caption, columns, body) + more


def pairs_table(caption: str, pairs: Iterable[tuple[str, str]]) -> str:
    """Return HTML of names and their texts."""
    rows = [[Cell(text=name, quantity=False), Cell(text=text)] for name, text in pairs]
    return table(caption, ["", caption], rows)


def _cell(value: Any) -> Cell:
    if value is None:
        return Cell(text=UNKNOWN)
    if isinstance(value, float):
        return Cell(text=f"{value:.5g}")
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return Cell(text=_cut(str(value)), quantity=is_number)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"
