"""`retexo predict --superlink` with real programs: what is killed, and what agents open.

What is predicted is compared by tests/system/test_deployment.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from retexo_fl.client.preparation import open_parts
from retexo_fl.config import config_values, make_config
from retexo_fl.federation.prediction_in_place import InPlaceTask
from retexo_fl.federation.trained_model import read_trained_model
from tests.support.agents import agents, predict_in_place_with, retexo
from tests.support.commands import ROOT, program, run_command
from tests.support.deployment import Deployment
from tests.support.file_trace import opened, read_trace, tracer
from tests.support.hosts import Hosts
from tests.support.limits import PERMISSIVE
from tests.support.part import wait_until
from tests.support.places import WAYS, host_names, own_nodes
from tests.support.predictions import cut, predicted_tables
from tests.support.runs import train

pytestmark = [pytest.mark.system, pytest.mark.timeout(2400)]

CLIENTS = 2
OPTIONS = ("--profile", "retexo", "--hidden", "8", "--layers", "1", "--rounds", "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """A deployment that has trained, and what one process predicts on the same parts."""

    deployment: Deployment
    run: Path
    expected: dict[str, bytes]


@pytest.fixture(scope="module", params=WAYS)
def deployed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployed]:
    folder = tmp_path_factory.mktemp("deployment")
    parts, out = folder / "parts", folder / "here"
    size = ("--clients", str(CLIENTS))
    run_command([program("retexo"), "partition", "make", *size, "--out", str(parts)], cwd=folder)
    with Hosts(host_names(CLIENTS)) as hosts:
        settings = {**PERMISSIVE, "predictions": "predictions"}
        deployment = Deployment(
            hosts,
            folder,
            parts,
            CLIENTS,
            agent_settings=settings,
            own_nodes=own_nodes(request.param, CLIENTS),
        )
        deployment.start()
        run = folder / "run"
        deployment.run(run, *OPTIONS, timeout_s=600.0)
        command = [program("retexo"), "predict", str(run), "--partitions", str(parts)]
        run_command([*command, "--out", str(out)], cwd=folder)
        yield Deployed(deployment=deployment, run=run, expected=predicted_tables(out))


@pytest.mark.deployed
@pytest.mark.slow
def test_the_same_command_finishes_after_server_and_agent_were_killed(deployed: Deployed) -> None:
    deployment, place = deployed.deployment, deployed.run / "again"
    command = (*deployment.predict_arguments(deployed.run), "--out", place, "--overwrite")
    part, status = deployment.start_command("predict", *command), place / "status.json"
    wait_until(status.exists, "no prediction has begun", part=part, within_s=200.0)
    time.sleep(1.0)
    deployment.kill("agent-1")
    deployment.kill("superlink")
    deployment.kill("predict")
    deployment.restart("superlink")
    deployment.restart("agent-1")
    deployment.wait_for_supernodes(within_s=200.0)
    deployment.retexo(*command, timeout_s=500.0)
    assert deployment.kept_predictions() == deployed.expected
    assert json.loads(status.read_text())["state"] == "finished"


def test_an_agent_that_predicts_opens_no_file_of_another(tmp_path: Path) -> None:
    keys = {"clients": CLIENTS, "hidden": 8, "rounds": 1}
    parts = open_parts(cut(tmp_path / "cut", clients=CLIENTS))
    run = train(tmp_path / "server" / "run", **keys)
    task = InPlaceTask(run=str(run), folder=str(run / "predictions"), form="csv")
    config = make_config(config_values(read_trained_model(run).config))
    root = tmp_path / "agents"
    root.mkdir()
    settings = {**PERMISSIVE, "predictions": "predictions"}
    with agents(root, parts, settings=settings, start=False) as made:
        for agent in made:
            agent.program = [*tracer(tmp_path / f"{agent.client}.trace"), program("retexo")]
            agent.start_s = 120.0
            agent.start()
        predict_in_place_with(made, config, task)
        for agent in made:
            assert retexo("agent", "stop", "--config", str(agent.settings)).returncode == 0
            assert agent.process is not None
            agent.process.wait(30)
    for agent in made:
        accesses = read_trace(tmp_path / f"{agent.client}.trace", cwd=ROOT)
        written = {path.name for path in opened(accesses, writes=True)}
        # It is not for want of tracing.
        assert f"predictions-{agent.client}.csv" in written
        own = (agent.folder, root / "parts" / f"part-{agent.client}", root / "roster.toml")
        others = [
            found.path
            for found in accesses
            if found.path.is_relative_to(tmp_path)
            and not any(found.path.is_relative_to(place) for place in own)
        ]
        assert others == []
        assert not [p for p in opened(accesses, writes=True) if p.is_relative_to(root / "parts")]
