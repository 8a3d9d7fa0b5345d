"""From an address without a channel to a stream, over BlueZ's records.

Runs in the virtual machine, with D-Bus and bluetoothd (``tests/support/bluetooth_vm``).
"""

from __future__ import annotations

import asyncio

from retexo_fl.additions.bluetooth.pairing import PairingAgent
from retexo_fl.additions.bluetooth.transport import BluetoothTransport
from tests.guest.test_bluez import FIRST, SECOND, both, run, until


def test_an_automatic_address_leads_to_its_listener() -> None:
    async def work() -> None:
        async with both() as ends:
            assert (await ends.pair(PairingAgent(), PairingAgent()))[1].is_trusted
        listener = await BluetoothTransport().listen("bluetooth:")
        accepting = asyncio.create_task(listener.accept())

        async def is_listening() -> bool:
            return listener.address != "bluetooth:"

        await until(is_listening)
        # No channel in the address: the record of the paired device tells it.
        stream = await BluetoothTransport(adapter=SECOND).connect(f"bluetooth://{FIRST}", 0)
        accepted = await accepting
        await stream.write(b"hello")
        assert await accepted.read(5) == b"hello"
        for end in (stream, accepted, listener):
            await end.close()

    run(work())
