"""A live agent and a server that asks for more than its owner allows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.agent.remote import RemoteClient
from retexo_fl.client.api import (
    CollectRequest,
    HelloRequest,
    PublishRequest,
    Ticket,
    TrainRequest,
    chain_digest,
)
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import config_values, make_config
from retexo_fl.errors import InputError, LocalProtocolError, RetexoError
from retexo_fl.graph import GraphPartition
from retexo_fl.training.schedule import Schedule
from retexo_fl.training.stage_model import ModelShape
from tests.support.agents import AgentProcess, agents, retexo, train_with
from tests.support.commands import program
from tests.support.runs import configured

pytestmark = pytest.mark.system

KEYS: dict[str, Any] = {"clients": 1, "hidden": 4, "rounds": 2}
TICKET = Ticket(job="job-00000000000c", attempt=1, weights_digest=chain_digest(b"", None))
#: Whoever imports it leaves a file.
SPY = """
import pathlib, sys
from torch.nn.functional import cross_entropy

pathlib.Path(__file__).with_name("imported").touch()

def loss(logits, labels):
    return cross_entropy(logits, labels, reduction="sum")
"""


@pytest.fixture(scope="module")
def parts() -> list[GraphPartition]:
    return make_parts(make_config(KEYS))


@pytest.fixture(scope="module")
def agent(
    tmp_path_factory: pytest.TempPathFactory, parts: list[GraphPartition]
) -> Iterator[AgentProcess]:
    """An agent whose owner has said nothing."""
    with agents(tmp_path_factory.mktemp("agents"), parts) as made:
        yield made[0]


def ask(agent: AgentProcess, **keys: Any) -> RemoteClient:
    """Return what speaks with an agent as a ClientApp does, for a server that wants ``keys``."""
    values = {**config_values(make_config(KEYS)), **{k.replace("_", "-"): keys[k] for k in keys}}
    return RemoteClient(agent.socket, values)


def children(agent: AgentProcess) -> list[str]:
    assert agent.process is not None
    pid = agent.process.pid
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def refused(agent: AgentProcess, expected: str, **keys: Any) -> None:
    """Expect a refusal at hello, of an agent that lives on and has begun nothing.

    What is refused else is in ``test_refusals.py``, without processes.
    """
    jobs = [job["job"] for job in agent.status()["jobs"]]
    with pytest.raises(InputError, match=f"^client 0: {expected}"):
        ask(agent, **keys).ask(HelloRequest(ticket=TICKET))
    assert agent.process is not None
    assert agent.process.poll() is None
    assert [job["job"] for job in agent.status()["jobs"]] == jobs
    assert not (agent.state / "jobs" / TICKET.job).exists()
    assert children(agent) == []


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"model": "os:fork"}, "model: 'os:fork' may not be imported here"),
        ({"loss": "unittest.__main__:x"}, "loss: 'unittest.__main__:x' may not be imported here"),
        ({"devices": "cpu:255"}, "devices: 'cpu:255'; expected no more than 'auto', on"),
        ({"hidden": 65_536, "layers": 32}, "hidden: 65536 .* of memory; expected at most"),
    ],
)
def test_what_the_owner_did_not_allow_is_refused_at_hello(
    agent: AgentProcess, keys: Mapping[str, Any], expected: str
) -> None:
    refused(agent, expected, **keys)


@pytest.fixture(scope="module")
def insisting(
    tmp_path_factory: pytest.TempPathFactory, parts: list[GraphPartition]
) -> Iterator[AgentProcess]:
    """An agent whose owner insists on masked sums of five clients."""
    settings = {"require-secure-aggregation": True, "least-clients": 5}
    with agents(tmp_path_factory.mktemp("insisting"), parts, settings=settings) as made:
        yield made[0]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (
            {"secure_aggregation": "none"},
            "secure-aggregation: none; expected masked (require-secure-aggregation in this "
            "client's agent.toml)",
        ),
        (
            {"secure_aggregation": "masked", "clients": 4},
            "clients: 4; expected 5 at least (least-clients in this client's agent.toml)",
        ),
    ],
)
def test_an_owner_insists_on_masked_sums(
    insisting: AgentProcess, keys: Mapping[str, Any], expected: str
) -> None:
    before = len(insisting.log.splitlines())
    refused(insisting, f"{re.escape(expected)}$", **keys)
    told = insisting.log.splitlines()[before:]
    assert len(told) == 1
    assert expected in told[0]


def test_the_server_names_the_client_and_what_it_expected(
    tmp_path: Path, agent: AgentProcess
) -> None:
    config = configured(tmp_path / "run", **KEYS, algorithm="central")
    with pytest.raises(RetexoError, match="^client 0: algorithm: 'central'; expected .*lazy"):
        train_with([agent], config)


@pytest.fixture
def spied(tmp_path: Path) -> tuple[Path, Path]:
    """Return a folder of extensions that is on the path, and one that is not, both with ``spy``."""
    folders = tmp_path / "path", tmp_path / "current"
    for folder in folders:
        folder.mkdir()
        (folder / "spy.py").write_text(SPY)
    return folders


def test_an_agent_imports_what_its_owner_lists(
    tmp_path: Path, parts: list[GraphPartition], spied: tuple[Path, Path]
) -> None:
    path, _ = spied
    settings = {"allow-plugins": ["spy:loss"]}
    environment = {"PYTHONPATH": str(path)}
    with agents(tmp_path / "made", parts, settings=settings, extra=environment) as (agent,):
        refused(agent, "loss: 'spy:other' may not be imported here; .*(spy:loss)", loss="spy:other")
        refused(agent, "model: 'spy:loss' may not|model: ", model="os:fork")
        assert not (path / "imported").exists()
        ask(agent, loss="spy:loss").ask(HelloRequest(ticket=TICKET))
        assert (path / "imported").exists()


def test_nothing_is_imported_from_where_an_agent_was_started(
    tmp_path: Path, parts: list[GraphPartition], spied: tuple[Path, Path]
) -> None:
    _, current = spied
    settings = {"allow-plugins": ["spy:loss"]}
    with agents(tmp_path / "made", parts, settings=settings, start=False) as (agent,):
        agent.program = ["env", "-C", str(current), program("retexo")]
        agent.start()
        with pytest.raises(RetexoError, match="loss 'spy:loss': cannot import 'spy'"):
            ask(agent, loss="spy:loss").ask(HelloRequest(ticket=TICKET))
        assert agent.status()["jobs"] == []
    assert not (current / "imported").exists()
    # The module is one that this interpreter imports, where it lies on the path.
    subprocess.run([sys.executable, "-c", "import spy"], cwd=current, check=True, timeout=500)
    assert (current / "imported").exists()


def test_an_owner_who_allows_less_ends_what_had_begun(
    tmp_path: Path, parts: list[GraphPartition]
) -> None:
    settings = {"allow-algorithms": ["lazy", "central"]}
    with agents(tmp_path / "made", parts, settings=settings) as (agent,):
        ask(agent, algorithm="central").ask(HelloRequest(ticket=TICKET))
        assert agent.stop() == 0
        text = agent.settings.read_text()
        agent.settings.write_text(text.replace(', "central"', ""))
        agent.start()
        assert agent.status()["jobs"] == []
        assert "client 0: algorithm: 'central'; expected" in agent.log


def test_a_round_gives_one_update_however_often_it_is_asked(
    tmp_path: Path, parts: list[GraphPartition]
) -> None:
    with agents(tmp_path / "made", parts, settings={"most-rounds": 2}) as (agent,):
        client = ask(agent)
        client.ask(HelloRequest(ticket=TICKET))
        client.ask(PublishRequest(ticket=TICKET))
        assert client.ask(CollectRequest(ticket=TICKET, wait_s=20.0)).complete
        shape = ModelShape.of(make_config(KEYS), inputs=64, classes=10)
        weights = Schedule(shape=shape).initial(0, seed=0)

        def update(number: int, fill: float) -> np.ndarray:
            made = weights + np.float32(fill)
            answer = client.ask(TrainRequest(ticket=replace(TICKET, round=number), weights=made))
            return answer.update_sum

        first = update(1, 0)
        np.testing.assert_array_equal(update(1, 0), first)
        with pytest.raises(LocalProtocolError, match="^train.layer 1/0/1: this or a later sum was"):
            update(1, 1)
        update(2, 1)
        with pytest.raises(LocalProtocolError, match="^client 0: stage 0: asked for more than 2"):
            update(3, 2)


def test_a_part_answers_so_many_questions_in_all_trainings_together(
    tmp_path: Path, parts: list[GraphPartition]
) -> None:
    """Whatever they are called, and also if the agent is killed; its owner reads which."""

    def update(job: str, number: int) -> None:
        ticket = replace(TICKET, job=job)
        client = ask(made)
        client.ask(HelloRequest(ticket=ticket))
        client.ask(PublishRequest(ticket=ticket))
        assert client.ask(CollectRequest(ticket=ticket, wait_s=20.0)).complete
        shape = ModelShape.of(make_config(KEYS), inputs=64, classes=10)
        weights = Schedule(shape=shape).initial(0, seed=0) + np.float32(number)
        client.ask(TrainRequest(ticket=replace(ticket, round=number + 1), weights=weights))

    with agents(tmp_path / "made", parts, settings={"most-questions": 3}) as (made,):
        update("job-00000000000a", 0)
        update("job-00000000000b", 0)
        made.kill()
        made.start()
        # The same question as before has the same answer.
        update("job-00000000000b", 0)
        update("job-00000000000b", 1)
        for job in ("job-00000000000b", "job-00000000000c"):
            with pytest.raises(
                LocalProtocolError, match="^client 0: its part has answered 3 quest"
            ):
                update(job, 2)
        assert made.status()["questions"] == {"answered": 3, "most": 3}
        assert made.stop() == 0
        done = retexo("agent", "status", "--questions", "--config", str(made.settings))
        assert done.stdout.startswith("3 of at most 3 questions answered, about part ")
        rows = [row.split() for row in done.stdout.splitlines()[3:]]
        assert [(row[0], row[1], row[-1]) for row in rows] == [
            ("job-00000000000a", "train", "1"),
            ("job-00000000000b", "train", "2"),
        ]
        # Another owner's file may say less than was asked: nothing more is answered.
        text = made.settings.read_text()
        made.settings.write_text(text.replace("most-questions = 3", "most-questions = 2"))
        made.start()
        with pytest.raises(LocalProtocolError, match="^client 0: its part has answered 3 quest"):
            update("job-00000000000b", 3)


def test_mini_batches_of_one_node_that_tell_rows_are_refused(
    tmp_path: Path, parts: list[GraphPartition]
) -> None:
    allowed = {"allow-algorithms": ["lazy", "central"]}
    keys: dict[str, Any] = {"algorithm": "central", "sampler": "full", "layers": 1, "dropout": 0.0}
    with agents(tmp_path / "made", parts, settings=allowed) as (agent,):
        refused(agent, "batch-nodes: 1 leaves a mini-batch of 1 out of", **keys, batch_nodes=1)
        ask(agent, **keys, batch_nodes=len(parts[0].train_mask)).ask(HelloRequest(ticket=TICKET))
        facts = json.loads((agent.state / "jobs" / TICKET.job / "job.json").read_bytes())
        assert facts["config"]["batch-nodes"] > 1
