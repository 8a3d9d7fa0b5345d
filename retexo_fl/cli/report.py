"""``retexo report``: write a run's report again, also of a run that did not finish."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("report", epilog="Example: `retexo report runs/first`")(_report)


def _report(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
) -> None:
    """Write RUN/report.html, one file that opens without a network."""
    from retexo_fl.report import write_report

    typer.echo(str(write_report(run)))
