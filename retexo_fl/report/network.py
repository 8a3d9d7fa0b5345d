"""The section and the figure of a modelled network; nothing here was measured."""

from __future__ import annotations

from typing import Final

from retexo_fl.report import markup
from retexo_fl.report.read import RunRecord
from retexo_fl.run_log.result import Network
from retexo_fl.units import UNKNOWN, format_duration, format_share

_PHASES: Final = {
    "hello": "greeting",
    "exchange": "exchanges",
    "train": "rounds",
    "evaluate": "validation and test",
}


def network_card(run: RunRecord) -> tuple[str, str, str] | None:
    """Return the figure of the modelled network; None where none was modelled."""
    network = run.result.network if run.result else None
    if network is None:
        return None
    between_s = network.between_clients_s.get("total", 0.0)
    share = format_share(between_s / network.seconds if network.seconds else 0.0, digits=0)
    return "Network (modelled)", format_duration(network.seconds), f"between clients {share}"


def network_section(run: RunRecord) -> str:
    """Return modelled seconds by phase, and the links that sent longest."""
    result = run.result
    if result is None or result.network is None:
        return ""
    attempt = " Only the last attempt is counted." if result.attempts > 1 else ""
    return markup.section(
        "network",
        "Network (modelled)",
        markup.paragraph(
            "Modelled, not measured: seconds of the server's virtual clock on the configured "
            "links, without computing. Between clients: waiting for blocks; the rest: messages of "
            f"the server.{attempt}"
        ),
        _phases(result.network),
        _lines(result.network),
        _busiest(result.network),
    )


def _phases(network: Network) -> str:
    rows = [
        [
            markup.words(_PHASES.get(name, name)),
            _duration(seconds),
            markup.share(seconds / network.seconds if network.seconds else None),
            _duration(network.between_clients_s.get(name)),
        ]
        for name, seconds in (*network.phases.items(), ("total", network.seconds))
    ]
    columns = ("phase", "network", "share of network", "between clients")
    return markup.table("Modelled network time by phase", columns, rows, last_is_total=True)


def _lines(network: Network) -> str:
    rows = [
        [
            markup.words(name),
            _rate(line.rate_bit_s),
            markup.Cell(text=f"{1000 * line.delay_s:.4g} ms", value=line.delay_s),
            markup.share(line.loss),
        ]
        for name, line in network.lines.items()
    ]
    columns = ("links", "rate", "delay one way", "packets lost")
    return markup.table("Links as configured", columns, rows)


def _rate(rate_bit_s: float | None) -> markup.Cell:
    if rate_bit_s is None:
        return markup.Cell(text="no limit")
    for size, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if rate_bit_s >= size:
            return markup.Cell(text=f"{rate_bit_s / size:.4g} {unit}", value=rate_bit_s)
    return markup.Cell(text=f"{rate_bit_s:.4g} bit/s", value=rate_bit_s)


def _busiest(network: Network) -> str:
    rows = [
        [
            markup.words(f"{_end(lane.sender)} to {_end(lane.receiver)}"),
            markup.count(lane.messages),
            markup.size(lane.size_bytes),
            markup.size(lane.sent_bytes),
            _duration(lane.busy_s),
        ]
        for lane in network.busiest
    ]
    columns = ("busiest links", "messages", "bytes", "with re-sends", "sending")
    return markup.table("Busiest links", columns, rows)


def _end(name: object) -> str:
    return "server" if name == "server" else f"client {name}"


def _duration(seconds: float | None) -> markup.Cell:
    if seconds is None:
        return markup.Cell(text=UNKNOWN)
    return markup.Cell(text=format_duration(seconds), value=seconds)
