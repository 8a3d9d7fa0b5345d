"""What a guest has before its command begins: adapters, and D-Bus with BlueZ if wished."""

from __future__ import annotations

import shlex
from pathlib import Path

from tests.support.bluetooth_vm.guest_python import guest_environment

_SCRIPT = Path(__file__).with_name("prepare.sh")


def prepared(
    command: str, *, folder: Path, has_adapters: bool = True, has_bluetoothd: bool = False
) -> str:
    """Return the script that prepares the guest and then runs a shell command in a folder."""
    lines = ["set -e"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in guest_environment().items()]
    lines.append(f". {shlex.quote(str(_SCRIPT))}")
    if has_adapters:
        lines.append("start_adapters")
    if has_bluetoothd:
        lines.append("start_bluetoothd")
    lines += ["set +e", f"cd {shlex.quote(str(folder))}", command]
    return "\n".join(lines) + "\n"
