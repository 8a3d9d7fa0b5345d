"""Addresses of the channels: what can stand in a roster, and what can be listened at."""

from __future__ import annotations

import pytest

from retexo_fl.channels.addresses import (
    BluetoothAddress,
    check_address,
    parse_bluetooth,
    parse_tcp,
    scheme_of,
)
from retexo_fl.errors import IdentityError

DEVICE = "B8:27:EB:0A:1B:2C"


@pytest.mark.parametrize(
    "address",
    [
        "tcp://10.0.0.1:7411",
        "tcp://[::1]:7411",
        "tcp://pi.local:7411",
        f"bluetooth://{DEVICE}",
        f"bluetooth://{DEVICE}/1",
        f"bluetooth://{DEVICE.lower()}/30",
        "relay:",
    ],
)
def test_what_can_stand_in_a_roster(address: str) -> None:
    check_address(address)


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("pi.local:7411", "pi.local:7411.*unknown.* expected tcp://HOST:PORT, bluetooth://"),
        ("tcp://pi.local", "expected tcp://HOST:PORT"),
        ("relay:3", "relay:3.*: expected relay:"),
        ("bluetooth:", "expected bluetooth://AA:BB:CC:DD:EE:FF/CHANNEL$"),
        ("bluetooth://any/3", "expected bluetooth://AA:BB:CC:DD:EE:FF/CHANNEL$"),
        ("bluetooth://B8:27:EB:0A:1B", "expected bluetooth://"),
        ("bluetooth://B8-27-EB-0A-1B-2C/3", "expected bluetooth://"),
        (f"bluetooth://{DEVICE}/", "expected bluetooth://"),
        (f"bluetooth://{DEVICE}/0", "expected .*1 to 30"),
        (f"bluetooth://{DEVICE}/31", "expected .*1 to 30"),
        (f"bluetooth://{DEVICE}/²", "other than printable ASCII"),
        (f"bluetooth://{DEVICE}:3", "expected bluetooth://"),
    ],
)
def test_what_cannot_is_refused(address: str, sentence: str) -> None:
    with pytest.raises(IdentityError, match=sentence):
        check_address(address)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("bluetooth:", BluetoothAddress(adapter="", channel=None)),
        ("bluetooth://any", BluetoothAddress(adapter="", channel=None)),
        ("bluetooth://any/3", BluetoothAddress(adapter="", channel=3)),
        (f"bluetooth://{DEVICE}/30", BluetoothAddress(adapter=DEVICE, channel=30)),
    ],
)
def test_what_can_be_listened_at(address: str, expected: BluetoothAddress) -> None:
    assert parse_bluetooth(address, to_listen=True) == expected


def test_a_device_is_written_in_capitals() -> None:
    address = f"bluetooth://{DEVICE}/3"
    assert str(parse_bluetooth(address.lower())) == address
    assert str(parse_bluetooth("bluetooth://any/3", to_listen=True)) == "bluetooth://any/3"


def test_nothing_is_listened_at_where_the_form_is_wrong() -> None:
    with pytest.raises(IdentityError, match="bluetooth://any/CHANNEL or bluetooth:"):
        parse_bluetooth("bluetooth://all/3", to_listen=True)


def test_an_address_is_written_as_it_was_read() -> None:
    for address in ("tcp://10.0.0.1:7411", "tcp://[::1]:7411"):
        assert str(parse_tcp(address)) == address
        assert scheme_of(address) == "tcp"
