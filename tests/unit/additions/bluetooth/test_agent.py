"""What an agent makes of Bluetooth addresses in its settings, on a machine that has none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from retexo_fl.additions.bluetooth.agent import bluetooth_transport
from retexo_fl.agent.settings import AgentSettings
from retexo_fl.agent.transports import reachable_at
from retexo_fl.errors import ConfigurationError, IdentityError
from tests.support.without_bluetooth import take_bluetooth_away


@pytest.fixture(autouse=True)
def _none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    take_bluetooth_away(monkeypatch, tmp_path)


def _settings(*listen: str) -> AgentSettings:
    return AgentSettings(
        partition="part",
        state="state",
        socket="agent.sock",
        key="key.pem",
        certificate="certificate.pem",
        roster="roster.toml",
        listen=listen,
    )


def test_bluetooth_demanded_in_vain_is_bad_input_in_one_line() -> None:
    with pytest.raises(ConfigurationError) as caught:
        bluetooth_transport(_settings("tcp://0.0.0.0:7411", "bluetooth://any/3"))
    assert caught.value.exit_code == 2
    sentence = str(caught.value)
    assert sentence.startswith("listen: bluetooth://any/3: ")
    assert "modprobe -a bluetooth rfcomm" in sentence
    assert re.search("; expected .*bluetooth: ", sentence)
    assert "\n" not in sentence


def test_an_address_that_is_none_is_named() -> None:
    with pytest.raises(IdentityError, match="channel from 1 to 30"):
        bluetooth_transport(_settings("bluetooth://any/0"))


@pytest.mark.parametrize("listen", [(), ("tcp://0.0.0.0:7411",), ("bluetooth:", "relay:")])
def test_what_is_not_demanded_is_gone_without(listen: tuple[str, ...]) -> None:
    bluetooth_transport(_settings(*listen))


def test_others_are_told_no_address_that_names_no_device() -> None:
    device = "bluetooth://AA:BB:CC:DD:EE:FF/3"
    listen = ("tcp://10.0.0.1:7411", "bluetooth:", "bluetooth://any/3", device)
    assert reachable_at(listen) == ("tcp://10.0.0.1:7411", device)
