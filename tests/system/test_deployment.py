"""Clients that share nothing but a network train what one process trains, to the bit.

Machines are network namespaces; SuperLink, SuperNode and agents are real programs, with TLS and
node authentication, as docs/deployment.md starts them. One client has a SuperNode, which its agent
counts the bytes of; the other's agent is its own node.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import program, run_command
from tests.support.data import cora_dir
from tests.support.deployment import Deployment
from tests.support.host import Counters
from tests.support.hosts import Hosts
from tests.support.limits import PERMISSIVE
from tests.support.memory import MemoryWatch
from tests.support.places import host_names
from tests.support.predictions import predicted_tables, summary_of
from tests.support.runs import curves_of, model_bytes, result_of

pytestmark = [pytest.mark.system, pytest.mark.deployed, pytest.mark.timeout(2400)]

CLIENTS = 2
#: Each message to a SuperNode starts a program of Flower's, two seconds of CPU.
WITH_SUPERNODE, OWN_NODE = 0, 1
SCHEDULE = ("--profile", "retexo", "--candidates", "none")
OPTIONS = (*SCHEDULE, "--model", "sage", "--hidden", "64", "--rounds", "2")
#: As the kernel and ps count.
MIB = 2**20
KINDS = ("boundary", "updates_up", "weights_down")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A training by a deployment and the same one in this process, and what was seen meanwhile.

    Attributes:
        deployed: Run directory of the deployment.
        inline: Run directory of this process.
        moved: What went through each host's interface: at least, from after its agent was asked
            first until it was asked again; at most, from before to after. SuperNodes ask for work
            meanwhile, more often the longer it takes to ask agents.
        told: What each client's agent said of its traffic, before and after.
        watch: Memory of all programs.
        federation: It trained here, and goes on.
    """

    deployed: Path
    inline: Path
    moved: dict[str, tuple[Counters, Counters]]
    told: dict[int, tuple[dict[str, Any], dict[str, Any]]]
    watch: MemoryWatch
    federation: Deployment


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Generator[Trained]:
    folder = tmp_path_factory.mktemp("deployment")
    parts = folder / "parts"
    source = ("--dataset", "cora", "--data-dir", str(cora_dir()), "--partitioner", "louvain")
    size = ("--clients", str(CLIENTS), "--out", str(parts))
    run_command([program("retexo"), "partition", "make", *source, *size], cwd=folder)
    place = ("--partitions", str(parts), "--out", str(folder / "inline"), "--quiet")
    run_command([program("retexo"), "run", *OPTIONS, *place], cwd=folder)
    with Hosts(host_names(CLIENTS)) as hosts, MemoryWatch(hosts) as watch:
        settings = {**PERMISSIVE, "predictions": "predictions"}
        deployment = Deployment(
            hosts,
            folder,
            parts,
            CLIENTS,
            agent_settings=settings,
            metered=True,
            own_nodes=(OWN_NODE,),
        )
        hosts.send_nothing_twice()
        deployment.start()
        yield _train(deployment, folder / "inline", watch)


def _train(deployment: Deployment, inline: Path, watch: MemoryWatch) -> Trained:
    clients = range(deployment.clients)
    before = deployment.interface_bytes()
    told = {client: deployment.agent_status(client) for client in clients}
    begun = deployment.interface_bytes()
    deployment.run(deployment.folder / "run", *OPTIONS, timeout_s=1000.0)
    ended = deployment.interface_bytes()
    after = {client: deployment.agent_status(client) for client in clients}
    moved = {
        name: (ended[name] - begun[name], counters - before[name])
        for name, counters in deployment.interface_bytes().items()
    }
    return Trained(
        deployed=deployment.folder / "run",
        inline=inline,
        moved=moved,
        told={client: (told[client], after[client]) for client in clients},
        watch=watch,
        federation=deployment,
    )


def test_weights_are_those_of_one_process(trained: Trained) -> None:
    assert model_bytes(trained.deployed) == model_bytes(trained.inline)


def test_the_account_is_that_of_one_process(trained: Trained) -> None:
    deployed, inline = result_of(trained.deployed), result_of(trained.inline)
    assert deployed["engine"] == "deployment"
    for key in ("test_accuracy", "val_accuracy", "micro_f1", "stages", "missing_rows"):
        assert deployed[key] == inline[key]
    for measure in ("raw", "payload"):
        assert _kinds(deployed, measure) == _kinds(inline, measure)
    assert curves_of(trained.deployed) == curves_of(trained.inline)


def _kinds(result: dict[str, Any], measure: str) -> dict[str, int]:
    return {kind: result["bytes"][measure][kind] for kind in KINDS}


def test_programs_stay_within_their_memory(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        print(f"\n{trained.watch.table()}")  # noqa: T201 - a table for whoever reads the log
    for client in trained.told:
        host = f"client-{client}"
        assert trained.watch.usage[host, "retexo agent run"].resident_bytes < 330 * MIB
    # A ClientApp adds little to what any program of Flower's takes: no torch, no graph.
    host = f"client-{WITH_SUPERNODE}"
    flower, app = trained.watch.usage[host, "flower-superexec"], "flwr-clientapp"
    added_bytes = trained.watch.usage[host, app].resident_bytes - flower.resident_bytes
    assert added_bytes < 24 * MIB


def test_counted_bytes_are_those_on_the_interfaces(trained: Trained) -> None:
    before, after = trained.told[WITH_SUPERNODE]
    sent, received = (one - other for one, other in zip(_wire(after), _wire(before), strict=True))
    least, most = trained.moved[f"client-{WITH_SUPERNODE}"]
    assert 0.999 * least.sent_ip_bytes < sent < 1.001 * most.sent_ip_bytes
    assert 0.999 * least.received_ip_bytes < received < 1.001 * most.received_ip_bytes


def _wire(status: dict[str, Any]) -> tuple[int, int]:
    """Return what an agent counted on all its channels and on Flower's: sent and received."""
    channels = [channel for peer in status["peers"] for channel in peer["channels"].values()]
    sent = sum(channel["wire_bytes_sent"] for channel in channels)
    received = sum(channel["wire_bytes_received"] for channel in channels)
    return sent + status["flower"]["up"]["wire"], received + status["flower"]["down"]["wire"]


def test_clients_predict_in_place_what_one_process_predicts(
    trained: Trained, tmp_path: Path
) -> None:
    federation, run = trained.federation, trained.deployed
    here = [program("retexo"), "predict", str(run), "--partitions", str(federation.parts)]
    run_command([*here, "--out", str(tmp_path / "here")], cwd=tmp_path)
    expected = predicted_tables(tmp_path / "here")
    said = federation.retexo(*federation.predict_arguments(run), timeout_s=400.0)
    summary = summary_of(run / "predictions")
    assert federation.kept_predictions() == expected
    assert f"below each client's own folder\nsummary         {run}/predictions/" in said
    assert "test accuracy   0." in said
    assert summary["nodes"] == sum(text.count(b"\n") - 1 for text in expected.values())
    again = federation.retexo(*federation.predict_arguments(run), timeout_s=400.0)
    assert again == f"made already; --overwrite makes them again\n{said}"
    assert summary_of(run / "predictions") == summary
