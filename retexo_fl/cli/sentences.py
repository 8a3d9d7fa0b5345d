"""What is wrong with a command line, in one sentence; and how lines are printed on a terminal."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from contextlib import suppress

import click
import typer


def printable(text: str) -> str:
    """Return ``text`` on one line, without characters that a terminal would act on."""
    line = " ".join(part.strip() for part in text.splitlines() if part.strip())
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


def tell(text: str) -> None:
    """Print the lines of a result to standard output."""
    typer.echo("\n".join(printable(line) for line in text.splitlines()))


def tell_json(value: object) -> None:
    """Print the result of a command with ``--json``: the one thing on standard output."""
    typer.echo(json.dumps(value, indent=2))


def complain(text: str) -> None:
    """Print one line to standard error."""
    # The terminal, or the reader of the pipe, has gone: the line cannot be shown.
    with suppress(OSError):
        typer.echo(f"retexo: {printable(text)}", err=True)


def usage_sentence(error: click.ClickException) -> str:
    """Return what is wrong with a command line: the thing, and what was expected."""
    if isinstance(error, click.NoSuchOption):
        from retexo_fl.config import nearest_key

        known = [] if error.ctx is None else _options(error.ctx.command)
        near = f"--{nearest_key(error.option_name)}"
        return unknown("option", error.option_name, [near] if near in known else known)
    if isinstance(error, click.MissingParameter) and error.param is not None:
        name = error.param.opts[0] if isinstance(error.param, click.Option) else "argument"
        wanted = error.param.make_metavar(error.ctx or click.Context(click.Command(None)))
        return f"{name}: missing; expected {wanted}"
    if isinstance(error, click.BadOptionUsage):
        return f"{error.option_name}: has no value; expected one after it"
    return error.format_message()


def unknown(kind: str, name: str, known: Sequence[str]) -> str:
    """Return a sentence about something that does not exist, with the nearest that does."""
    near = known if len(known) == 1 else difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else "; see --help"
    return f"{name}: unknown {kind}{hint}"


def _options(command: click.Command) -> list[str]:
    return [name for item in command.params if isinstance(item, click.Option) for name in item.opts]
