"""Words of ``--help`` in the markup that a terminal shows in colours."""

from __future__ import annotations

import re


def examples(*commands: str) -> str:
    """Return the last lines of a command's help; the commands hold no square brackets."""
    lines = [f"[dim]$[/dim] [cyan]{command}[/cyan]" for command in commands]
    return "\n\n".join((f"Example{'s' if len(commands) > 1 else ''}:", *lines))


def styled(text: str) -> str:
    """Return ``text`` as rich markup, with what is in backticks as a command."""
    # Here, since `retexo --version` ends before it is needed.
    from rich.markup import escape

    return re.sub(r"`([^`]+)`", r"[cyan]\1[/cyan]", escape(text))
