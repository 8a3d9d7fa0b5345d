"""A group of commands."""

from __future__ import annotations

import click
from typer.core import TyperGroup

from retexo_fl.cli.sentences import unknown


class CommandGroup(TyperGroup):
    """A group that names the nearest command instead of an unknown one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that ``args`` begin with."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise click.UsageError(unknown("command", args[0], self.list_commands(ctx)), ctx)
        return super().resolve_command(ctx, args)
