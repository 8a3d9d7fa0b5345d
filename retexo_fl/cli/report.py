"""``retexo report``: write a run's report again, also of a run that did not finish."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from retexo_fl.cli.help_text import examples
from retexo_fl.cli.sentences import tell


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("report", epilog=examples("retexo report runs/first"))(_report)


def _report(
    run: Annotated[Path, typer.Argument(help="A run directory, finished or not.", metavar="RUN")],
) -> None:
    """Write RUN/report.html again: one file that opens without a network."""
    from retexo_fl.report import write_report

    tell(str(write_report(run)))
