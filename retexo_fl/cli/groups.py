"""A group of commands, and the help of their arguments."""

from __future__ import annotations

import click
from typer.core import TyperArgument, TyperGroup
from typer.utils import get_params_from_function

from retexo_fl.cli.sentences import unknown


def with_help(command: click.Command) -> click.Command:
    """Return a command whose arguments, and those of its commands, have the help they declare.

    Click 8.5 forgets it: its own constructor runs after Typer 0.20, the newest that Flower takes,
    has set it.
    """
    if isinstance(command, click.Group):
        for one in command.commands.values():
            with_help(one)
    silent = [it for it in command.params if isinstance(it, TyperArgument) and it.help is None]
    if silent and command.callback is not None:
        declared = get_params_from_function(command.callback)
        for argument in silent:
            argument.help = getattr(declared[str(argument.name)].default, "help", None)
    return command


class CommandGroup(TyperGroup):
    """A group that names the nearest command instead of an unknown one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that ``args`` begin with."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise click.UsageError(unknown("command", args[0], self.list_commands(ctx)), ctx)
        return super().resolve_command(ctx, args)
