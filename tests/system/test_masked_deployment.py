"""Masked sums between machines: the bits of one process, whatever is killed; nothing in the clear.

The training loses its server in a round and, resumed, a client's connection with what that carries,
and its agent. Of three clients two have SuperNodes; the third's agent is its own node. By day one
with a SuperNode is killed; who is its own node is killed at night, and by day without a SuperLink
in tests/system/test_masked_crashes.py.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.federation.checkpoints import read_checkpoint
from retexo_fl.masking.holder import MaskHolder
from retexo_fl.masking.keys import Label
from retexo_fl.masking.streams import Sums
from tests.support.commands import ROOT, program, run_command
from tests.support.deployment import Deployment
from tests.support.faults import end_of_command, kill_alone, wait_for
from tests.support.hosts import Hosts
from tests.support.places import host_names
from tests.support.runs import events_of, model_bytes, result_of, train

pytestmark = [pytest.mark.system, pytest.mark.deployed, pytest.mark.timeout(2400)]

CLIENTS = 3
#: The client whose agent is its own node.
OWN_NODE = 2
KEYS: dict[str, Any] = {"layers": 1, "hidden": 8, "rounds": 2, "secure_aggregation": "masked"}
SCHEDULE = ("--profile", "retexo", "--candidates", "none")
OPTIONS = ("--layers", "1", "--hidden", "8", "--rounds", "2", *SCHEDULE)
MASKED = (*OPTIONS, "--secure-aggregation", "masked")
#: Messages of a resumed attempt, at one of which, by chance, a node is killed.
STEPS = (
    *("query.hello", "query.keys", "query.counts", "query.labels", "query.publish"),
    *("train.layer", "evaluate.layer"),
)
#: Others may have to do on this machine.
PATIENCE_S = 300.0
#: In the place of ``retexo``: an agent that is killed at a step, as its compute begins.
DYING = (
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
    "from tests.support.dying_agent import run; run()"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A masked training of a deployment to which things happen, and the one in this process.

    Attributes:
        folder: Of the deployment.
        run: Its run directory; ``inline`` that of this process.
        numbers: Each client's numbers in the clear, packed, as this process had them.
        killed: Whose node was killed, and ``step`` at which message.
        said: By what was killed, how the command ended: exit code, and what it printed.
    """

    folder: Path
    run: Path
    inline: Path
    numbers: list[bytes]
    killed: int
    step: str
    said: dict[str, tuple[int, list[str]]] = field(default_factory=dict)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(1, id="SuperNode"),
        pytest.param(OWN_NODE, id="own node", marks=pytest.mark.slow),
    ],
)
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Trained]:
    folder = tmp_path_factory.mktemp("masked")
    parts = folder / "parts"
    size = ("--clients", str(CLIENTS), "--out", str(parts))
    run_command([program("retexo"), "partition", "make", "--dataset", "digits", *size], cwd=folder)
    numbers: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        hide = MaskHolder.hide

        def noted(self: MaskHolder, label: Label, sums: Sums) -> Sums:
            if sums.form.narrow:
                numbers.append(sums.form.ring.pack(sums.narrow).tobytes())
            return hide(self, label, sums)

        patch.setattr(MaskHolder, "hide", noted)
        inline = train(folder / "inline", partitions=str(parts), clients=CLIENTS, **KEYS)
    with Hosts(host_names(CLIENTS)) as hosts:
        deployment = Deployment(hosts, folder, parts, CLIENTS, own_nodes=(OWN_NODE,))
        deployment.agent_settings = {"require-secure-aggregation": True}
        deployment.start()
        trained = Trained(
            folder=folder,
            run=folder / "run",
            inline=inline,
            numbers=numbers,
            killed=request.param,
            step=random.SystemRandom().choice(STEPS),
        )
        _kill_the_server(trained, deployment)
        kill = _kill_an_own_node if trained.killed == OWN_NODE else _kill_a_connection
        trained.said["node"] = kill(trained, deployment)
        yield trained


def _kill_the_server(trained: Trained, deployment: Deployment) -> None:
    """Kill the SuperLink when round 2 is asked, and start it again."""
    command = deployment.start_run(trained.run, *MASKED)
    asked = deployment["supernode-0"]
    known = len(asked.said())
    wait_for(
        lambda: "train.layer" in asked.said()[known:].partition("ROUND 1.0.2]")[2],
        "round 2",
        command=command,
        within_s=PATIENCE_S,
    )
    kill_alone(deployment["superlink"])
    deployment.restart("superlink")
    trained.said["superlink"] = end_of_command(command, within_s=PATIENCE_S)
    # What is left is whole, and no result.
    assert read_checkpoint(trained.run / "checkpoint.safetensors").facts["round"] >= 1
    assert not (trained.run / "result.json").exists()


def _kill_a_connection(trained: Trained, deployment: Deployment) -> tuple[int, list[str]]:
    """Resume; kill a SuperNode that has got a message, and start it as its unit does."""
    command = deployment.start_run(trained.run, "--resume")
    killed = deployment["supernode-1"]
    # A message of the attempt before may still come.
    asked = re.compile(rf"ROUND 2\.[\d.]+\]\n.*Receiving: {re.escape(trained.step)} message")
    wait_for(
        lambda: asked.search(killed.said()) is not None,
        trained.step,
        command=command,
        within_s=PATIENCE_S,
    )
    deployment.kill("supernode-1")
    # Its agent begins anew, too, as after a power cut.
    deployment.kill("agent-1")
    deployment.restart("agent-1")
    deployment.restart("supernode-1")
    return end_of_command(command, within_s=2 * PATIENCE_S)


def _kill_an_own_node(trained: Trained, deployment: Deployment) -> tuple[int, list[str]]:
    """Resume with an agent that is killed once it has got a message, and comes back at once."""
    agent = f"agent-{OWN_NODE}"
    assert deployment[agent].stop() == 0
    left = deployment.client_folder(OWN_NODE) / "steps"
    left.write_text(f"{trained.step.removeprefix('query.').replace('.', '_')} begins")
    deployment.programs[OWN_NODE] = [sys.executable, "-c", DYING]
    deployment.start_agent(OWN_NODE)
    deployment.wait_for_supernodes()
    command = deployment.start_run(trained.run, "--resume")
    ended = end_of_command(command, within_s=2 * PATIENCE_S)
    assert left.read_text() == ""
    # The SuperLink took it for the one that had died, for as long as that might have been there.
    assert "superlink refused=" in deployment[agent].said_now()
    return ended


def test_masked_sums_between_machines_are_those_of_one_process(trained: Trained) -> None:
    code, lines = trained.said["node"]
    assert code == 0, (trained.step, lines)
    assert events_of(trained.run)[-1]["event"] == "finish"
    assert model_bytes(trained.run) == model_bytes(trained.inline)
    assert result_of(trained.run)["stages"] == result_of(trained.inline)["stages"]


def test_no_disk_holds_a_masking_key(trained: Trained) -> None:
    names = {path.name for path in trained.folder.rglob("state/**/*") if path.is_file()}
    assert "counters.json" in names
    assert not [name for name in names if name.startswith("masking")]


def test_the_servers_disk_holds_no_update_in_the_clear(trained: Trained) -> None:
    assert len(trained.numbers) == CLIENTS * 2
    seen = 0
    for path in trained.folder.rglob("*"):
        if path.is_file() and "client-" not in str(path.relative_to(trained.folder)):
            content = path.read_bytes()
            seen += len(content)
            assert not any(numbers[:64] in content for numbers in trained.numbers), path
    assert seen > 0


def test_a_killed_server_ends_the_run_by_name(trained: Trained) -> None:
    code, lines = trained.said["superlink"]
    assert code == 1
    assert lines[-1].startswith("retexo: error: ")
    assert f": retexo run --resume {trained.run} " in lines[-1]
    starts = [event for event in events_of(trained.run) if event["event"] == "start"]
    assert [event["attempt"] for event in starts] == [1, 2]
    # Nobody had to start the clients' SuperNodes again because of it.
    said = (trained.folder / "supernode-0.log").read_text(encoding="utf-8")
    assert said.count("SuperNode ID: ") == 1


def test_a_killed_connection_is_waited_for_at_whatever_step(trained: Trained) -> None:
    _, lines = trained.said["node"]
    # Whoever has not said hello is no client yet.
    is_first = trained.step == STEPS[0]
    told = "answers to hello: .*missing: clients? (.*, )?" if is_first else "waits for client "
    waited = [line for line in lines if re.search(rf"{told}{trained.killed}\b", line)]
    assert waited, "\n".join([trained.step, *lines])
