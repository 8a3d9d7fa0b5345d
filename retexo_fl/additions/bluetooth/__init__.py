"""What this machine's Bluetooth is: adapters, pairing, sockets, the record that peers read."""

from __future__ import annotations

from typing import Final

#: UUID of the service of retexo_fl; drawn once at random, the same on every machine.
SERVICE_UUID: Final = "f3eae4ce-6d26-4e5f-acb0-8d884f929fa6"
#: Name of the record, for people who look at what a device offers.
SERVICE_NAME: Final = "retexo_fl"
