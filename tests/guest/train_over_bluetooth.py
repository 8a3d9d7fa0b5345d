"""Two real agents train over RFCOMM alone; then one process trains on the same parts.

For inside the virtual machine with two adapters and bluetoothd. Writes both runs, and
``figures.json`` with what was counted and timed, to ``--out``.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from retexo_fl.additions.bluetooth.hci import local_adapters
from retexo_fl.cli import run_command
from retexo_fl.errors import AgentUnreachable
from retexo_fl.graph import open_partition
from retexo_fl.run_log.events import Event, ExchangeClosed, StageClosed, Started
from tests.guest.pairing import pair_adapters
from tests.guest.row_times import row_times
from tests.support.agents import AgentProcess, agents, train_with
from tests.support.runs import configured

_START_S = 120.0
_END_S = 30.0
_CHANNEL, _ROW_CHANNEL = 4, 5
#: What an agent and a training load when they begin.
_NEEDED = ("retexo_fl.agent.process", "retexo_fl.client.factory", "retexo_fl.cli.run")
#: The prototype that RETEXO's authors released passes on 7 class logits; ours a hidden state.
_LOGITS = 7


@dataclass(slots=True, kw_only=True)
class GuestAgent(AgentProcess):
    """An agent as ``retexo agent run`` has it, in a process forked from this one.

    Loading torch takes most of a minute in the guest: done once, for all processes.
    """

    forked: ForkProcess | None = None

    def start(self) -> None:
        """Start it; it answers soon."""
        self.forked = ForkProcess(target=_serve, args=(self.settings, self.folder / "log"))
        self.forked.start()

    def until_it_answers(self) -> None:
        """Wait for it."""
        deadline = time.monotonic() + _START_S
        while True:
            try:
                self.status()
            except AgentUnreachable:
                assert self.forked is not None
                assert self.forked.is_alive(), self.log
                assert time.monotonic() < deadline, self.log
                time.sleep(0.1)
            else:
                return

    def stop(self) -> int:
        """End it as systemd would; return its exit code."""
        assert self.forked is not None
        self.forked.terminate()
        self.forked.join(_END_S)
        assert self.forked.exitcode is not None, self.log
        return self.forked.exitcode

    def close(self) -> None:
        """End it, however."""
        if self.forked is not None and self.forked.is_alive():
            self.forked.kill()
            self.forked.join(_END_S)


def _serve(settings: Path, log: Path) -> None:
    with log.open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    raise SystemExit(run_command(["agent", "run", "--config", str(settings)]))


def main() -> int:
    """Run everything; return 0 if it came to its end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--again", type=int, default=0, help="further trainings of one round")
    parser.add_argument("--row-times", type=int, default=0, help="how often a row is timed")
    options = parser.parse_args()
    for module in _NEEDED:
        importlib.import_module(module)
    _say("begun")
    parts = [open_partition(options.parts / f"part-{client}") for client in range(2)]
    adapters = [adapter.address for adapter in local_adapters()]
    addresses = [f"bluetooth://{adapter}/{_CHANNEL}" for adapter in adapters]
    with (
        TemporaryDirectory() as folder,
        agents(Path(folder), parts, start=False, addresses=addresses) as made,
    ):
        made[:] = [GuestAgent(folder=agent.folder, client=agent.client) for agent in made]
        for agent in made:
            agent.start()
        asyncio.run(pair_adapters())
        _say(f"paired {' and '.join(adapters)}")
        figures = {
            "adapters": adapters,
            "kernel": os.uname().release,
            "row_times": _row_times(options, adapters),
            "reference": _reference(options),
            **_over_bluetooth(options, made, Path(folder)),
        }
    (options.out / "figures.json").write_text(json.dumps(figures, indent=1))
    return 0


def _row_times(options: argparse.Namespace, adapters: Sequence[str]) -> dict[str, Any]:
    if not options.row_times:
        return {}
    places = [f"{adapter}/{_ROW_CHANNEL}" for adapter in adapters]
    found = {
        str(width): row_times(places, width=width, times=options.row_times)
        for width in (_LOGITS, options.hidden)
    }
    _say("rows timed")
    return found


def _over_bluetooth(
    options: argparse.Namespace, made: Sequence[AgentProcess], folder: Path
) -> dict[str, Any]:
    keys = {"clients": 2, "hidden": options.hidden, "rounds": options.rounds}
    for agent in made:
        assert isinstance(agent, GuestAgent)
        agent.until_it_answers()
    _say("agents answer")
    before = _adapter_bytes()
    exchange_s = [_train(made, options.out / "bluetooth", keys)]
    connections = _said("hcitool", "con")
    moved = {name: after - before[name] for name, after in _adapter_bytes().items()}
    _say("trained over Bluetooth")
    status = [agent.status() for agent in made]
    exchange_s += [
        _train(made, folder / f"again-{number}", {**keys, "rounds": 1})
        for number in range(options.again)
    ]
    return {
        "exchange_s": exchange_s,
        "adapter_bytes": moved,
        "connections": connections,
        "status": status,
        "status_at_last": [agent.status() for agent in made],
        "stopped": [agent.stop() for agent in made],
        "logs": [agent.log for agent in made],
    }


def _train(made: Sequence[AgentProcess], out: Path, keys: Mapping[str, Any]) -> list[float]:
    """Train with agents; return how long each exchange took, from its beginning to its close."""
    exchange_s: list[float] = []
    since_s = 0.0

    def hear(event: Event) -> None:
        nonlocal since_s
        assert event.time_s is not None
        if isinstance(event, Started | StageClosed):
            since_s = event.time_s
        elif isinstance(event, ExchangeClosed):
            exchange_s.append(event.time_s - since_s)

    train_with(made, configured(out, **keys), [hear])
    return exchange_s


def _reference(options: argparse.Namespace) -> list[str]:
    """Train in this process with the command that users have; return what it was told."""
    arguments = [
        *("run", "--partitions", str(options.parts), "--out", str(options.out / "inline")),
        *("--hidden", str(options.hidden), "--rounds", str(options.rounds), "--quiet"),
    ]
    code = run_command(arguments)
    assert code == 0, f"{arguments}: {code}"
    _say("trained in one process")
    return arguments


def _adapter_bytes() -> dict[str, int]:
    """Return what each adapter was given to send, with all headers, by its name."""
    said = _said("hciconfig")
    told = re.findall(r"^(hci\d+):.*?TX bytes:(\d+)", said, re.DOTALL | re.MULTILINE)
    assert told, said
    return {name: int(sent) for name, sent in told}


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout


def _say(what: str) -> None:
    sys.stdout.write(f"{time.monotonic():8.1f} s {what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
