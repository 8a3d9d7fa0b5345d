"""Flower's own simulation under our supervisor: it runs anywhere and leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from uuid import uuid4

import pytest

from retexo_fl.errors import EngineFailed
from retexo_fl.simulation.flower_bundle import BundleApps
from retexo_fl.simulation.flower_engine import run_flower_simulation
from retexo_fl.simulation.flower_processes import descendants_of, process_table

SUPERVISOR = "retexo_fl.simulation.flower_daemon"
pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "RETEXO_TEST_TOKEN"  # noqa: S105 - the name of a marker in the environment

SERVER = """
import json, os, signal, time
from importlib.util import find_spec
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    config = context.run_config
    if config["mode"] == "fail":
        raise RuntimeError("the 4711th weight is missing")
    nodes = []
    while len(nodes) < config["clients"]:
        time.sleep(0.1)
        nodes = list(grid.get_node_ids())
    if config["mode"] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    asked = [Message(RecordDict(), dst_node_id=n, message_type="query.hello") for n in nodes]
    replies = list(grid.send_and_receive(asked, timeout=500))
    import ray
    answer = {
        "partitions": sorted(m.content["hello"]["partition"] for m in replies),
        "finds": [bool(find_spec("lies_here")), *(m.content["hello"]["finds"] for m in replies)],
        "cwd": os.getcwd(),
        "home": os.environ["FLWR_HOME"],
        "ray": [node["NodeManagerAddress"] for node in ray.nodes()],
    }
    partial = Path(config["out"] + ".partial")
    partial.write_text(json.dumps(answer))
    partial.replace(config["out"])
    while config["mode"] == "hang":
        time.sleep(0.1)
"""

CLIENT = """
from importlib.util import find_spec
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.query("hello")
def hello(message, context):
    record = ConfigRecord({
        "partition": int(context.node_config["partition-id"]),
        "finds": find_spec("lies_here") is not None,
    })
    return Message(RecordDict({"hello": record}), reply_to=message)
"""

APPS = BundleApps(server=SERVER, client=CLIENT)

# The same run in a process of its own.
ALONE = """
import json, sys
from retexo_fl.simulation.flower_bundle import BundleApps
from retexo_fl.simulation.flower_engine import run_flower_simulation
server, client, config = sys.argv[1:]
run_flower_simulation(
    json.loads(config), num_clients=json.loads(config)["clients"], tick=lambda: None,
    apps=BundleApps(server=server, client=client),
)
"""


class Watcher:
    """A tick that remembers every process of the run and where the run lives."""

    def __init__(self, root: int, then: Callable[[Watcher], None] = lambda watcher: None) -> None:
        self.root = root
        self.then = then
        self.token = uuid4().hex
        self.started: dict[int, str] = {}
        self.homes: set[Path] = set()
        self.ticks = 0
        # Other tests of this process may have left Python's own helper, which lives as long as it.
        self.before = descendants_of(process_table(), root) if root == os.getpid() else set()

    def __call__(self) -> None:
        self.ticks += 1
        self.look()
        self.then(self)

    def look(self) -> None:
        table = process_table()
        for pid in descendants_of(table, self.root) - self.before:
            self.started[pid] = table[pid].started
            if home := environment_of(pid).get("FLWR_HOME"):
                self.homes.add(Path(home))

    def find(self, program: str) -> int | None:
        """Return the process of the run that executes ``program``."""
        for pid in self.started:
            if any(Path(argument).name == program for argument in arguments_of(pid)[:4]):
                return pid
        return None

    def survivors(self) -> list[int]:
        # An orphan that has ended stays in the table until the system's first process reaps it.
        table = {pid: process for pid, process in process_table().items() if not process.dead}
        known = {
            pid for pid in self.started.keys() & table if table[pid].started == self.started[pid]
        }
        marked = {pid for pid in table if environment_of(pid).get(TOKEN) == self.token}
        return sorted(known | marked)

    def assert_nothing_left(self, *, at_least: int) -> None:
        assert len(self.started) >= at_least
        assert self.survivors() == []
        assert self.homes
        assert [home for home in self.homes if home.parent.exists()] == []


def environment_of(pid: int) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in text.split("\0"))
    return {key: value for key, _, value in pairs}


def arguments_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def wait_for(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)


def run(out: Path, watcher: Watcher, *, mode: str = "ok", timeout_s: float = 180.0) -> None:
    run_flower_simulation(
        {"out": str(out), "clients": 1, "mode": mode},
        num_clients=1,
        tick=watcher,
        start_timeout_s=timeout_s,
        extra_environment={TOKEN: watcher.token},
        apps=APPS,
    )


def test_flower_engine_failure_tells_the_text_of_the_server_app(tmp_path: Path) -> None:
    watcher = Watcher(os.getpid())
    with pytest.raises(EngineFailed, match="the 4711th weight is missing") as caught:
        run(tmp_path / "out.json", watcher, mode="fail")
    first, *log = str(caught.value).splitlines()
    assert "the 4711th weight is missing" in first
    assert "RuntimeError: the 4711th weight is missing" in log
    watcher.assert_nothing_left(at_least=5)


# A killed SuperLink is noticed alike, below.
@pytest.mark.slow
def test_flower_engine_notices_a_killed_simulation(tmp_path: Path) -> None:
    watcher = Watcher(os.getpid())
    began = time.monotonic()
    with pytest.raises(EngineFailed, match=r"flwr-simulation .*\(signal 9\)"):
        run(tmp_path / "out.json", watcher, mode="die")
    assert time.monotonic() - began < 50  # Flower itself would need 60 s after the kill
    watcher.assert_nothing_left(at_least=5)


def test_flower_engine_notices_a_killed_superlink(tmp_path: Path) -> None:
    def kill(watcher: Watcher) -> None:
        if watcher.find("flwr-simulation") and (superlink := watcher.find("flower-superlink")):
            os.kill(superlink, signal.SIGKILL)

    watcher = Watcher(os.getpid(), then=kill)
    with pytest.raises(EngineFailed, match=r"flower-superlink ended \(signal 9\)"):
        run(tmp_path / "out.json", watcher, mode="hang")
    watcher.assert_nothing_left(at_least=4)


# What is left is found by its record: by day in tests/unit/simulation/test_flower_processes.py.
@pytest.mark.slow
def test_flower_engine_cleans_up_after_a_killed_supervisor(tmp_path: Path) -> None:
    def kill(watcher: Watcher) -> None:
        if (tmp_path / "out.json").exists() and (pid := watcher.find(SUPERVISOR)):
            os.kill(pid, signal.SIGKILL)

    watcher = Watcher(os.getpid(), then=kill)
    with pytest.raises(EngineFailed, match=r"supervisor .*\(signal 9\)"):
        run(tmp_path / "out.json", watcher, mode="hang")
    watcher.assert_nothing_left(at_least=8)


def test_flower_engine_interrupt_passes_after_the_clean_up(tmp_path: Path) -> None:
    """With Ray's processes there, what ends them is the same where its caller is killed."""

    def interrupt(watcher: Watcher) -> None:
        if watcher.find("flwr-simulation"):
            raise KeyboardInterrupt

    watcher = Watcher(os.getpid(), then=interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "out.json", watcher, mode="hang")
    watcher.assert_nothing_left(at_least=4)


def test_flower_engine_start_is_bounded(tmp_path: Path) -> None:
    watcher = Watcher(os.getpid())
    began = time.monotonic()
    with pytest.raises(EngineFailed, match=r"within 0\.5 s"):
        run(tmp_path / "out.json", watcher, timeout_s=0.5)
    assert time.monotonic() - began < 20
    watcher.assert_nothing_left(at_least=2)


def _alone(
    out: Path,
    mode: str,
    *,
    clients: int = 1,
    wrap: tuple[str, ...] = (),
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    config = json.dumps({"out": str(out), "clients": clients, "mode": mode})
    return subprocess.Popen(
        [*wrap, sys.executable, "-c", ALONE, SERVER, CLIENT, config],
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        cwd=cwd,
    )


def test_flower_engine_ends_when_its_caller_is_killed(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    with _alone(out, "hang") as caller:
        watcher = Watcher(caller.pid)
        try:
            wait_for(out.exists, 120)
            watcher.look()
        finally:
            caller.kill()
    wait_for(lambda: not watcher.survivors(), 20)
    watcher.assert_nothing_left(at_least=8)


def test_flower_engine_runs_in_any_directory_without_a_network_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    unshare = ("unshare", "--map-root-user", "--net")
    tools = shutil.which("unshare") and shutil.which("ip")
    if not tools or subprocess.run([*unshare, "true"], check=False).returncode:
        reason = "network namespaces are not permitted here (unshare --map-root-user --net)"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    loopback = 'ip link set lo up && test -z "$(ip route)" && exec "$@"'
    for package in ("server", "clients"):
        (tmp_path / "elsewhere" / package).mkdir(parents=True)
        (tmp_path / "elsewhere" / package / "__init__.py").write_text("raise ImportError")
    # What a user's other runs leave in the environment must not reach this one.
    others = {
        "FLWR_HOME": str(tmp_path / "home of others"),
        "RAY_ADDRESS": "203.0.113.1:6379",
        "HTTP_PROXY": "http://203.0.113.1:9",
        "PYTHONPATH": str(tmp_path / "elsewhere"),
    }
    # A user's module, such as a layer: in the current directory of the command.
    (tmp_path / "lies_here.py").touch()
    out = tmp_path / "out.json"
    wrap = (*unshare, "sh", "-c", loopback, "sh")
    with _alone(out, "ok", clients=3, wrap=wrap, cwd=tmp_path, env=others) as caller:
        watcher = Watcher(caller.pid)

        def has_ended() -> bool:
            watcher.look()
            return caller.poll() is not None

        try:
            wait_for(has_ended, 180)
        finally:
            caller.kill()
    assert caller.returncode == 0
    answer = json.loads(out.read_text())
    assert answer["partitions"] == [0, 1, 2]
    assert answer["finds"] == [True] * 4
    assert Path(answer["cwd"]) == tmp_path
    assert answer["ray"] == ["127.0.0.1"]
    # That of others is where it begins, until the engine has made its own.
    assert watcher.homes - {Path(others["FLWR_HOME"])} == {Path(answer["home"])}
    watcher.homes = {Path(answer["home"])}
    assert {path.name for path in tmp_path.iterdir()} == {"elsewhere", "lies_here.py", "out.json"}
    watcher.assert_nothing_left(at_least=8)
