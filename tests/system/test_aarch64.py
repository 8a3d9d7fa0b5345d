"""What a Raspberry Pi would install and run: wheels for 64-bit Arm, and an agent on them.

Debian's Python for arm64 runs under qemu-user as on the processor of a Raspberry Pi 3, with the
wheels that pip would choose there.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.utils import canonicalize_name

from retexo_fl.agent.remote import RemoteClient
from retexo_fl.client.api import (
    CollectRequest,
    EvaluateAnswer,
    EvaluateRequest,
    HelloRequest,
    PublishRequest,
    Ticket,
    TrainAnswer,
    TrainRequest,
    chain_digest,
)
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import config_values, make_config
from retexo_fl.graph import GraphPartition
from retexo_fl.training.stage_model import ModelShape, initial_weights
from tests.support.aarch64 import (
    RELEASES,
    START_S,
    Aarch64,
    Aarch64Agent,
    aarch64_machine,
    locked_wheels,
    packages_of,
)
from tests.support.agents import AgentProcess, agents, train_with
from tests.support.commands import (
    ROOT,
    copy_tree,
    environment,
    program,
    run_command,
    search_path,
)
from tests.support.data import data_dir
from tests.support.deployment import Deployment
from tests.support.emulated_root import EmulatedRoot
from tests.support.hosts import Hosts
from tests.support.places import host_names
from tests.support.runs import configured, crossed, model_weights, result_of, train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

#: What was measured: pytest shows it with --log-level=INFO.
LOG = logging.getLogger(__name__)
#: Said in the issue: an update made on 64-bit Arm equals that of x86.
TOLERANCE = 1e-6
KEYS: dict[str, Any] = {"clients": 2, "hidden": 16, "layers": 2, "rounds": 3}
#: In the place of ``retexo``, which has no program there.
AGENT = "from retexo_fl.cli import main; main()"
#: What a SuperNode and the ClientApp that it starts load, and the agent with all of its layers.
IMPORTS = (
    "flwr.supernode.cli.flower_supernode",
    "flwr.supernode.cli.flwr_clientapp",
    "flwr.supercore.cli.flower_superexec",
    "clients.app",
    "retexo_fl.methods.whole.answers",
    "retexo_fl.cli",
)


# ---- wheels --------------------------------------------------------------------------------------


@pytest.mark.parametrize("python", RELEASES)
def test_a_pi_gets_wheels_alone_and_none_of_cuda(python: str) -> None:
    packages = packages_of(locked_wheels(python))
    foreign = re.compile(r"nvidia|cuda|cupy|triton")
    assert not [name for name in packages if foreign.match(name)]
    assert {"torch", "flwr", "grpcio", "igraph", "cryptography", "dbus-fast"} <= packages.keys()
    assert tuple(map(int, packages["torch"]["version"].split(".")[:2])) < (2, 10)
    for name, package in packages.items():
        files = [wheel["url"].rpartition("/")[2] for wheel in package["wheels"]]
        fitting = [file for file in files if file.endswith(("_aarch64.whl", "-any.whl"))]
        assert fitting, f"{name}: no wheel for aarch64 among {files}"


def test_resolved_packages_depend_on_the_machine_asked_for() -> None:
    # The test above would see packages of CUDA: this is how a machine is answered that has them.
    found = packages_of(locked_wheels("3.11", platform="x86_64-manylinux_2_28"))
    assert [name for name in found if name.startswith("nvidia")]


@pytest.mark.parametrize("python", RELEASES)
def test_a_bundle_has_all_that_a_pi_needs_and_nothing_else(tmp_path: Path, python: str) -> None:
    needed = packages_of(locked_wheels(python))
    path = {"PATH": search_path()}
    command = [str(ROOT / "edge" / "bundle.sh"), "--python", python, str(tmp_path / "wheels")]
    run_command(command, cwd=tmp_path, env=environment(path), timeout_s=900)
    files = sorted(path.name for path in (tmp_path / "wheels").iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["wheels"]
    assert {canonicalize_name(name.split("-")[0]) for name in files} == needed.keys() | {
        "retexo-fl"
    }
    assert all(name.endswith(("_aarch64.whl", "-any.whl")) for name in files)


@pytest.mark.parametrize("python", RELEASES)
def test_every_wheel_runs_on_the_oldest_processor(python: str) -> None:
    machine = aarch64_machine(python)
    said = machine.run(
        "-c",
        "import importlib, platform, sys\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "import dbus_fast, igraph, scipy.sparse, torch\n"
        "print(platform.machine(), *sys.version_info[:2], torch.version.cuda)",
        *IMPORTS,
    )
    assert said.splitlines()[-1] == f"aarch64 {python.replace('.', ' ')} None"


@pytest.mark.timeout(6600)
def test_the_installer_takes_a_clone_and_a_bundle_to_a_working_doctor(tmp_path: Path) -> None:
    folder = tmp_path / "root"
    try:
        system = EmulatedRoot.make(folder, RELEASES["3.11"])
        clone = copy_tree(folder / "root")
        bundle = [str(ROOT / "edge" / "bundle.sh"), str(clone.with_name("wheels"))]
        path = {"PATH": search_path()}
        run_command(bundle, cwd=tmp_path, env=environment(path), timeout_s=900)
        # There is no network in it, so what it asks an index for fails.
        said = system.run("/root/retexo-fl/edge/install.sh --bundle /root/wheels", timeout_s=2400)
        assert "Successfully installed" in said
        doctor = "/opt/retexo/bin/retexo doctor --json 2>/dev/null"
        found = {fact["thing"]: fact for fact in json.loads(system.run(doctor, timeout_s=START_S))}
        LOG.info("%s", found)
        assert found["python"]["seen"].endswith(" on aarch64")
        assert not [fact for fact in found.values() if fact["verdict"] == "bad"]
        # It reads versions; nothing but the programs themselves says that they load.
        system.run(
            "/opt/retexo/bin/python -c 'import torch, retexo_fl.agent.process'", timeout_s=START_S
        )
        # As it says itself: what is a client's own is not there yet.
        (told,) = re.findall("^installed: (.*)$", said, re.M)
        assert "✗ key" in system.run(told, code=1, timeout_s=START_S)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# ---- an agent ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def machine() -> Aarch64:
    return aarch64_machine("3.11")


def on(machine: Aarch64, agent: AgentProcess) -> Aarch64Agent:
    """Return an agent with the same files that runs as 64-bit Arm."""
    return Aarch64Agent(folder=agent.folder, client=agent.client, machine=machine)


def answers_of_a_round(
    made: Sequence[AgentProcess], values: dict[str, Any]
) -> tuple[TrainAnswer, EvaluateAnswer]:
    """Let all agents exchange rows; return how the first trains and is evaluated from the start."""
    config = make_config(values)
    ticket = Ticket(job="job-00000000000e", attempt=1, weights_digest=chain_digest(b"", None))
    clients = [RemoteClient(agent.socket, config_values(config)) for agent in made]
    hello, *_ = [client.ask(HelloRequest(ticket=ticket)) for client in clients]
    for client in clients:
        client.ask(PublishRequest(ticket=ticket))
    for client in clients:
        assert client.ask(CollectRequest(ticket=ticket, wait_s=30)).complete
    shape = ModelShape.of(config, inputs=hello.features, classes=hello.classes)
    weights = initial_weights(shape, 0, seed=0)
    trained = clients[0].ask(TrainRequest(ticket=ticket, weights=weights))
    judged = clients[0].ask(EvaluateRequest(ticket=ticket, weights=weights, nodes="test"))
    return trained, judged


def relative_difference(one: np.ndarray, other: np.ndarray) -> float:
    """Return the largest difference, relative to the largest number."""
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    return float(np.abs(one - other).max() / np.abs(other).max())


#: In single precision, the softmax of attention leaves 1e-6 between two processors.
@pytest.mark.real_graphs
@pytest.mark.parametrize(
    ("model", "dtype"), [("sage", "float32"), ("gcn", "float32"), ("gat", "float64")]
)
def test_an_update_on_64_bit_arm_is_that_of_x86(
    tmp_path: Path, machine: Aarch64, model: str, dtype: str
) -> None:
    keys = {**KEYS, "model": model, "dtype": dtype}
    cora = {"dataset": "cora", "data-dir": str(data_dir()), "split": "random:0.2/0.1/0.7"}
    parts = make_parts(make_config({**keys, **cora}))
    with agents(tmp_path / "x86", parts) as made:
        expected, expected_tally = answers_of_a_round(made, keys)
    with agents(tmp_path / "arm", parts, start=False) as made:
        made[0] = on(machine, made[0])
        for agent in made:
            agent.start()
        found, tally = answers_of_a_round(made, keys)
    difference = relative_difference(found.update_sum, expected.update_sum)
    LOG.info("%s, %s: %.2g", model, dtype, difference)
    assert difference < TOLERANCE
    assert found.examples == expected.examples > 0
    assert found.loss_sum == pytest.approx(expected.loss_sum, rel=TOLERANCE)
    assert tally.loss_sum == pytest.approx(expected_tally.loss_sum, rel=TOLERANCE)
    assert tally.correct == expected_tally.correct


@pytest.mark.parametrize("python", RELEASES)
def test_an_arm_and_an_x86_agent_train_like_one_process(tmp_path: Path, python: str) -> None:
    parts: list[GraphPartition] = make_parts(make_config(KEYS))
    with agents(tmp_path / "made", parts, start=False) as made:
        made[0] = on(aarch64_machine(python), made[0])
        for agent in made:
            agent.start()
        train_with(made, configured(tmp_path / "mixed", **KEYS))
    train(tmp_path / "inline", **KEYS)
    mixed, inline = model_weights(tmp_path / "mixed"), model_weights(tmp_path / "inline")
    assert mixed.keys() == inline.keys()
    for name, weights in inline.items():
        difference = relative_difference(mixed[name], weights)
        LOG.info("%s: %.2g", name, difference)
        assert difference < TOLERANCE, name


def test_an_arm_agent_is_its_own_node_under_masks(tmp_path: Path, machine: Aarch64) -> None:
    """Two more agents and the SuperLink are of x86; each agent masks what it adds."""
    clients, parts = 3, tmp_path / "parts"
    cut = ("--dataset", "digits", "--clients", str(clients), "--out", str(parts))
    run_command([program("retexo"), "partition", "make", *cut], cwd=tmp_path)
    options = ("--profile", "retexo", "--hidden", "8", "--rounds", "2", "--candidates", "none")
    masked = (*options, "--secure-aggregation", "masked")
    inline, mixed = tmp_path / "inline", tmp_path / "mixed"
    here = ("--partitions", str(parts), "--out", str(inline), "--quiet")
    run_command([program("retexo"), "run", *masked, *here], cwd=tmp_path)
    with Hosts(host_names(clients)) as hosts:
        deployment = Deployment(
            hosts, tmp_path, parts, clients, own_nodes=range(clients), start_s=START_S
        )
        deployment.programs[0] = [*machine.command("-c", AGENT)]
        deployment.start()
        deployment.run(mixed, *masked, timeout_s=START_S)
    assert crossed(mixed) == crossed(inline) != {}
    weights = model_weights(inline)
    for name, found in model_weights(mixed).items():
        difference = relative_difference(found, weights[name])
        LOG.info("%s: %.2g", name, difference)
        assert difference < TOLERANCE, name
    assert result_of(mixed)["test_accuracy"] == result_of(inline)["test_accuracy"]
