"""``retexo datasets``: what can be trained on."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Annotated

import typer

from retexo_fl.cli.help_text import examples
from retexo_fl.cli.options import AsJson
from retexo_fl.cli.sentences import printable, tell_json
from retexo_fl.cli.tables import figures, show
from retexo_fl.units import format_count

_EXAMPLES = examples(
    "retexo datasets --data-dir DIR",
    "retexo run --dataset cora --split published",
    "retexo run --dataset synthetic:nodes=20000,homophily=0.6",
)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("datasets", epilog=_EXAMPLES)(_datasets)


def _datasets(
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of NAME.npz data sets.", metavar="DIR")
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """List the data sets: built in, made from a seed, here as files, and public ones."""
    from retexo_fl.graph.sources.dataset_list import list_datasets

    found = list_datasets(data_dir)
    if as_json:
        tell_json([asdict(info) for info in found])
        return
    table = figures("name", "nodes", "edges", "features", "classes", "train/val/test")
    for place, infos in groupby(found, key=attrgetter("place")):
        table.add_row(place, style="dim")
        for info in infos:
            sizes = map(format_count, (info.nodes, info.edges, info.features, info.classes))
            table.add_row(f"  {printable(info.name)}", *sizes, info.split)
    show(table, _hint(data_dir))


def _hint(data_dir: Path | None) -> str:
    from retexo_fl.graph.sources.named.obtain import cache_folder

    # Of a folder the user knows the name; anything else in it is not for the terminal.
    folder = "DIR" if data_dir is None else printable(str(data_dir))
    kept = printable(str(cache_folder())) if data_dir is None else folder
    return (
        "Train on one: retexo run --dataset NAME; where a published split is listed,\n"
        "--split published uses it. --data-dir DIR adds every NAME.npz in DIR.\n"
        "synthetic: takes parameters, as in synthetic:nodes=20000,homophily=0.6\n"
        "download: fetched and verified on first use, and kept in\n"
        f"  {kept}\n"
        f"by hand: put its source files into the folder NAME of {folder}; `retexo run` names\n"
        "  the missing ones"
    )
