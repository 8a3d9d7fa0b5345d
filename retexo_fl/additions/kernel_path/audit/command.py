"""``retexo doctor --audit``: what an agent counted and what its interfaces carried, as a table."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from retexo_fl.additions.kernel_path.audit.audit import audit
from retexo_fl.additions.kernel_path.audit.comparison import Audit, AuditLine, Count
from retexo_fl.cli.tables import figures, show
from retexo_fl.errors import ConfigurationError
from retexo_fl.units import UNKNOWN, format_count, format_duration

if TYPE_CHECKING:
    from rich.table import Table

_LONGEST_S: Final = 86_400.0
_MOST_CLIENTS: Final = 6


def run_audit(config: Path, seconds: float, *, as_json: bool) -> int:
    """Audit for a while, print what was found, and return the exit code.

    Raises:
        ConfigurationError: ``seconds`` is out of range, or the configuration cannot be used.
    """
    if not (math.isfinite(seconds) and 0 < seconds <= _LONGEST_S):
        raise ConfigurationError(f"--seconds: {seconds}; expected more than 0, at most a day")
    found = audit(config, seconds)
    if as_json:
        typer.echo(json.dumps(_facts(found), indent=2))
    else:
        show(_table(found), *_sentences(found))
    return int(not found.agrees)


def _facts(found: Audit) -> dict[str, Any]:
    facts = asdict(found)
    for entry, line in zip(facts["lines"], found.lines, strict=True):
        entry |= {"sent": _count_facts(line.sent), "received": _count_facts(line.received)}
    if found.datagrams is not None:
        facts["datagrams"] = {
            name: _count_facts(count)
            for name, count in zip(("sent", "received"), found.datagrams, strict=True)
        }
    return {**facts, "agrees": found.agrees}


def _count_facts(count: Count) -> dict[str, Any]:
    return {**asdict(count), "difference": count.difference, "agrees": count.agrees}


def _table(found: Audit) -> Table:
    table = figures(
        *("peers", "addresses", "what", "ledger", "interface", "difference", "share"), left=3
    )
    for line in found.lines:
        for way, count in (("sent", line.sent), ("received", line.received)):
            names = (_clients(line), ", ".join(line.addresses) or "others")
            what = f"{line.protocol} bytes {way}"
            table.add_row(*(names if way == "sent" else ("", "")), what, *_figures(count))
    for way, count in zip(("sent", "received"), found.datagrams or (), strict=False):
        names = ("all", "") if way == "sent" else ("", "")
        table.add_row(*names, f"udp packets {way}", *_figures(count))
    return table


def _clients(line: AuditLine) -> str:
    shown = [str(client) for client in line.clients[:_MOST_CLIENTS]]
    rest = len(line.clients) - len(shown)
    return ", ".join([*shown, *([f"{rest} more"] if rest else [])]) or UNKNOWN


def _figures(count: Count) -> tuple[str, str, str, str]:
    interface = format_count(count.interface)
    if count.ledger is None or count.difference is None:
        return UNKNOWN, interface, UNKNOWN, "not counted"
    most = max(count.ledger, count.interface)
    share = f"{100 * abs(count.difference) / most:.3f} %" if most else "0.000 %"
    # A few bytes of a silent peer are a large share of nothing much: they agree all the same.
    verdict = "" if count.agrees else " !"
    return format_count(count.ledger), interface, f"{count.difference:+d}", f"{share}{verdict}"


def _sentences(found: Audit) -> list[str]:
    where = ", ".join(found.interfaces)
    verdict = "agrees with" if found.agrees else "differs from"
    said = [
        f"The ledger {verdict} what {where} carried in {format_duration(found.seconds)} "
        "(bytes are those of IP packets)."
    ]
    if found.with_xdp:
        said.append(
            f"On {', '.join(found.with_xdp)} an XDP program takes datagrams before they are "
            "counted: these, and its replies, are in neither count."
        )
    return said
