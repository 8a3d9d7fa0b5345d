"""The audit: does an agent's account of its peers agree with what the interfaces carried?

The agent computes bytes on the wire from TCP's counters of each connection. Here the kernel counts
the same bytes once more, at the interface, by the peer's address. Both are read one after the
other, so what passes in between is allowed for.

Of datagrams the agent counts packets, and of no single peer: they are compared in total, and what
the interface carried is shown by peer. An XDP program takes and answers packets before they are
counted at an interface; those are in neither count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from retexo_fl.additions.kernel_path.audit.comparison import Audit, Look, compare, compare_datagrams
from retexo_fl.additions.kernel_path.audit.datagrams import datagram_ledger
from retexo_fl.additions.kernel_path.audit.peers import AuditedPeers
from retexo_fl.additions.kernel_path.xdp.account import ByteAccount, Flow, FlowVolume
from retexo_fl.agent.remote import ask_agent
from retexo_fl.agent.settings import AgentSettings, read_settings
from retexo_fl.errors import AgentUnreachable, ConfigurationError

#: The channel whose bytes go to the peer's own address over IP; a relay's go to the server.
_CHANNEL: Final = "tcp"
_LOOK_EVERY_S: Final = 0.2


def audit(config: Path, seconds: float, *, sleep: Callable[[float], None] = time.sleep) -> Audit:
    """Count at the interfaces for a while, and compare with what the agent counted meanwhile.

    Ctrl-C ends the counting early, and the comparison follows.

    Args:
        config: The agent's ``agent.toml``.
        seconds: How long.
        sleep: Waits.

    Raises:
        ConfigurationError: The configuration cannot be read, or names no roster.
        IdentityError: The roster cannot be used.
        AgentUnreachable: The agent does not run, or was restarted meanwhile.
        ChannelUnavailable: Programs for counting cannot be loaded: no privilege, no libbpf.
    """
    settings = read_settings(config)
    peers = AuditedPeers(settings, own=int(_ask(settings)["part"]["client"]))
    if not (names := peers.interfaces()):
        raise ConfigurationError("roster: no peer has an IPv4 address with a route; expected one")
    with ExitStack() as stack:
        accounts = [stack.enter_context(ByteAccount(name)) for name in names]
        before = _look(settings, accounts)
        begun_s = time.monotonic()
        _wait(seconds, sleep)
        lasted_s = time.monotonic() - begun_s
        after = _look(settings, accounts)
        with_xdp = tuple(account.interface for account in accounts if account.has_xdp)
    if after.process != before.process:
        raise AgentUnreachable("the agent was restarted during the audit; start the audit again")
    return Audit(
        interfaces=names,
        with_xdp=with_xdp,
        seconds=lasted_s,
        lines=tuple(compare(peers, before, after)),
        datagrams=compare_datagrams(before, after),
    )


def _wait(seconds: float, sleep: Callable[[float], None]) -> None:
    ends_s = time.monotonic() + seconds
    try:
        while (left_s := ends_s - time.monotonic()) > 0:
            sleep(min(left_s, _LOOK_EVERY_S))
    except KeyboardInterrupt:
        return


def _look(settings: AgentSettings, accounts: Sequence[ByteAccount]) -> Look:
    earlier = _sum_of(accounts)
    facts = _ask(settings)
    later = _sum_of(accounts)
    return Look(
        process=int(facts["pid"]),
        ledger=ledger_of(facts["peers"]),
        datagrams=datagram_ledger(facts.get("datagrams")),
        earlier=earlier,
        later=later,
    )


def _ask(settings: AgentSettings) -> Mapping[str, Any]:
    return ask_agent(Path(settings.socket), "status")


def _sum_of(accounts: Sequence[ByteAccount]) -> dict[Flow, FlowVolume]:
    total: dict[Flow, FlowVolume] = {}
    for account in accounts:
        for flow, volume in account.flows().items():
            total[flow] = total.get(flow, FlowVolume()) + volume
    return total


def ledger_of(
    peers: Iterable[Mapping[str, Any]],
) -> dict[int, tuple[int | None, int | None]]:
    """Return by peer the bytes of TCP on the wire in an agent's status."""
    found = {}
    for peer in peers:
        counted = peer.get("channels", {}).get(_CHANNEL, {})
        sent, received = (counted.get(f"wire_bytes_{way}", 0) for way in ("sent", "received"))
        found[int(peer["client"])] = (sent, received)
    return found
