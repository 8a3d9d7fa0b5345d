"""Who is allowed to pair, by what a person or nobody says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from retexo_fl.additions.bluetooth.pairing import PairingAgent

DEVICE, PATH = "00:AA:01:00:00:00", "/org/bluez/hci0/dev_00_AA_01_00_00_00"
OTHER = "00:AA:01:01:00:01"


def allows(agent: PairingAgent, member: str, *body: Any) -> bool:
    return asyncio.run(agent.allows(member, list(body)))


@pytest.mark.parametrize(("only", "expected"), [("", True), (DEVICE, True), (OTHER, False)])
def test_unattended_pairing_is_for_those_that_are_expected(only: str, expected: bool) -> None:
    agent = PairingAgent(only=only)
    assert agent.capability == "NoInputNoOutput"
    assert allows(agent, "RequestAuthorization", PATH) is expected
    assert agent.compared == set()


@pytest.mark.parametrize(
    ("member", "body"),
    [
        ("RequestConfirmation", (PATH, 123)),
        ("RequestPinCode", (PATH,)),
        ("RequestPasskey", (PATH,)),
        ("AuthorizeService", (PATH, "0000110b-0000-1000-8000-00805f9b34fb")),
        ("RequestConfirmation", ()),
    ],
)
def test_unattended_nothing_else_is_agreed_to(member: str, body: tuple[Any, ...]) -> None:
    assert not allows(PairingAgent(), member, *body)


@pytest.mark.parametrize("agrees", [True, False])
def test_a_person_decides_by_six_digits(agrees: bool) -> None:
    seen = []

    def compare(device: str, digits: str) -> bool:
        seen.append((device, digits))
        return agrees

    agent = PairingAgent(compare=compare)
    assert agent.capability == "DisplayYesNo"
    assert allows(agent, "RequestConfirmation", PATH, 1234) is agrees
    assert seen == [(DEVICE, "001234")]
    assert agent.compared == ({DEVICE} if agrees else set())


def test_nobody_is_asked_about_other_devices_or_without_digits() -> None:
    agent = PairingAgent(compare=lambda _device, _digits: True, only=OTHER)
    assert not allows(agent, "RequestConfirmation", PATH, 1234)
    agent = PairingAgent(compare=lambda _device, _digits: True)
    assert not allows(agent, "RequestAuthorization", PATH)
    assert agent.compared == set()
