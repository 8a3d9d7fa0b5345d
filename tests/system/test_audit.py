"""`retexo doctor --audit`: the agent's ledger against the kernel's count, with real agents."""

from __future__ import annotations

import json
import socket
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.additions.kernel_path.audit.audit import audit
from retexo_fl.additions.kernel_path.audit.comparison import Audit
from retexo_fl.agent.settings import read_settings
from retexo_fl.channels.addresses import parse_tcp
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.errors import AgentUnreachable
from tests.support.agents import AgentProcess, agents, retexo, train_with
from tests.support.hosts import Hosts
from tests.support.inside import inside
from tests.support.kernel import require_bpf
from tests.support.limits import PERMISSIVE
from tests.support.loss import bad_cables

pytestmark = [pytest.mark.system]

KEYS: dict[str, Any] = {"clients": 2, "hidden": 8, "rounds": 2, "algorithm": "standard"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Generator[list[AgentProcess]]:
    require_bpf()
    parts = make_parts(make_config(KEYS))
    with agents(tmp_path_factory.mktemp("made"), parts, settings=PERMISSIVE) as made:
        yield made


def test_the_ledger_agrees_with_the_interface_about_a_training(
    tmp_path: Path, pair: list[AgentProcess]
) -> None:
    config = make_config({**KEYS, "out": str(tmp_path / "out")})
    runs: list[Path] = []

    def train(_seconds: float) -> None:
        if not runs:
            runs.append(train_with(pair, config))

    found = audit(pair[0].settings, 0.01, sleep=train)
    assert found.interfaces == ("lo",)
    (line,) = found.lines
    assert (line.protocol, line.clients, line.addresses) == ("tcp", (1,), ("127.0.0.1",))
    for count in (line.sent, line.received):
        assert count.ledger is not None
        assert count.ledger > 100_000
        # TCP sends a segment again that a loaded machine acknowledges late.
        assert count.least > count.ledger / 2
        assert count.agrees
    assert found.agrees


def test_bytes_by_peer_and_datagram_packets_agree_between_hosts(tmp_path: Path) -> None:
    """Of an agent that takes datagrams itself, and of one whose kernel does, in one training."""
    require_bpf()
    for one in _audits_between_hosts(tmp_path):
        assert one.agrees


def _audits_between_hosts(folder: Path) -> list[Audit]:
    """Train between two hosts, and return what both audits found."""
    keys = {**KEYS, "codec": "fixed"}
    config = make_config({**keys, "out": str(folder / "out")})
    with ExitStack() as stack:
        hosts = list(stack.enter_context(Hosts(["client-0", "client-1"])))
        # The far ends have XDP programs, or what is answered from XDP does not arrive.
        stack.enter_context(bad_cables(*hosts, udp_port=7412, with_xdp=True))
        addresses = [
            (f"tcp://{host.address}:7411", f"{scheme}://{host.address}:7412")
            for host, scheme in zip(hosts, ("udp", "xdp"), strict=True)
        ]
        parts = make_parts(make_config(keys))
        made = stack.enter_context(
            agents(folder / "made", parts, addresses=addresses, hosts=hosts, settings=PERMISSIVE)
        )
        found: list[Audit] = []

        def train(_seconds: float) -> None:
            if not (folder / "out").exists():
                train_with(made, config)

        def audit_the_other(_seconds: float) -> None:
            if not found:
                with inside(hosts[1].namespace):
                    found.append(audit(made[1].settings, 0.01, sleep=train))

        with inside(hosts[0].namespace):
            found.append(audit(made[0].settings, 0.01, sleep=audit_the_other))
    assert [one.with_xdp for one in found] == [("eth0",), ()]
    for one, peer in zip(found, (0, 1), strict=True):
        tcp, *_ = one.lines
        assert (tcp.clients, tcp.addresses) == ((peer,), (hosts[peer].address,))
        for count in (tcp.sent, tcp.received):
            assert count.ledger is not None
            assert count.ledger > 1000
        assert one.datagrams is not None
        assert one.datagrams[0].ledger is not None
        assert one.datagrams[0].ledger > 100
    return found


def test_what_the_ledger_does_not_know_of_is_found(pair: list[AgentProcess]) -> None:
    (address,) = read_settings(pair[0].settings).listen
    port = parse_tcp(address).port

    def knock(_seconds: float) -> None:
        # Bytes to the agent's port by somebody who proves nothing: no peer's account has them.
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(bytes(5000))

    found = audit(pair[0].settings, 0.01, sleep=knock)
    assert not found.agrees
    assert sum(line.received.interface for line in found.lines) > 5000


def test_the_command_prints_a_table_and_ends_with_the_verdict(pair: list[AgentProcess]) -> None:
    done = retexo("doctor", "--audit", str(pair[0].settings), "--seconds", "0.5", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["agrees"] is True
    done = retexo("doctor", "--audit", str(pair[0].settings), "--seconds", "0.2")
    assert done.returncode == 0, done.stderr
    assert "127.0.0.1" in done.stdout
    assert "The ledger agrees with what lo carried in" in done.stdout
    done = retexo("doctor", "--audit", str(pair[0].settings), "--seconds", "0")
    assert (done.returncode, done.stderr.count("--seconds")) == (2, 1)
    assert retexo("doctor", "--audit", "/nowhere/agent.toml").returncode == 2


def test_an_interrupt_ends_the_audit_and_shows_what_was_counted(
    pair: list[AgentProcess],
) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    found = audit(pair[0].settings, 600.0, sleep=interrupt)
    assert found.agrees
    assert found.seconds < 60


def test_an_agent_that_was_restarted_is_not_compared(pair: list[AgentProcess]) -> None:
    def restart(_seconds: float) -> None:
        pair[0].stop()
        pair[0].start()

    with pytest.raises(AgentUnreachable, match="was restarted during the audit"):
        audit(pair[0].settings, 0.001, sleep=restart)
