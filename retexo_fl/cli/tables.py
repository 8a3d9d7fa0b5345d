"""Tables of figures for a terminal of 80 columns or a pipe."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table


def figures(*names: str, left: int = 1) -> Table:
    """Return an empty table whose first ``left`` columns hold names, the others figures."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for place, name in enumerate(names):
        table.add_column(name, justify="left" if place < left else "right", no_wrap=True)
    return table


def show(*items: Table | str) -> None:
    """Print tables and sentences, an empty line between them.

    Sentences are not markup. Outside a terminal nothing is cut to its width.
    """
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = max(console.width, _PIPE_WIDTH)
    for place, item in enumerate(items):
        if place:
            console.print()
        console.print(item)


_PIPE_WIDTH = 400
