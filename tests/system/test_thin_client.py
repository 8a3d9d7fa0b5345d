"""The ClientApp of a deployed client: one message in a fresh process, through the agent."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.client.preparation import make_parts
from retexo_fl.config import config_values, make_config
from tests.support.agents import agents
from tests.support.commands import ROOT, environment

pytestmark = pytest.mark.system

#: What Flower loads before it loads the app, then one message as Flower hands it over.
SCRIPT = """
import json, sys
facts = json.loads(sys.argv[1])
import flwr.supernode.cli.flwr_clientapp
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from clients.app import app
from retexo_fl.client.api import HELLO, HelloAnswer, HelloRequest, Ticket
from retexo_fl.federation import records
TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
context = Context(run_id=1, node_id=2, node_config={"agent": facts["socket"]},
                  state=RecordDict(), run_config=facts["config"])
content = records.request_content(HelloRequest(ticket=Ticket(job="job-0123456789ab", attempt=1)))
message = Message(content, dst_node_id=2, message_type=HELLO.message_type)
message.metadata.__dict__["_message_id"] = "1"
answer = records.read_answer(HelloAnswer, app(message, context))
lines = open("/proc/self/status").read().splitlines()
peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
print(json.dumps({"nodes": answer.nodes, "modules": sorted(sys.modules), "peak_kib": peak}))
"""
HEAVY = ("torch", "scipy", "sklearn", "igraph", "retexo_fl.graph", "retexo_fl.training")
#: The most that a ClientApp may take; Flower's own imports are 121 MB of it.
MOST_BYTES = 135_000_000
#: What an agent must not load: it is resident.
FOREIGN = (
    *("flwr", "grpc", "sklearn", "igraph", "ray", "pandas", "matplotlib", "networkx"),
    # Compiler and kernels are for those who sample.
    *("numba", "llvmlite"),
)
#: What Flower's own SuperNode loads, and an agent in its place must not.
OF_A_SUPERNODE = ("fastapi", "starlette", "pydantic", "requests", "uvicorn", "sqlalchemy", "torch")
#: The most that its modules may take; connected it has 8 MB more. Flower's are 19 MB of it.
MOST_OWN_NODE_BYTES = 96_000_000


def test_a_message_is_answered_without_torch_and_graph(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"clients": 2}
    parts = make_parts(make_config(keys))
    with agents(tmp_path, parts[:1]) as (agent,):
        facts = {"socket": str(agent.socket), "config": config_values(make_config(keys))}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, json.dumps(facts)],
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["nodes"] == parts[0].num_inner
    loaded = {name for name in told["modules"] if name.startswith(HEAVY)}
    assert not loaded
    assert told["peak_kib"] * 1024 < MOST_BYTES * 1.024


def loaded_by(script: str) -> tuple[set[str], int]:
    """Return the modules that a process has after ``script``, and its peak in bytes."""
    told = (
        "\nimport sys\n"
        "lines = open('/proc/self/status').read().splitlines()\n"
        "print(next(int(line.split()[1]) for line in lines if line.startswith('VmHWM')))\n"
        "print(*sorted(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script + told],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=500,
        check=True,
    )
    peak, modules = done.stdout.splitlines()
    return {*modules.split()}, int(peak) * 1024


def packages(modules: Iterable[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_an_agent_loads_nothing_that_it_does_not_need() -> None:
    modules, _ = loaded_by(
        "import retexo_fl.cli, retexo_fl.agent.process, retexo_fl.methods.whole.answers"
    )
    assert not packages(modules) & {*FOREIGN}


def test_an_agent_that_is_its_own_supernode_waits_in_little_memory() -> None:
    modules, peak_bytes = loaded_by(
        "from retexo_fl.late_modules import import_late\n"
        "import_late()\n"
        "import retexo_fl.cli.agent, retexo_fl.agent.process, retexo_fl.federation.own_node\n"
        "from retexo_fl.federation import superlink_connection\n"
        "superlink_connection.check()"
    )
    assert not packages(modules) & {*OF_A_SUPERNODE}
    assert peak_bytes < MOST_OWN_NODE_BYTES
