"""What the agent's unit forbids, and what the kernel path needs of the system beside it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from retexo_fl.additions.kernel_path.xdp.capabilities import NEEDED
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from tests.support.agents import agents, train_with
from tests.support.commands import ROOT, program
from tests.support.hosts import Hosts
from tests.support.kernel import require_bpf
from tests.support.loss import bad_cables
from tests.support.part import wait_until
from tests.support.runs import configured
from tests.support.sandbox import (
    allowed_calls,
    require_tracing,
    settings_of,
    traced_calls,
    traced_families,
)

pytestmark = [pytest.mark.system, pytest.mark.timeout(200)]

UNIT = settings_of((ROOT / "clients" / "retexo-agent.service").read_text())
_ADDITION = (ROOT / "clients" / "retexo-agent.service.d" / "kernel-path.conf").read_text()
#: Of the drop-in: as it stands, and with the lines that it has for AF_XDP.
ADDED: Final = {
    "xdp": settings_of(_ADDITION),
    "af-xdp": settings_of(re.sub(r"^#(?=\w+=)", "", _ADDITION, flags=re.M)),
}
KEYS = {"clients": 2, "hidden": 4, "rounds": 1, "codec": "fixed"}
_UDP_PORT = 7412
#: With torch, and every call of it traced.
_START_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """An agent that trained with the privileges of its unit, and what it asked of the kernel.

    Attributes:
        calls: Names of system calls.
        families: Of its sockets.
        counters: Of its datagrams.
    """

    calls: set[str]
    families: set[str]
    counters: Mapping[str, int]


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Traced]:
    """Have two agents train, one with each receiver; both have the kernel clone what they send."""
    require_bpf()
    require_tracing()
    root = tmp_path_factory.mktemp("traced")
    parts = make_parts(make_config(KEYS))
    traces = {scheme: root / f"trace-{scheme}" for scheme in ADDED}
    with Hosts(["client-0", "client-1"]) as hosts:
        addresses = [
            (f"tcp://{host.address}:7411", f"{scheme}://{host.address}:{_UDP_PORT}")
            for scheme, host in zip(ADDED, hosts, strict=True)
        ]
        settings: dict[str, object] = {"broadcast": "tc"}
        with (
            bad_cables(*hosts, udp_port=_UDP_PORT, with_xdp=True),
            agents(
                root, parts, addresses=addresses, hosts=list(hosts), settings=settings, start=False
            ) as made,
        ):
            for agent, (scheme, added) in zip(made, ADDED.items(), strict=True):
                agent.program = [*_tracing(traces[scheme]), *_as_with(added), program("retexo")]
                agent.start_s = _START_S
                agent.start()
            train_with(made, configured(root / "run", **KEYS))
            counters = [agent.status()["datagrams"]["counters"] for agent in made]
            for agent in made:
                assert agent.stop() == 0
    for trace in traces.values():
        wait_until(partial(_has_ended, trace), "strace has not ended")
    return {
        scheme: Traced(calls=traced_calls(trace), families=traced_families(trace), counters=counted)
        for (scheme, trace), counted in zip(traces.items(), counters, strict=True)
    }


def _tracing(trace: Path) -> list[str]:
    # -D: the agent, not strace, is what is told to stop.
    return ["strace", "-D", "-f", "-o", str(trace)]


def _as_with(added: Mapping[str, str]) -> list[str]:
    """Return the command that takes away what the unit with an addition does not leave."""
    kept = ",".join(
        f"+{name.removeprefix('CAP_').lower()}" for name in added["AmbientCapabilities"].split()
    )
    # A test may not be allowed to raise the limit that it has itself.
    nothing = [] if "LimitMEMLOCK" in added else ["prlimit", "--memlock=0:0"]
    return [
        *nothing,
        *("setpriv", "--no-new-privs", f"--bounding-set=-all,{kept}", f"--inh-caps=-all,{kept}"),
    ]


def _has_ended(trace: Path) -> bool:
    with trace.open("rb") as file:
        file.seek(-min(os.fstat(file.fileno()).st_size, 4096), os.SEEK_END)
        return b"+++ exited with 0" in file.read()


@pytest.mark.parametrize("scheme", list(ADDED))
def test_unit_and_addition_allow_what_the_kernel_path_calls(
    traced: dict[str, Traced], scheme: str
) -> None:
    found = traced[scheme]
    assert found.counters["data_new"] > 0
    assert found.counters["acks_heard"] > 0
    assert found.counters["socket_data"] == 0
    allowed = allowed_calls(UNIT["SystemCallFilter"])
    # Not without it, and with nothing more than it.
    assert found.calls - allowed == allowed_calls(ADDED[scheme]["SystemCallFilter"]) == {"bpf"}


@pytest.mark.parametrize("scheme", list(ADDED))
def test_unit_and_addition_allow_the_sockets_of_the_kernel_path(
    traced: dict[str, Traced], scheme: str
) -> None:
    allowed = set(UNIT["RestrictAddressFamilies"].split())
    added = set(ADDED[scheme]["RestrictAddressFamilies"].split())
    assert traced[scheme].families - allowed == added


@pytest.mark.parametrize(("scheme", "more"), [("xdp", []), ("af-xdp", ["CAP_NET_RAW"])])
def test_the_addition_gives_the_privileges_the_agent_asks_for(scheme: str, more: list[str]) -> None:
    added = ADDED[scheme]
    assert added["AmbientCapabilities"] == added["CapabilityBoundingSet"]
    assert added["AmbientCapabilities"].split() == [*(each.name for each in NEEDED), *more]
    # Ambient ones need a user that is not root, and an empty set to begin with.
    assert UNIT["User"] != "root"
    assert UNIT["CapabilityBoundingSet"] == ""
