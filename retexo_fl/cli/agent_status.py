"""An agent's status as tables for a terminal of 80 columns or more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from retexo_fl.cli.sentences import printable
from retexo_fl.cli.tables import figures, show
from retexo_fl.errors import AgentUnreachable
from retexo_fl.units import UNKNOWN, format_bytes, format_count, format_counted, format_duration

if TYPE_CHECKING:
    from retexo_fl.agent.question_log import Answered, QuestionLog

#: Peers that a terminal shows in a line each; the others are summed up.
_MOST_PEERS: Final = 40
_WATCH_EVERY_S: Final = 2.0

Facts = Mapping[str, Any]


def show_status(facts: Facts) -> None:
    """Print what an agent reported about itself."""
    show(*_items(facts))


def watch_status(ask: Callable[[], Facts]) -> None:
    """Show what an agent reports about itself, again and again until Ctrl-C.

    One that is away is asked again. The terminal is then as it was before.

    Args:
        ask: Returns it.

    Raises:
        RetexoError: The agent does not answer at first.
    """
    shown = _screen(_items(ask()))
    with Live(shown, auto_refresh=False, screen=True) as live, suppress(KeyboardInterrupt):
        while True:
            live.refresh()
            time.sleep(_WATCH_EVERY_S)
            try:
                live.update(_screen(_items(ask())))
            except AgentUnreachable as error:
                live.update(_screen([printable(str(error))]))


def _screen(items: Sequence[Table | str]) -> Group:
    """Return what a terminal shows, with empty lines as :func:`.show` has them."""
    head = f"{time.strftime('%H:%M:%S')}, every {_WATCH_EVERY_S:g} s until Ctrl-C"
    lines: list[Table | Text] = [Text(head, style="dim")]
    for item in items:
        lines += [Text(), Text(item) if isinstance(item, str) else item]
    return Group(*lines)


def _items(facts: Facts) -> list[Table | str]:
    return [_agent(facts), *_jobs(facts["jobs"]), *_peers(facts["peers"]), *_notes(facts)]


def show_questions(log: QuestionLog) -> None:
    """Print which questions about its part an agent answered: of which job, how many, and when."""
    groups: dict[tuple[str, str, bool], list[Answered]] = {}
    others = 0
    for found in log.read():
        if found.part != log.part:
            others += 1
            continue
        what = f"{found.question.removesuffix('_layer')} {found.nodes}".strip()
        groups.setdefault((found.job, what, found.masked), []).append(found)
    table = figures("job", "question", "masked", "first", "last", "answered", left=5)
    for (job, what, masked), answered in groups.items():
        table.add_row(
            printable(job),
            printable(what),
            "yes" if masked else "no",
            *(time.strftime("%y-%m-%d", time.localtime(answered[i].at)) for i in (0, -1)),
            format_count(len(answered)),
        )
    told = f"{_share(log.count, log.most)}, about part {log.part}"
    rest = [f"of other parts {format_counted(others, 'question')}: --json shows all"]
    show(told, *([table] if groups else []), *(rest if others else []))


def _share(answered: int, most: int) -> str:
    return f"{format_count(answered)} of at most {format_counted(most, 'question')} answered"


def _agent(facts: Facts) -> str:
    part, memory, questions = facts["part"], facts["memory"], facts["questions"]
    return (
        f"client {part['client']} of {part['num_clients']}: "
        f"{format_counted(part['nodes'], 'node')}, {format_counted(part['peers'], 'peer')}\n"
        f"retexo-fl {facts['package']}, process {facts['pid']}, up "
        f"{format_duration(facts['uptime_s'])}, memory {format_bytes(memory['rss_bytes'])} "
        f"(peak {format_bytes(memory['peak_rss_bytes'])})\n"
        f"{_share(questions['answered'], questions['most'])}"
        f"{''.join(_given_away(facts['epsilon']))}"
        f"{_server_link(facts.get('superlink'))}"
    )


def _server_link(link: Facts | None) -> str:
    """Return a line about an agent's own connection to the SuperLink; empty where it has none."""
    if not link:
        return ""
    said = f"\nSuperLink {printable(link['address'])}: {link['state']}"
    if link.get("since"):
        said += f" for {format_duration(time.time() - link['since'])}"
    if link.get("reason"):
        said += f" ({printable(link['reason'])})"
    return f"{said}, {format_counted(link['answered'], 'message')} answered"


def _given_away(epsilon: Facts) -> Iterable[str]:
    """Yield a line for each part of which noised sums have left, or whose owner sets a most."""
    most = f" of at most {epsilon['most']:g}" if epsilon["most"] else ""
    for part, spent in epsilon["spent"].items():
        if most or spent != 0:
            said = "beyond 100" if spent is None else f"{spent:.4g}"
            whose = "" if part == epsilon["part"] else f", about another part, {part}"
            yield f"\nepsilon {said}{most} given away (delta {epsilon['delta']:g}){whose}"


def _jobs(jobs: Sequence[Facts]) -> list[Table | str]:
    if not jobs:
        return ["no job"]
    table = figures("job", "training", "state", "attempt", "stage", "round", "idle", left=3)
    for job in jobs:
        stage = str(job["stage"]) if job["stage"] >= 0 else UNKNOWN
        table.add_row(
            job["job"],
            printable(f"{job['algorithm']} {job['model']}"),
            job["state"],
            str(job["attempt"]),
            stage,
            str(job["round"]),
            format_duration(job["last_message_s"]),
        )
    return [table]


def _peers(peers: Sequence[Facts]) -> list[Table | str]:
    if not peers:
        return ["no peer"]
    table = figures(
        *("peer", "channel", "last met", "look in", "owed", "awaited", "sent", "received"), left=4
    )
    shown = sorted(peers, key=_busiest)[:_MOST_PEERS]
    for peer in sorted(shown, key=lambda item: int(item["client"])):
        sent, received = _wire(peer)
        table.add_row(
            str(peer["client"]),
            _channel(peer),
            _last_met(peer),
            _next_look(peer),
            _debt(peer["owed"]),
            _debt(peer["awaited"]),
            format_bytes(sent),
            format_bytes(received),
        )
    rest = len(peers) - len(shown)
    more = [f"and {format_counted(rest, 'peer')} more: --json shows all"] if rest else []
    return [_meetings(peers), table, *more, *_layers(peers)]


def _meetings(peers: Sequence[Facts]) -> str:
    """Return one line: which peer was met last, and how much waits for how many peers."""
    met = [peer for peer in peers if peer.get("last_met") is not None]
    near = [peer for peer in peers if peer.get("connected")]
    line = "no peer met yet"
    if near:
        are = "is" if len(near) == 1 else "are"
        line = f"{format_count(len(near))} of {format_counted(len(peers), 'peer')} {are} connected"
    elif met:
        last = max(met, key=lambda peer: float(peer["last_met"]))
        ago = _about(time.time() - last["last_met"])
        line = f"last met client {last['client']} {ago} ago over {printable(last['channel'])}"
    owing = [peer["owed"] for peer in peers if peer["owed"]["blocks"]]
    if not owing:
        return f"{line}; nothing is owed"
    blocks, size_bytes = (_total(debt[name] for debt in owing) for name in ("blocks", "bytes"))
    what = f"{format_counted(blocks or 0, 'block')} ({format_bytes(size_bytes)})"
    return f"{line}; {what} owed to {format_counted(len(owing), 'peer')}"


def _layers(peers: Sequence[Facts]) -> list[Table | str]:
    """Return what crossed by layer, over all peers: vectors as coded, and with headers."""
    sums: dict[tuple[str, int], dict[str, int]] = {}
    for peer in peers:
        for entry in peer["layers"]:
            of_layer = sums.setdefault((entry["job"], entry["layer"]), {})
            for measure in ("payload_bytes", "wire_bytes"):
                name = f"{entry['direction']} {measure}"
                of_layer[name] = of_layer.get(name, 0) + entry[measure]
    if not sums:
        return []
    table = figures(
        *("job", "layer", "sent", "as frames", "received", "as frames"),
    )
    for (job, layer), found in sorted(sums.items()):
        names = (f"{way} {measure}_bytes" for way in ("out", "in") for measure in _MEASURES)
        table.add_row(job, str(layer), *(format_bytes(found.get(name, 0)) for name in names))
    return [table]


_MEASURES: Final = ("payload", "wire")


def _notes(facts: Facts) -> list[str]:
    notes = [
        f"peer {peer['client']}: {printable(peer['last_error'])}"
        for peer in facts["peers"]
        if peer.get("last_error") and not peer.get("connected")
    ]
    notes += [
        f"peer {peer['client']}: refused {printable(_reasons(peer['refusals']))}"
        for peer in facts["peers"]
        if peer.get("refusals")
    ]
    if facts["strangers"]:
        reasons = printable(_reasons(facts["strangers"]))
        notes.append(f"unauthenticated connections refused: {reasons}")
    if facts["flower"]:
        up, down = (facts["flower"][way] for way in ("up", "down"))
        notes.append(
            f"Flower: {format_bytes(up['wire'])} up, {format_bytes(down['wire'])} down "
            f"({format_bytes(up['payload'])} and {format_bytes(down['payload'])} without headers)"
        )
    return [*_datagram_notes(facts.get("datagrams")), *notes][:_MOST_PEERS]


def _datagram_notes(datagrams: Facts | None) -> list[str]:
    """Return lines about vectors that come as datagrams, failures last."""
    if not datagrams:
        return []
    counted = datagrams["counters"]
    notes = [
        f"datagrams at {printable(datagrams['address'])}, received by "
        f"{_TAKEN_BY[datagrams['kind']]}: {counted['data_new']} received, "
        f"{counted['packets_sent']} sent, "
        f"{format_counted(counted['cache_hits'], 'exchange')} answered from the cache"
    ]
    refused = {name: counted[name] for name in _REFUSED if counted[name]}
    if refused:
        notes.append(f"datagrams refused: {printable(_reasons(refused))}")
    if datagrams["stalled_peers"]:
        stalled = datagrams["stalled_peers"]
        peers = ", ".join(map(str, stalled))
        who = f"peer {peers} has" if len(stalled) == 1 else f"peers {peers} have"
        notes.append(f"datagrams: {who} stopped acknowledging; does a firewall block UDP?")
    return notes


_TAKEN_BY: Final = {
    "udp": "this process",
    "xdp": "the kernel (XDP)",
    "af_xdp": "this process by AF_XDP",
}
#: Counters of packets that were not taken.
_REFUSED: Final = ("malformed", "bad_checksum", "foreign")


def _busiest(peer: Facts) -> tuple[int, int]:
    """Put peers first with whom something is open."""
    open_bytes = _total(peer[name]["bytes"] for name in ("owed", "awaited")) or 0
    return (-open_bytes, int(peer["client"]))


def _total(sizes: Iterable[int | None]) -> int | None:
    """Return the sum; None where a size is not known, as of a job whose sums are masked."""
    known = [*sizes]
    return None if None in known else sum(size or 0 for size in known)


def _wire(peer: Facts) -> tuple[int | None, int | None]:
    """Return the bytes both ways, over all channels; of TLS where the wire is not known."""
    sent, received = (
        _total(
            counters[f"tls_bytes_{way}"] if wire is None else wire
            for counters in peer.get("channels", {}).values()
            for wire in [counters[f"wire_bytes_{way}"]]
        )
        for way in ("sent", "received")
    )
    return sent, received


def _channel(peer: Facts) -> str:
    """Return the channel of the link, or of the last one."""
    return printable(peer.get("channel") or UNKNOWN)


def _last_met(peer: Facts) -> str:
    if peer.get("connected"):
        return "now"
    met = peer.get("last_met")
    return "never" if met is None else _about(time.time() - met)


def _next_look(peer: Facts) -> str:
    """Return when the peer is looked for next; never while nothing waits for it."""
    wait_s = peer.get("next_look_s")
    if wait_s is None:
        return UNKNOWN
    return "now" if wait_s < 1 else _about(wait_s)


def _about(seconds: float) -> str:
    """Return a duration in at most seven characters: its largest unit of which it has two."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"


def _reasons(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _debt(debt: Facts) -> str:
    if not debt["blocks"]:
        return UNKNOWN
    return f"{debt['blocks']} ({format_bytes(debt['bytes'])})"
