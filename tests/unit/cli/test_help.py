"""What `--help` shows of every command."""

from collections.abc import Iterator

import click
import pytest
import typer
from typer.core import TyperArgument

from retexo_fl.cli import app


def _arguments(command: click.Command) -> Iterator[tuple[click.Command, click.Argument]]:
    """Yield the positional arguments of a command and of all below it."""
    yield from ((command, it) for it in command.params if isinstance(it, click.Argument))
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            below = command.get_command(click.Context(command), name)
            assert below is not None
            yield from _arguments(below)


_ALL = list(_arguments(typer.main.get_command(app)))


@pytest.mark.parametrize(
    ("command", "argument"), _ALL, ids=[f"{it.name} {argument.name}" for it, argument in _ALL]
)
def test_what_a_positional_argument_is_stands_in_the_help(
    command: click.Command, argument: click.Argument, capsys: pytest.CaptureFixture[str]
) -> None:
    command.main(["--help"], standalone_mode=False, prog_name="retexo")
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert isinstance(argument, TyperArgument)
    assert argument.help
    assert argument.help.replace("`", "") in told.replace("`", "")
