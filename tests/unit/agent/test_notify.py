from __future__ import annotations

import os
import socket
from contextlib import closing
from pathlib import Path

from retexo_fl.agent.notify import Notifier


def test_a_service_manager_is_told(tmp_path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(5)
        notifier = Notifier(
            {
                "NOTIFY_SOCKET": str(tmp_path / "notify"),
                "WATCHDOG_USEC": "30000000",
                "WATCHDOG_PID": str(os.getpid()),
            }
        )
        assert notifier.watchdog_s == 15
        notifier.ready("here")
        notifier.alive()
        notifier.status("busy")
        notifier.stopping()
        told = [manager.recv(4096) for _ in range(4)]
    assert told[:3] == [b"READY=1\nSTATUS=here", b"WATCHDOG=1", b"STATUS=busy"]
    assert told[3].startswith(b"STOPPING=1\n")


def test_abstract_sockets_begin_with_a_zero() -> None:
    name = f"retexo-test-{os.getpid()}"
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as manager:
        manager.bind("\0" + name)
        manager.settimeout(5)
        Notifier({"NOTIFY_SOCKET": "@" + name}).alive()
        assert manager.recv(4096) == b"WATCHDOG=1"


def test_nobody_is_told_without_a_manager_or_when_it_is_gone(tmp_path: Path) -> None:
    for environment in ({}, {"NOTIFY_SOCKET": str(tmp_path / "gone")}):
        notifier = Notifier(environment)
        notifier.ready("x")
        assert notifier.watchdog_s == 0


def test_the_watchdog_of_another_process_is_not_ours() -> None:
    environment = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}
    assert Notifier(environment).watchdog_s == 0
