"""The command line ``retexo``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final

import click
import typer

from retexo_fl.cli.groups import CommandGroup, with_help
from retexo_fl.cli.help_text import examples
from retexo_fl.cli.outputs import check_output, outlive_readers
from retexo_fl.cli.sentences import complain, usage_sentence
from retexo_fl.cli.signals import stoppable
from retexo_fl.errors import Interrupted, PluginError, RetexoError, TableError
from retexo_fl.version import __version__

if TYPE_CHECKING:
    from retexo_fl.addition import Addition

_HELP = """Train graph neural networks over graphs whose parts must stay with their owners.

A graph is split over clients; each layer is trained after one exchange between neighbours.
"""


#: In the order of `--help`; each is a module of this package, with a function ``add_to``.
_COMMANDS: Final = (
    *("run", "sweep", "plan", "leakage", "predict", "report", "doctor", "datasets"),
    *("features", "partition", "agent", "keys", "fleet"),
)
#: Each is that of the addition of its name.
_ADDED: Final = ("bluetooth",)


class _AllCommands(CommandGroup):
    """The commands, each of which is imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names but those of packages that join one."""
        return [*_COMMANDS, *(name for name in _ADDED if _addition(name).is_here)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a name; None where there is none."""
        return _imported(cmd_name)


@cache
def _imported(name: str) -> click.Command | None:
    if name in _COMMANDS:
        add_to = import_module(f"{__name__}.{name}").add_to
    elif name in _ADDED:
        add_to = _addition(name).module("commands", name).add_to
    else:
        from retexo_fl.plugins import COMMANDS, joined, load_callable

        plugin = joined(COMMANDS, name)
        if plugin is None:
            return None
        add_to = load_callable("command", plugin, "app")
    holder = typer.Typer(rich_markup_mode="rich")
    add_to(holder)
    commands = typer.main.get_group(holder).commands
    if name not in commands:
        raise PluginError(f"command {name!r}: {add_to.__module__} adds no command of this name")
    return with_help(commands[name])


def _addition(room: str) -> Addition:
    from retexo_fl.addition import ADDITIONS

    return next(addition for addition in ADDITIONS if addition.room == room)


app = typer.Typer(
    name="retexo",
    cls=_AllCommands,
    help=_HELP,
    epilog=examples("retexo run --out runs/first", "retexo COMMAND --help"),
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@app.callback(invoke_without_command=True)
def _root(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        typer.echo(f"retexo-fl {__version__}")
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code.

    0: done. 1: a named failure of the run. 2: bad input, nothing was started. 130: interrupted.
    Whether somebody still reads what it prints changes none of them.
    """
    outlive_readers()
    # A user's own `module:attribute` may lie where the command is run.
    if "" not in sys.path:
        sys.path.append("")
    with stoppable():
        code = run_command(sys.argv[1:] if arguments is None else list(arguments))
    sys.exit(code)


def run_command(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; errors are lines on standard error."""
    try:
        code = _command()(args=list(arguments), prog_name="retexo", standalone_mode=False)
        check_output()
    except click.exceptions.NoArgsIsHelpError:
        # Whoever names no command has been shown them all.
        return 2
    except (KeyboardInterrupt, RetexoError, click.ClickException, click.Abort, OSError) as error:
        code, sentences = _verdict(error)
        for sentence in sentences:
            complain(sentence)
    return code if isinstance(code, int) else 0


@cache
def _command() -> click.Command:
    """Return what the options make, once a process: it takes longer than most refusals."""
    return typer.main.get_command(app)


def _verdict(error: BaseException) -> tuple[int, list[str]]:
    """Return the exit code and the lines that an error ends the command with, mostly one."""
    match error:
        case Interrupted():
            return error.exit_code, [str(error)]
        case TableError():
            return error.exit_code, [f"error: {problem}" for problem in error.problems]
        case RetexoError():
            return error.exit_code, [f"error: {error}"]
        case click.ClickException():
            return 2, [f"error: {usage_sentence(error)}"]
        case OSError():
            place = f"{error.filename}: " if error.filename else ""
            return 1, [f"error: {place}{error.strerror or error}"]
        case _:
            return Interrupted.exit_code, ["interrupted"]
