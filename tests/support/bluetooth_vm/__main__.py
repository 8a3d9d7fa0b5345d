"""``python -m tests.support.bluetooth_vm COMMAND``: a shell command in the guest, as root."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from tests.support.bluetooth_vm.machine import GuestFailed, Machine, shared_folder
from tests.support.bluetooth_vm.prepared import prepared


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.bluetooth_vm")
    parser.add_argument("command", nargs="+", help="shell command, run here as in this folder")
    parser.add_argument("--timeout-s", type=float, default=120.0)
    parser.add_argument("--memory-mib", type=int, default=384)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--no-adapters", action="store_true", help="no btvirt")
    parser.add_argument("--bluetoothd", action="store_true", help="D-Bus and bluetoothd")
    options = parser.parse_args()
    command = (
        " ".join(options.command) if len(options.command) == 1 else shlex.join(options.command)
    )
    command = prepared(
        command,
        folder=Path.cwd(),
        has_adapters=not options.no_adapters,
        has_bluetoothd=options.bluetoothd,
    )
    machine = Machine(
        memory_mib=options.memory_mib, cores=options.cores, timeout_s=options.timeout_s
    )
    with shared_folder() as shared:
        try:
            end = machine.run(command, shared)
        except GuestFailed as failed:
            sys.stderr.write(f"{failed}\n")
            return 124
    sys.stdout.write(end.output)
    sys.stderr.write(f"---- exit code {end.status}, {end.wall_s:.1f} s\n")
    return end.status


if __name__ == "__main__":
    raise SystemExit(main())
