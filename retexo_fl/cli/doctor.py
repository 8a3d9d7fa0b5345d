"""``retexo doctor``: what keeps this machine from training, and what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from retexo_fl.addition import KERNEL_PATH
from retexo_fl.cli.findings import tell_findings
from retexo_fl.cli.help_text import examples, styled
from retexo_fl.cli.options import AsJson
from retexo_fl.errors import ConfigurationError

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

    findings = examine(config, superlink, root_certificates)
    return tell_findings(findings, "this machine cannot train", as_json=as_json)
