"""Real Bluetooth: RFCOMM of a real kernel between two virtual controllers, with and without BlueZ.

The tests themselves are in ``tests/guest`` and run in virtual machines: links break as the last
that happens in theirs, and devices are gone in a fresh one, since what a kernel's Bluetooth does
after the one must not decide the other. Each machine takes half a minute of a core to start: a
channel, whose links break at the end, for every change, the others each night.
"""

from __future__ import annotations

import pytest

from tests.support.bluetooth_vm import GuestVerdict
from tests.support.channel_contract import ChannelContract

pytestmark = [pytest.mark.system, pytest.mark.virtual, pytest.mark.timeout(2400)]

_CONTRACT = [name for name in vars(ChannelContract) if name.startswith("test_")]


@pytest.mark.parametrize("guest", ["channel"], indirect=True)
def test_rfcomm_is_a_channel_like_tcp(guest: GuestVerdict) -> None:
    guest.check(
        *(f"TestRfcommChannel::{name}" for name in _CONTRACT),
        "test_a_mebibyte_goes_both_ways_at_once",
        "test_a_peer_that_closes_goes_on_later_where_it_was",
    )


@pytest.mark.parametrize("guest", ["channel"], indirect=True)
def test_what_a_machine_lacks_is_named_and_noticed_once_there(guest: GuestVerdict) -> None:
    guest.check(
        "test_no_socket_lacks_anything_and_the_adapters_are_told",
        "test_adapters_switched_off_are_named_with_the_remedy",
        "test_an_adapter_that_comes_later_is_noticed",
        "test_the_doctor_shakes_hands_with_a_peer",
    )


@pytest.mark.slow
@pytest.mark.parametrize("guest", ["bluez"], indirect=True)
def test_devices_pair_and_find_each_others_service(guest: GuestVerdict) -> None:
    guest.check(
        "test_unattended_pairing_gives_an_encrypted_link",
        "test_a_record_is_found_until_it_is_taken_back",
        "test_an_automatic_address_leads_to_its_listener",
    )


@pytest.mark.slow
@pytest.mark.parametrize("guest", ["pybluez"], indirect=True)
def test_pybluez_does_the_same_for_a_python_without_bluetooth(guest: GuestVerdict) -> None:
    guest.check(
        *(f"TestRfcommChannel::{name}" for name in _CONTRACT),
        "test_a_mebibyte_goes_both_ways_at_once",
        "test_a_peer_is_reached_at_the_channel_that_it_published",
    )


@pytest.mark.parametrize("guest", ["channel"], indirect=True)
def test_a_link_that_breaks_in_mid_block_costs_no_frame(guest: GuestVerdict) -> None:
    guest.check(
        "test_a_block_goes_on_where_its_link_broke",
        "test_a_block_goes_on_after_the_air_was_silent",
    )


@pytest.mark.slow
@pytest.mark.parametrize("guest", ["lost adapter"], indirect=True)
def test_an_adapter_that_disappears_costs_no_frame(guest: GuestVerdict) -> None:
    guest.check(
        "test_a_block_goes_on_after_an_adapter_was_off",
        "test_a_block_goes_on_after_the_adapters_were_gone",
    )
