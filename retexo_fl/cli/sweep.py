"""``retexo sweep``: many trainings, and their results as one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retexo_fl.api.sweeps import TABLE_NAME, SweepRow, sweep_in, sweep_of
from retexo_fl.cli.help_text import examples, styled
from retexo_fl.cli.options import AsJson, Overwrite
from retexo_fl.cli.sentences import complain, printable, tell_json
from retexo_fl.cli.tables import figures, show
from retexo_fl.units import UNKNOWN, counted, format_bytes, format_duration

if TYPE_CHECKING:
    from rich.table import Table

_HELP = """Train many configurations and write their results as one table.

SWEEP.toml has a table `[base]` with keys of all runs, any number of tables `[[run]]` with keys of \
one more, or both; a list stands for one run with each of its values. Called again it goes on: a \
run that has finished is not trained again, one that was interrupted or failed is resumed; with \
`--overwrite` it begins anew. A run that fails does not end the others; the exit code is then 1.
"""
_EXAMPLES = examples(
    "retexo sweep SWEEP.toml --out runs/sweep", "retexo sweep SWEEP.toml --out runs/sweep --jobs 4"
)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("sweep", help=styled(_HELP), epilog=_EXAMPLES)(_sweep)


def _sweep(
    file: Annotated[Path, typer.Argument(help="The runs.", metavar="SWEEP.toml")],
    *,
    out: Annotated[Path, typer.Option(help="Folder of the run directories.", metavar="DIR")],
    jobs: Annotated[int, typer.Option(help="Runs at once.", metavar="N")] = 1,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not say how runs end.")] = False,
    overwrite: Overwrite = False,
) -> None:
    def tell(sentence: str) -> None:
        if not quiet:
            complain(sentence)

    rows = sweep_of(sweep_in(file), out, jobs=jobs, tell=tell, overwrite=overwrite)
    if as_json:
        tell_json(rows.cells())
    else:
        show(_table(rows), *_errors(rows), f"table           {printable(str(out / TABLE_NAME))}")
    if any(row.error for row in rows):
        raise typer.Exit(1)


def _table(rows: Sequence[SweepRow]) -> Table:
    """Show in what runs differ, and how good they are."""
    keys = dict.fromkeys(key for row in rows for key in row.keys)
    differing = [key for key in keys if len({row.keys.get(key) for row in rows}) > 1]
    table = figures("run", *differing, "metric", "validation", "test", "payload", "time")
    for number, row in enumerate(rows, start=1):
        chosen = [printable(str(row.keys.get(key, UNKNOWN))) for key in differing]
        table.add_row(str(number), *chosen, *_figures(row))
    return table


def _figures(row: SweepRow) -> list[str]:
    if row.error:
        return ["failed", *[UNKNOWN] * 4]
    cells = row.cells()
    values = (cells[use] for use in ("validation", "test"))
    return [
        printable(cells["metric"]),
        *(UNKNOWN if value is None else f"{value:.4f}" for value in values),
        format_bytes(cells["payload_bytes"]),
        format_duration(cells["seconds"]),
    ]


def _errors(rows: Sequence[SweepRow]) -> list[str]:
    told = [f"run {n}: {printable(row.error)}" for n, row in enumerate(rows, 1) if row.error]
    return ["\n".join([f"{counted(len(told), 'run')} failed:", *told])] if told else []
