"""``retexo partition make | local | check``: parts on disk, one folder for each client."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from retexo_fl.api.parts import cut
from retexo_fl.api.settling import Asked
from retexo_fl.cli import partition_local
from retexo_fl.cli.groups import CommandGroup
from retexo_fl.cli.help_text import examples
from retexo_fl.cli.options import Overwrite, Values, config_command
from retexo_fl.cli.sentences import tell
from retexo_fl.cli.tables import figures, show
from retexo_fl.config import panels
from retexo_fl.units import format_count, format_counted

#: Keys of graphs that do not say how one is cut: parts that there are, scaling by a training.
_OF_TRAINING = frozenset({"partitions", "feature-normalisation"})
_PANELS = {"Graph": (*(key for key in panels()["Graph"] if key not in _OF_TRAINING), "seed")}
_MAKE_HELP = """Cut a graph into parts, one folder for each client.

Train on them with `retexo run --partitions DIR`. Also writes peers.toml, which clients need to \
make such parts themselves, with `retexo partition local`.
"""
_MAKE_EXAMPLES = examples(
    "retexo partition make --clients 5 --partitioner louvain --out parts",
    "retexo partition make --nodes nodes.csv --edges edges.csv --partitioner attribute:site "
    "--out parts",
    "retexo partition make --nodes accounts.csv --edges transfers.csv --features auto "
    "--key-column account --label-column fraud --out parts",
    "retexo run --partitions parts",
)
_CHECK_EXAMPLES = examples("retexo partition check parts/part-*")


def add_to(app: typer.Typer) -> None:
    """Register the commands, as a group."""
    group = typer.Typer(
        cls=CommandGroup,
        no_args_is_help=True,
        help=(
            "Make parts, one per client, from a whole graph or from a client's tables; check them."
        ),
        rich_markup_mode="rich",
        epilog=_MAKE_EXAMPLES,
    )
    config_command(group, "make", _PANELS, help_text=_MAKE_HELP, epilog=_MAKE_EXAMPLES)(_make)
    partition_local.add_to(group)
    group.command("check", epilog=_CHECK_EXAMPLES)(_check)
    app.add_typer(group, name="partition")


def _make(
    values: Values,
    *,
    out: Annotated[Path, typer.Option(help="New folder for the parts.", metavar="DIR")],
    unlabelled: Annotated[
        int | None,
        typer.Option(
            help=(
                "Make unlabelled parts to predict on, for a model with this many classes (or "
                "labels; 1 for numbers and links)."
            ),
            min=1,
            metavar="N",
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file of keys, as of `retexo run`.", metavar="FILE")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    asked = Asked(values=values, file=config)
    parts = cut(asked, out, unlabelled=unlabelled, overwrite=overwrite)
    nodes = sum(part.num_inner for part in parts)
    boundary = sum(part.num_boundary for part in parts)
    tell(
        f"{format_counted(len(parts), 'part')} with {format_counted(nodes, 'inner node')} and "
        f"{format_counted(boundary, 'boundary node')} in {out}"
    )


def _check(
    directories: Annotated[
        list[Path], typer.Argument(help="Folders of all parts of one graph.", metavar="DIR...")
    ],
) -> None:
    """Verify every file of every part, and that the parts agree with each other."""
    from retexo_fl.graph.parts.agreement import check_partitions

    report = check_partitions(directories)
    table = figures(
        *("client", "nodes", "boundary", "sent", "inner edges", "cut edges", "peers"),
        "train/val/test",
    )
    for part in report.parts:
        counts = (part.nodes, part.boundary, part.sent, part.inner_edges, part.cut_edges)
        table.add_row(
            str(part.client),
            *map(format_count, (*counts, part.peers)),
            f"{part.train}/{part.val}/{part.test}",
        )
    agree = "agrees" if len(report.parts) == 1 else "agree"
    graph = (
        f"{format_counted(len(report.parts), 'part')} {agree}: "
        f"{format_counted(report.num_nodes, 'node')} and "
        f"{format_counted(report.num_edges, 'edge')},\n"
        f"{format_count(report.num_cut_edges)} of them between clients."
    )
    show(table, graph)
