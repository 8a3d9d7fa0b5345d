"""What agents without SuperNodes train and predict has the bits of one process, job by job."""

from __future__ import annotations

import signal
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.commands import ROOT, program, run_command
from tests.support.deployment import Deployment
from tests.support.faults import end_of_command, wait_for
from tests.support.hosts import Hosts
from tests.support.limits import PERMISSIVE
from tests.support.places import host_names
from tests.support.predictions import predicted_tables, summary_of
from tests.support.runs import events_of, model_bytes
from tests.support.typed_graphs import JUDGED
from tests.support.valued_graphs import write_valued

pytestmark = [
    *(pytest.mark.system, pytest.mark.deployed, pytest.mark.slow, pytest.mark.timeout(1200))
]

CLIENTS = 2
SMALL = ("--hidden", "8", "--rounds", "2")
#: By name: the parts, and the options of a run.
JOBS: dict[str, tuple[str, tuple[str, ...]]] = {
    "gcn": ("plain", ("--model", "gcn", *SMALL)),
    "sage": ("plain", ("--model", "sage", *SMALL)),
    "schedule of the paper": ("plain", ("--profile", "retexo", *SMALL)),
    "end to end": ("plain", ("--algorithm", "standard", *SMALL)),
    "two workers": ("plain", ("--model", "gat", "--devices", "cpu:2", *SMALL)),
    "typed": ("typed", ("--model", "rel-sage", *SMALL)),
    "links": ("links", ("--task", "links", "--split", "random:0.6/0.2/0.2", *SMALL)),
}


@dataclass(slots=True, kw_only=True)
class Jobs:
    """A federation of agents that go from parts to parts.

    Attributes:
        federation: The federation.
        parts: Those that its agents have.
    """

    federation: Deployment
    parts: str = field(default="plain")

    @property
    def folder(self) -> Path:
        """Of everything."""
        return self.federation.folder

    def inline(self, name: str, parts: str, *options: str) -> Path:
        """Train in one process; return the run."""
        run = self.folder / f"inline-{name}"
        place = ("--partitions", str(self.folder / parts), "--out", str(run), "--quiet")
        run_command([program("retexo"), "run", *options, *place], cwd=self.folder)
        return run

    def go_to(self, parts: str) -> None:
        """Have the agents serve these parts."""
        if parts == self.parts:
            return
        for client in range(CLIENTS):
            assert self.federation[f"agent-{client}"].stop() == 0
            self.federation.start_agent(
                client,
                partition=str(self.folder / parts / f"part-{client}"),
                state=str(self.federation.client_folder(client) / f"state-{parts}"),
            )
        self.federation.wait_for_supernodes()
        self.parts = parts


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Generator[Jobs]:
    folder = tmp_path_factory.mktemp("jobs")
    valued = write_valued(folder, nodes=60)
    sources = {
        "plain": (),
        "typed": ("--dataset", JUDGED["dataset"], "--split", JUDGED["split"]),
        "links": ("--dataset", "valued", "--data-dir", str(valued), "--task", "links"),
    }
    for name, source in sources.items():
        size = ("--clients", str(CLIENTS), "--out", str(folder / name))
        run_command([program("retexo"), "partition", "make", *source, *size], cwd=ROOT)
    settings = {**PERMISSIVE, "predictions": "predictions"}
    with Hosts(host_names(CLIENTS)) as hosts:
        federation = Deployment(
            hosts,
            folder,
            folder / "plain",
            CLIENTS,
            agent_settings=settings,
            own_nodes=range(CLIENTS),
        )
        federation.start()
        yield Jobs(federation=federation)


@pytest.mark.parametrize("name", JOBS)
def test_a_job_has_the_bits_of_one_process(jobs: Jobs, name: str) -> None:
    parts, options = JOBS[name]
    name = name.replace(" ", "-")
    alone = jobs.inline(name, parts, *options)
    jobs.go_to(parts)
    deployed = jobs.folder / f"deployed-{name}"
    jobs.federation.run(deployed, *options)
    assert model_bytes(deployed) == model_bytes(alone)
    jobs.federation.retexo(*jobs.federation.predict_arguments(deployed), timeout_s=300.0)
    out = jobs.folder / f"predicted-{name}"
    given = ("--partitions", str(jobs.folder / parts), "--out", str(out), "--quiet")
    run_command([program("retexo"), "predict", str(alone), *given], cwd=jobs.folder)
    kept: dict[str, bytes] = {}
    for client in range(CLIENTS):
        place = jobs.federation.client_folder(client) / "predictions"
        kept |= predicted_tables(place / summary_of(deployed / "predictions")["set"])
    assert len(kept) == CLIENTS
    assert kept == predicted_tables(out)


def test_a_job_is_resumed_to_the_bits_of_one_process(jobs: Jobs) -> None:
    options = ("--model", "sage", "--hidden", "8", "--rounds", "30")
    alone = jobs.inline("resumed", "plain", *options)
    jobs.go_to("plain")
    run = jobs.folder / "resumed"
    command = jobs.federation.start_run(run, *options)
    wait_for((run / "checkpoint.safetensors").exists, "a checkpoint", command=command)
    assert command.process is not None
    command.process.send_signal(signal.SIGINT)
    assert end_of_command(command, within_s=100.0)[0] == 130
    jobs.federation.run(run, "--resume")
    attempts = [event["attempt"] for event in events_of(run) if "attempt" in event]
    assert attempts == [1, 2]
    assert model_bytes(run) == model_bytes(alone)
