"""Agents whose settings name Bluetooth, on a machine that has none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from retexo_fl.additions.bluetooth.presence import missing_for_sockets
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from tests.support.agents import AgentProcess, agents
from tests.support.cli import CommandLine
from tests.support.without_bluetooth import take_bluetooth_away


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[AgentProcess]]:
    with agents(
        tmp_path, make_parts(make_config({"clients": 2, "hidden": 8})), start=False
    ) as made:
        yield made


def _listen_too(agent: AgentProcess, address: str) -> None:
    settings = agent.settings.read_text()
    agent.settings.write_text(settings.replace("listen = [", f"listen = [{json.dumps(address)}, "))


def test_an_address_that_is_demanded_ends_the_agent_in_one_line(
    pair: list[AgentProcess],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    take_bluetooth_away(monkeypatch, tmp_path / "empty")
    _listen_too(pair[0], "bluetooth://any/3")
    said = CommandLine(capsys).refused("agent", "run", "--config", pair[0].settings)
    assert said.startswith("listen: bluetooth://any/3: the kernel has no Bluetooth")


@pytest.mark.system
def test_an_automatic_address_is_gone_without(pair: list[AgentProcess]) -> None:
    if not missing_for_sockets():
        pytest.skip("this machine has Bluetooth")
    _listen_too(pair[0], "bluetooth:")
    pair[0].start()
    assert pair[0].status()
    assert "bluetooth: connection: the agent goes on without it: " in pair[0].log
    assert pair[0].stop() == 0
