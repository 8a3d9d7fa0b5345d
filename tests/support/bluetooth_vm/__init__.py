"""A virtual machine with real Bluetooth: two virtual controllers under a real kernel.

Emulated without hardware's help: Debian's kernel, this machine's tree read-only with a layer in
memory above it, and BlueZ's ``btvirt``. Nothing of it outlives a run.
"""

from __future__ import annotations

from tests.support.bluetooth_vm.guest_python import python_with_pybluez, python_with_sockets
from tests.support.bluetooth_vm.guest_tests import GuestTests, GuestVerdict
from tests.support.bluetooth_vm.kernel import missing_programs
from tests.support.bluetooth_vm.machine import (
    GuestEnd,
    GuestFailed,
    Machine,
    end_guests,
    shared_folder,
)

__all__ = [
    "GuestEnd",
    "GuestFailed",
    "GuestTests",
    "GuestVerdict",
    "Machine",
    "end_guests",
    "missing_programs",
    "python_with_pybluez",
    "python_with_sockets",
    "shared_folder",
]
