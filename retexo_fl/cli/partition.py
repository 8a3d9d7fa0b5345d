"""``retexo partition make | check``: parts on disk, one folder for each client."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from retexo_fl.cli.options import GRAPH_KEYS, Values, config_command
from retexo_fl.config import make_config
from retexo_fl.units import format_count

_MAKE_HELP = "Cut a graph into parts, one folder for each client, for `retexo run --partitions`."
_MAKE_EXAMPLES = "Example: `retexo partition make --clients 5 --partitioner louvain --out parts`"


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    group = typer.Typer(no_args_is_help=True, help="Cut graphs into parts, and check parts.")
    config_command(group, "make", GRAPH_KEYS, help_text=_MAKE_HELP, epilog=_MAKE_EXAMPLES)(_make)
    group.command("check", epilog="Example: `retexo partition check parts/part-*`")(_check)
    app.add_typer(group, name="partition")


def _make(
    values: Values,
    *,
    out: Annotated[Path, typer.Option(help="New folder for the parts.")],
) -> None:
    from retexo_fl.agent.preparation import make_parts
    from retexo_fl.graph import write_partitions

    parts = make_parts(make_config(values))
    write_partitions(parts, out)
    nodes = sum(part.num_inner for part in parts)
    boundary = sum(part.num_boundary for part in parts)
    typer.echo(
        f"{len(parts)} parts with {format_count(nodes)} inner nodes and "
        f"{format_count(boundary)} boundary nodes in {out}"
    )


def _check(
    directories: Annotated[list[Path], typer.Argument(help="Folders of all parts, part-0 on.")],
) -> None:
    """Verify every file of every part, and that the parts agree with each other."""
    from retexo_fl.graph import check_partitions

    report = check_partitions(directories)
    typer.echo(report.summary())
