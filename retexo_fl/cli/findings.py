"""What an examination found, as lines with marks or as JSON; and the exit code that follows."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import typer

from retexo_fl.cli.sentences import printable, tell_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.table import Table

    from retexo_fl.doctor.finding import Finding

_MARKS: Final = {"good": "✓", "absent": "-", "doubtful": "!", "bad": "✗"}
_THING_WIDTH: Final = 14
_PIPE_WIDTH: Final = 400
_STYLES: Final = {"good": "green", "absent": "dim", "doubtful": "yellow", "bad": "bold red"}


def tell_findings(found: Iterable[Finding], failed: str, *, as_json: bool) -> int:
    """Print findings as they come; return the exit code of the command, 1 if one is bad.

    Args:
        found: In the order of looking.
        failed: What a bad one means.
        as_json: All together, at the end.
    """
    from retexo_fl.doctor.finding import Verdict, worst

    findings = []
    for finding in found:
        findings.append(finding)
        if not as_json:
            _show(finding)
    if as_json:
        facts = [{**asdict(item), "verdict": item.verdict.value} for item in findings]
        tell_json(facts)
    else:
        typer.echo(_conclusion(findings, failed))
    return int(worst(findings) is Verdict.BAD)


def _show(finding: Finding) -> None:
    """Print a finding at once: the next one may take seconds."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        # Nothing is cut or broken where there is no terminal's width.
        console.width = _PIPE_WIDTH
    with console.capture() as shown:
        console.print(_line(finding))
    # A cell of two lines is filled with blanks up to the longer one.
    typer.echo("\n".join(line.rstrip() for line in shown.get().splitlines()))


def _line(finding: Finding) -> Table:
    from rich.table import Table
    from rich.text import Text

    verdict = finding.verdict.value
    line = Table.grid(padding=(0, 1, 0, 0))
    line.add_column()
    line.add_column(min_width=_THING_WIDTH, no_wrap=True)
    line.add_column()
    mark, thing = Text(_MARKS[verdict], _STYLES[verdict]), Text(printable(finding.thing), "bold")
    line.add_row(mark, thing, Text(printable(finding.seen)))
    if finding.advice:
        line.add_row("", "", Text(f"-> {printable(finding.advice)}", _STYLES[verdict]))
    return line


def _conclusion(findings: Sequence[Finding], failed: str) -> str:
    from retexo_fl.doctor.finding import Verdict

    wrong = sum(item.verdict is Verdict.BAD for item in findings)
    doubtful = sum(item.verdict is Verdict.DOUBTFUL for item in findings)
    if wrong:
        return f"\n{wrong} of {len(findings)} checks failed: {failed}."
    warned = f"; {doubtful} with a warning" if doubtful else ""
    return f"\nNo check failed{warned}."
