"""What the doctor says of the addresses at which an agent is to listen."""

from __future__ import annotations

import pytest

from retexo_fl.agent.settings import AgentSettings
from retexo_fl.channels import addresses
from retexo_fl.doctor.client import examine_ports
from retexo_fl.doctor.finding import Finding, Verdict


def finding(address: str) -> Finding:
    settings = AgentSettings(
        partition="p",
        state="s",
        socket="a",
        key="k",
        certificate="c",
        roster="r",
        listen=(address,),
    )
    (found,) = examine_ports(settings, running=False)
    return found


def test_a_scheme_that_it_cannot_look_at_is_not_called_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(addresses, "SCHEMES", (*addresses.SCHEMES, "quic"))
    found = finding("quic://0.0.0.0:7411")
    assert (found.verdict, "not checked" in found.seen) == (Verdict.ABSENT, True)
    assert finding("relay:").verdict is Verdict.BAD
    assert finding("tcp://127.0.0.1:0").verdict is Verdict.GOOD
