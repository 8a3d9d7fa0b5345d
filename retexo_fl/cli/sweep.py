"""``retexo sweep``: many trainings, and their results as one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retexo_fl.api.sweep_rows import SweepRow, SweepRows
from retexo_fl.api.sweeps import TABLE_NAME, sweep_in, sweep_of
from retexo_fl.cli.help_text import examples
from retexo_fl.cli.options import PROFILE_OPTION, AsJson, Overwrite, config_command
from retexo_fl.cli.sentences import complain, printable, tell_json
from retexo_fl.cli.tables import figures, show
from retexo_fl.config import PLACE_KEYS, Scalar, panels
from retexo_fl.errors import ConfigurationError
from retexo_fl.units import UNKNOWN, counted, format_bytes, format_duration

if TYPE_CHECKING:
    from rich.table import Table

_HELP = """Train many configurations and write their results as one table.

SWEEP.toml has a table `[base]` with keys of all runs, any number of tables `[[run]]` with keys of \
one more, or both; a list means one run with each of its values. Options are keys of all \
runs, which win over the file and can do without it; one that is given several times means \
one run with each of its values, `--split published:all` for one with each split that the graph \
brings. Of runs that differ in such a split and the seed alone the mean is printed, with its \
standard deviation. Called again it goes on: a \
run that has finished is not trained again, one that was interrupted or failed is resumed; with \
`--overwrite` it begins anew. A run that fails does not end the others; the exit code is then 1.
"""
_EXAMPLES = examples(
    "retexo sweep SWEEP.toml --out runs/sweep",
    "retexo sweep SWEEP.toml --out runs/sweep --jobs 4",
    "retexo sweep --dataset tolokers --split published:all --out runs/tolokers",
    "retexo sweep --nodes accounts.csv --edges transfers.csv --features auto --label-column fraud "
    "--label-column dormant --out runs/targets",
)
_PANELS = {
    panel: kept
    for panel, keys in panels().items()
    if (kept := [key for key in keys if key not in PLACE_KEYS])
}


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    register = config_command(
        app, "sweep", _PANELS, help_text=_HELP, epilog=_EXAMPLES, repeated=True
    )
    register(_sweep)


def _sweep(  # noqa: PLR0913 - each an option
    values: Mapping[str, object],
    *,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="File that describes the runs.", metavar="SWEEP.toml", show_default=False
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the run directories.", metavar="DIR")],
    jobs: Annotated[int, typer.Option(help="Runs at once.", metavar="N")] = 1,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not print how each run ends.")] = False,
    overwrite: Overwrite = False,
    profile: Annotated[list[str] | None, PROFILE_OPTION] = None,
) -> None:
    def tell(sentence: str) -> None:
        if not quiet:
            complain(sentence)

    chosen = {**values, **({"profile": profile} if profile else {})}
    if file is None and not chosen:
        raise ConfigurationError("SWEEP.toml: missing; expected a file of runs, or keys as options")
    rows = sweep_of(sweep_in(file, chosen), out, jobs=jobs, tell=tell, overwrite=overwrite)
    if as_json:
        tell_json(rows.cells())
    else:
        table = f"table           {printable(str(out / TABLE_NAME))}"
        show(_table(rows), *_means(rows), *_errors(rows), table)
    if any(row.error for row in rows):
        raise typer.Exit(1)


def _table(rows: Sequence[SweepRow]) -> Table:
    """Show in what runs differ, and how good they are."""
    differing = _differing([row.keys for row in rows])
    table = figures("run", *differing, "metric", "validation", "test", "payload", "time")
    for number, row in enumerate(rows, start=1):
        chosen = [printable(str(row.keys.get(key, UNKNOWN))) for key in differing]
        table.add_row(str(number), *chosen, *_figures(row))
    return table


def _differing(runs: Sequence[Mapping[str, Scalar]]) -> list[str]:
    keys = dict.fromkeys(key for run in runs for key in run)
    return [key for key in keys if len({run.get(key) for run in runs}) > 1]


def _means(rows: SweepRows) -> list[Table | str]:
    """Show means over splits and seeds, where there is one of several runs."""
    means = rows.means()
    if all(mean.runs < 2 for mean in means):
        return []
    differing = _differing([mean.keys for mean in means])
    table = figures("mean of", *differing, "metric", "validation", "test")
    for mean in means:
        missing = f", without {mean.failed} that failed" if mean.failed else ""
        over = [
            counted(number, word)
            for number, word in ((mean.splits, "split"), (mean.seeds, "seed"))
            if number > 1
        ]
        told = counted(mean.runs, "run") + f" ({' x '.join(over)}{missing})" * bool(over)
        chosen = [printable(str(mean.keys.get(key, UNKNOWN))) for key in differing]
        shown = (UNKNOWN if one is None else str(one) for one in (mean.validation, mean.test))
        table.add_row(told, *chosen, printable(mean.metric), *shown)
    return [table, "± is the standard deviation of a sample (n - 1)."]


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
