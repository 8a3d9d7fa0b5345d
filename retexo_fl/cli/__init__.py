"""The command line ``retexo``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
import typer

from retexo_fl import __version__
from retexo_fl.cli import datasets, partition, plan, report, run
from retexo_fl.errors import RetexoError

app = typer.Typer(
    name="retexo",
    help=(
        "Train graph neural networks over graphs that may not be brought together.\n\n"
        "Start with `retexo run`: it trains on a built-in graph split over five clients and "
        "leaves a report.html."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
run.add_to(app)
plan.add_to(app)
datasets.add_to(app)
partition.add_to(app)
report.add_to(app)


@app.callback(invoke_without_command=True)
def _root(
    version: bool = typer.Option(False, "--version", help="Print the version and end."),
) -> None:
    if version:
        typer.echo(f"retexo-fl {__version__}")
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code.

    0: done. 1: a named failure of the run. 2: bad input, nothing was started. 130: interrupted.
    """
    sys.exit(run_command(sys.argv[1:] if arguments is None else list(arguments)))


def run_command(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; an error is one line on standard error."""
    try:
        code = app(args=list(arguments), prog_name="retexo", standalone_mode=False)
    except RetexoError as error:
        _complain(str(error))
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as shown:
        typer.echo(shown.format_message())
        return 2
    except click.ClickException as error:
        _complain(" ".join(error.format_message().split()))
        return 2
    except (KeyboardInterrupt, click.Abort):
        _complain("interrupted")
        return 130
    return code if isinstance(code, int) else 0


def _complain(sentence: str) -> None:
    typer.echo(f"retexo: error: {sentence}", err=True)
