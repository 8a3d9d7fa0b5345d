"""Owners who made their parts of a typed graph themselves train over a deployment.

Their agents are their own nodes, for which no message starts a program; what SuperNodes carry is
the same in ``tests/system/test_deployment.py``. By day agents train typed graphs in
``tests/integration/test_typed_graphs.py``, from parts that owners made in ``test_typed_parts.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from retexo_fl.graph import find_partitions, open_partition
from retexo_fl.graph.parts.peers import read_peers
from tests.support.commands import ROOT, program, run_command
from tests.support.deployment import Deployment
from tests.support.hosts import Hosts
from tests.support.limits import PERMISSIVE
from tests.support.places import host_names
from tests.support.runs import model_bytes, result_of
from tests.support.typed_graphs import JUDGED, export_typed_part

pytestmark = [
    pytest.mark.system,
    pytest.mark.deployed,
    pytest.mark.slow,
    pytest.mark.timeout(2400),
]

CLIENTS = 2
OPTIONS = (
    *("--model", "rel-sage", "--profile", "lean", "--candidates", "none"),
    *("--hidden", "8", "--rounds", "2"),
)


def test_a_deployment_of_own_typed_parts_trains_what_one_process_trains(tmp_path: Path) -> None:
    retexo = program("retexo")
    whole = ("--dataset", JUDGED["dataset"], "--split", JUDGED["split"], "--clients", str(CLIENTS))
    run_command([retexo, "partition", "make", *whole, "--out", str(tmp_path / "cut")], cwd=ROOT)
    peers = tmp_path / "cut" / "peers.toml"
    names = read_peers(peers).clients
    for client, cut in enumerate(find_partitions(tmp_path / "cut")):
        tables = export_typed_part(
            open_partition(cut), tmp_path / f"of-{client}", clients=names, told=True
        )
        place = ("--peers", str(peers), "--name", names[client], "--out", str(tmp_path / "parts"))
        run_command([retexo, "partition", "local", *tables, *place], cwd=tmp_path)
    for name, of in (("inline", "parts"), ("of-cut", "cut")):
        given = ("--partitions", str(tmp_path / of), "--out", str(tmp_path / name), "--quiet")
        run_command([retexo, "run", *OPTIONS, *given], cwd=tmp_path)
    assert model_bytes(tmp_path / "of-cut") == model_bytes(tmp_path / "inline")
    with Hosts(host_names(CLIENTS)) as hosts:
        deployment = Deployment(
            hosts,
            tmp_path,
            tmp_path / "parts",
            CLIENTS,
            agent_settings=dict(PERMISSIVE),
            own_nodes=range(CLIENTS),
        )
        deployment.start()
        deployment.run(tmp_path / "deployed", *OPTIONS, timeout_s=1000.0)
    assert model_bytes(tmp_path / "deployed") == model_bytes(tmp_path / "inline")
    deployed, inline = result_of(tmp_path / "deployed"), result_of(tmp_path / "inline")
    assert deployed["engine"] == "deployment"
    assert deployed["test_accuracy"] == inline["test_accuracy"]
    assert deployed["types"] == inline["types"]
    assert len([one for one in inline["types"] if one.get("test")]) == 2
