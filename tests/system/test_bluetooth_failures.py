"""What Bluetooth does to its users: links that break, devices that are gone and come back.

The tests themselves are in ``tests/guest`` and run in virtual machines, a fresh one for each kind:
what a kernel's Bluetooth does after the one must not decide the other.
"""

from __future__ import annotations

import pytest

from tests.support.bluetooth_vm import GuestVerdict

pytestmark = [pytest.mark.system, pytest.mark.virtual, pytest.mark.timeout(900)]


@pytest.mark.parametrize("guest", ["broken link"], indirect=True)
def test_a_link_that_breaks_in_mid_block_costs_no_frame(guest: GuestVerdict) -> None:
    guest.check(
        "test_a_block_goes_on_where_its_link_broke",
        "test_a_block_goes_on_after_the_air_was_silent",
    )


@pytest.mark.parametrize("guest", ["lost adapter"], indirect=True)
def test_an_adapter_that_disappears_costs_no_frame(guest: GuestVerdict) -> None:
    guest.check(
        "test_a_block_goes_on_after_an_adapter_was_off",
        "test_a_block_goes_on_after_the_adapters_were_gone",
    )
