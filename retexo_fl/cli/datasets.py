"""``retexo datasets``: what can be trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from retexo_fl.units import format_count


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("datasets", epilog="Example: `retexo datasets --data-dir DIR`")(_datasets)


def _datasets(
    data_dir: Annotated[Path | None, typer.Option(help="Folder of .npz data sets.")] = None,
) -> None:
    """List the data sets at hand: the built-in one and every NAME.npz in --data-dir."""
    from retexo_fl.graph import list_datasets

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("name", "nodes", "edges", "features", "classes"):
        table.add_column(name, justify="left" if name == "name" else "right", no_wrap=True)
    for name in ("split", "source"):
        table.add_column(name)
    for info in list_datasets(data_dir):
        table.add_row(
            info.name,
            format_count(info.nodes),
            format_count(info.edges),
            format_count(info.features),
            format_count(info.classes),
            info.split,
            info.source,
        )
    Console().print(table)
