"""Pair the virtual machine's two adapters with each other, as two devices are paired once."""

from __future__ import annotations

import asyncio

from retexo_fl.additions.bluetooth.bluez import Bluez
from retexo_fl.additions.bluetooth.bus import system_bus
from retexo_fl.additions.bluetooth.pairing import PairingAgent, accept, pair

_WITHIN_S = 60.0


async def pair_adapters() -> tuple[str, str]:
    """Pair and trust in both directions; return the addresses of both adapters.

    Needs bluetoothd. Afterwards links between them can be authenticated and encrypted.
    """
    async with system_bus() as one_bus, system_bus() as other_bus:
        one, other = Bluez(one_bus), Bluez(other_bus)
        first, second = (await one.adapters())[:2]
        async with asyncio.timeout(2 * _WITHIN_S):
            accepting = asyncio.create_task(accept(one, first, PairingAgent(), _WITHIN_S))
            await pair(other, second, first.address, PairingAgent(), _WITHIN_S)
            await accepting
    return first.address, second.address
