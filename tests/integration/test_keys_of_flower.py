"""`flwr run` by hand trains as `retexo run`: a profile decides what was left at its default."""

from __future__ import annotations

import re
import secrets
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.proto.task_pb2 import Task
from flwr.server.superlink.linkstate import InMemoryLinkState, LinkStateFactory
from flwr.server.superlink.linkstate.in_memory_linkstate import RunRecord
from flwr.supercore.constant import NOOP_FEDERATION_ID
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import InMemoryGrid

import retexo_fl
from retexo_fl.config import Scalar, default_values
from retexo_fl.errors import ConfigurationError
from retexo_fl.federation import make_server_app
from tests.support.runs import model_bytes, result_of
from tests.support.workers import TwoWorkers, run_app

#: A basis is chosen from its counts, and its keys differ from those of the paper's schedule.
GRAPH: Mapping[str, Any] = {
    "dataset": "synthetic:nodes=150,edges=600,classes=3,features=40,words=6,signal=0.5",
    "clients": 3,
    "hidden": 8,
    "split": "random:0.4/0.3/0.3",
}


def by_flower(out: Path, **keys: Any) -> Path:
    """Train with the run configuration that Flower makes of the app's own and these."""
    given = {name.replace("_", "-"): value for name, value in keys.items()}
    values: dict[str, Scalar] = {**default_values(), "profile": "", **given}
    values |= {} if values["resume"] else {"out": str(out)}
    run_app(make_server_app(), values, TwoWorkers(), scratch=Path(f"{out}-scratch"))
    return out


@pytest.mark.parametrize("profile", ["", "retexo", "one-shot"])
def test_keys_that_were_left_are_those_of_a_run(tmp_path: Path, profile: str) -> None:
    keys: dict[str, Any] = {**GRAPH, "model": "gcn"}
    if profile == "retexo":
        keys["rounds"] = 3
    of_run = retexo_fl.run(out=tmp_path / "run", profile=profile or None, **keys)
    flower = by_flower(tmp_path / "flower", profile=profile, **keys)
    assert model_bytes(flower) == model_bytes(of_run.path)
    # Each message to a client names the profile, and what of it follows from the graph.
    payload, of_keys = (
        result_of(run)["bytes"]["payload"]["total"] for run in (flower, of_run.path)
    )
    assert 0 <= payload - of_keys < 0.1 * of_keys
    told = result_of(flower)["profile"]
    assert told["name"] == (profile or "lean")
    assert told["why"] == ("as asked" if profile else "by default")


def test_a_key_that_leaves_the_default_says_so(tmp_path: Path) -> None:
    flower = by_flower(tmp_path / "flower", optimizer="adam", learning_rate=0.02, rounds=2, **GRAPH)
    profile = result_of(flower)["profile"]
    assert (profile["name"], profile["why"]) == ("retexo", "since learning-rate = 0.02 was chosen")


def test_a_profile_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="^profile: got 'fast'; expected one of"):
        by_flower(tmp_path / "flower", profile="fast", **GRAPH)
    assert not (tmp_path / "flower").exists()


def test_a_run_that_was_interrupted_goes_on_as_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = by_flower(tmp_path / "whole", model="gcn", **GRAPH)
    answered = TwoWorkers.__call__
    left = [60]

    def interrupted(self: TwoWorkers, message: Message, context: Context) -> Message:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return answered(self, message, context)

    monkeypatch.setattr(TwoWorkers, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        by_flower(tmp_path / "cut", model="gcn", checkpoint_every=1, **GRAPH)
    monkeypatch.undo()
    again = {"model": "gcn", "resume": str(tmp_path / "cut")}
    assert not (tmp_path / "cut" / "result.json").exists()
    with pytest.raises(ConfigurationError, match="^hidden: 16, but the run in"):
        by_flower(tmp_path / "cut", **again, **{**GRAPH, "hidden": 16})
    # As a reader of the page types it: the error has what is to be typed.
    with pytest.raises(
        ConfigurationError, match="^resume: Flower's clients do not know"
    ) as refused:
        by_flower(tmp_path / "cut", resume=str(tmp_path / "cut"))
    (typed,) = re.findall(r"-c '(.*)'$", str(refused.value))
    repeated = tomllib.loads("\n".join(re.findall(r'[\w-]+=(?:"[^"]*"|\S+)', typed)))
    assert repeated == {"model": "gcn", **GRAPH, "resume": str(tmp_path / "cut")}
    by_flower(tmp_path / "cut", **again, **GRAPH)
    assert model_bytes(tmp_path / "cut") == model_bytes(whole)
    assert result_of(tmp_path / "cut")["profile"] == result_of(whole)["profile"]


@pytest.mark.parametrize("nodes", [2, 5])
def test_a_simulation_of_another_number_of_nodes_is_refused(tmp_path: Path, nodes: int) -> None:
    links = LinkStateFactory(":flwr-in-memory:", NoOpFederationManager(), ObjectStoreFactory())
    grid = InMemoryGrid(links)
    run = Run.create_empty(1)
    run.primary_task_id, run.federation_id = 2, NOOP_FEDERATION_ID
    state = links.state()
    assert isinstance(state, InMemoryLinkState)
    state.run_ids[1] = RunRecord(run=run)
    state.task_store[2] = Task(task_id=2, run_id=1)
    grid.set_run(run)
    for _ in range(nodes):
        node = state.create_node("owner", "account", secrets.token_bytes(32), 1e9)
        state.acknowledge_node_heartbeat(node, 1e9)
    values = {**default_values(), "profile": "", "clients": 3, "out": str(tmp_path / "run")}
    context = Context(1, 0, {}, RecordDict(), values)
    said = f"^clients: 3, but Flower simulates {nodes} SuperNodes; expected as many: --federation"
    with pytest.raises(ConfigurationError, match=said):
        make_server_app()(grid, context)
    assert not (tmp_path / "run").exists()
