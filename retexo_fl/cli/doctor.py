"""``retexo doctor``: what keeps this machine from training, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from retexo_fl.addition import KERNEL_PATH
from retexo_fl.cli.help_text import examples, styled
from retexo_fl.cli.options import AsJson
from retexo_fl.cli.sentences import printable, tell_json
from retexo_fl.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from retexo_fl.doctor.finding import Finding

_HELP = """Check this machine for whatever would stop it from training.

Checks Python and packages, the clock and the connection to the SuperLink; with `--config`, also \
a client's part, disk, keys, roster, agent, ports and the connection to each peer. Each problem \
comes with its remedy. Exit code 1 if there is one.

With `--audit`: compares the bytes that a running agent counts for each peer with those that the \
interfaces carry (as root; Ctrl-C ends it early). Exit code 1 if they differ by more than 0.1 %.
"""
_EXAMPLES = examples(
    "retexo doctor",
    "retexo doctor --config agent.toml --root-certificates ca.crt",
    "retexo doctor --superlink HOST:8000 --root-certificates ca.crt",
    "retexo doctor --audit agent.toml --seconds 60",
)
_MARKS: Final = {"good": "✓", "absent": "-", "doubtful": "!", "bad": "✗"}
_THING_WIDTH: Final = 14
_PIPE_WIDTH: Final = 400
_STYLES: Final = {"good": "green", "absent": "dim", "doubtful": "yellow", "bad": "bold red"}


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("doctor", help=styled(_HELP), epilog=_EXAMPLES)(_doctor)


def _doctor(
    *,
    config: Annotated[
        Path | None, typer.Option(help="A client's agent.toml.", metavar="FILE")
    ] = None,
    superlink: Annotated[
        str, typer.Option(help="Address of the SuperLink.", metavar="HOST:PORT")
    ] = "",
    root_certificates: Annotated[
        Path | None, typer.Option(help="Certificate of the server's CA.", metavar="FILE")
    ] = None,
    audit: Annotated[
        Path | None, typer.Option(help="agent.toml of the agent to audit.", metavar="FILE")
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long to audit.")] = 30.0,
    as_json: AsJson = False,
) -> int:
    if audit is not None:
        if config is not None or superlink or root_certificates is not None:
            raise ConfigurationError("--audit: expected --seconds and --json at most with it")
        command = KERNEL_PATH.module("audit.command", "--audit")
        code: int = command.run_audit(audit, seconds, as_json=as_json)
        return code
    from retexo_fl.doctor.examination import examine
    from retexo_fl.doctor.finding import Verdict, worst

    findings = []
    for finding in examine(config, superlink, root_certificates):
        findings.append(finding)
        if not as_json:
            _show(finding)
    if as_json:
        facts = [{**asdict(item), "verdict": item.verdict.value} for item in findings]
        tell_json(facts)
    else:
        typer.echo(_conclusion(findings))
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


def _conclusion(findings: Sequence[Finding]) -> str:
    from retexo_fl.doctor.finding import Verdict

    wrong = sum(item.verdict is Verdict.BAD for item in findings)
    doubtful = sum(item.verdict is Verdict.DOUBTFUL for item in findings)
    if wrong:
        return f"\n{wrong} of {len(findings)} checks failed: this machine cannot train."
    warned = f"; {doubtful} with a warning" if doubtful else ""
    return f"\nNo check failed{warned}."
