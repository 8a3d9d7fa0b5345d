"""``retexo datasets``: what can be trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from retexo_fl.cli.options import examples
from retexo_fl.cli.sentences import printable
from retexo_fl.cli.tables import figures, show
from retexo_fl.units import format_count


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("datasets", epilog=examples("retexo datasets --data-dir DIR"))(_datasets)


def _datasets(
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of NAME.npz data sets.", metavar="DIR")
    ] = None,
) -> None:
    """List the data sets at hand: the built-in one and every NAME.npz in --data-dir."""
    from retexo_fl.graph import list_datasets

    table = figures("name", "nodes", "edges", "features", "classes", "train/val/test")
    for info in list_datasets(data_dir):
        sizes = map(format_count, (info.nodes, info.edges, info.features, info.classes))
        table.add_row(printable(info.name), *sizes, info.split)
    show(table, _hint(data_dir))


def _hint(data_dir: Path | None) -> str:
    if data_dir is None:
        return (
            "digits comes with the installation; --data-dir DIR adds every NAME.npz in DIR.\n"
            "Train on one: retexo run --data-dir DIR --dataset NAME"
        )
    return (
        f"digits comes with the installation, the others stand in {printable(str(data_dir))}.\n"
        "Where a published split is listed, --split published takes it."
    )
