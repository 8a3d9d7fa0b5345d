"""A deployment trains by the keys that a run on one machine has, with the graph elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import retexo_fl
from retexo_fl.agent.remote import RemoteClient
from retexo_fl.api.settling import Asked, settled
from retexo_fl.client.api import HelloAnswer, HelloRequest, Ticket
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import DATA_PATH_KEYS, config_values, free_keys, make_config
from retexo_fl.errors import ConfigurationError
from retexo_fl.run_log.result import Result
from tests.support.agents import agents, train_with
from tests.support.runs import model_bytes
from tests.support.typed_graphs import BANK

#: Sums over neighbours are fitted to it, and a cover.
DENSE = "synthetic:nodes=200,edges=3100,classes=3,features=24,words=9,signal=0.5"
#: Few coordinates, of few bits, and rows.
FEW = "synthetic:nodes=160,edges=400,classes=3,features=300,words=9,signal=0.5"
TINY: dict[str, Any] = {"hidden": 8, "rounds": 3, "split": "random:0.3/0.3/0.4"}
OPEN = {"least-train-nodes": 1}
SUMS = ("none", "masked")


def asked_for(path: Path, graph: str, **keys: Any) -> Asked:
    """Return what the command line would ask of a SuperLink."""
    values = {"dataset": graph, "out": str(path), "engine": "deployment", **TINY, **keys}
    return Asked(values={key.replace("_", "-"): value for key, value in values.items()}).of_run()


def deployed(
    tmp_path: Path, graph: str, settings: dict[str, object] | None = None, **keys: Any
) -> retexo_fl.Run:
    """Train with real agents."""
    asked = asked_for(tmp_path / "deployed", graph, **keys)
    config = settled(asked)
    parts = make_parts(make_config({**config_values(config), "engine": "inline"}))
    with agents(tmp_path / "machines", parts, settings=OPEN | (settings or {})) as machines:
        return retexo_fl.Run.open(train_with(machines, config, asked=asked))


def here(tmp_path: Path, graph: str, **keys: Any) -> retexo_fl.Run:
    """Train in this process."""
    return retexo_fl.run(dataset=graph, out=tmp_path / "here", quiet=True, **TINY, **keys)


def of_training(run: retexo_fl.Run) -> dict[str, object]:
    values = config_values(run.config)
    return {key: value for key, value in values.items() if key not in free_keys()}


def sentence(result: Result) -> str:
    assert result.profile is not None
    return result.profile.sentence


@pytest.mark.parametrize(
    ("graph", "keys"),
    [
        (DENSE, {"clients": 2, "model": "gcn", "floor": "one-shot"}),
        pytest.param(FEW, {"clients": 3, "model": "sage"}, marks=pytest.mark.slow),
        pytest.param(
            FEW,
            {"clients": 3, "model": "gcn", "secure_aggregation": "masked"},
            marks=pytest.mark.slow,
        ),
        (DENSE, {"clients": 3, "secure_aggregation": "masked", "basis_blocks": 2}),
        (FEW, {"clients": 3, "local_steps": 2, "secure_aggregation": "masked"}),
    ],
)
@pytest.mark.each_choice
def test_a_deployment_has_the_keys_and_bits_of_a_run_here(
    tmp_path: Path, graph: str, keys: dict[str, Any]
) -> None:
    far, near = deployed(tmp_path, graph, **keys), here(tmp_path, graph, **keys)
    assert of_training(far) == of_training(near)
    assert far.config.basis_rows == "sums"
    assert model_bytes(far.path) == model_bytes(near.path)
    assert sentence(far.result) == sentence(near.result)
    assert ("no floor, since" in sentence(near.result)) == ("floor" in keys)
    assert far.result.test_accuracy == near.result.test_accuracy
    crossed = [run.result.volumes["payload"]["boundary"] for run in (far, near)]
    assert crossed[0] == crossed[1]


@pytest.mark.system
@pytest.mark.parametrize(
    ("more", "settings"),
    [
        pytest.param({}, {"most-rows": "none"}, marks=pytest.mark.slow),
        pytest.param({"second_rows": "class"}, {"most-rows": "class"}, marks=pytest.mark.slow),
        # Noise that never changes a class: what is drawn differs from run to run.
        ({"row_dp": 100.0}, {"most-rows": "none", "max-row-epsilon": 100.0}),
    ],
)
def test_owners_who_insist_on_rows_that_tell_few_links_train_the_bits_of_a_run_here(
    tmp_path: Path, more: dict[str, Any], settings: dict[str, object]
) -> None:
    keys: dict[str, Any] = {"clients": 3, "model": "gcn", "secure_aggregation": "masked"}
    keys |= {"second_rows": "none", **more}
    far, near = (
        deployed(tmp_path, DENSE, settings, **keys),
        here(tmp_path, DENSE, **keys),
    )
    assert of_training(far) == of_training(near)
    assert far.config.basis_rows == "own"
    assert model_bytes(far.path) == model_bytes(near.path)
    assert sentence(far.result) == sentence(near.result)
    assert f"no basis of sums, since second-rows {keys['second_rows']} keeps" in sentence(
        near.result
    )
    crossed = [run.result.volumes["payload"]["boundary"] for run in (far, near)]
    assert crossed[0] == crossed[1]
    assert crossed[0]
    told = [path.read_text() for path in tmp_path.glob("machines/**/row-epsilon.jsonl")]
    assert [text.count('"epsilon"') for text in told] == [1] * (3 if "row_dp" in more else 0)


@pytest.mark.system
def test_a_plan_that_was_settled_is_what_clients_follow(tmp_path: Path) -> None:
    graph = "synthetic:nodes=120,edges=400,classes=3,features=40,homophily=0.9"
    run = deployed(tmp_path, graph, clients=3, model="sage")
    assert run.config.boundary_plan == "cover"
    assert model_bytes(run.path) == model_bytes(here(tmp_path, graph, clients=3, model="sage").path)


@pytest.mark.system
@pytest.mark.parametrize(
    ("profile", "sums", "model"),
    [
        *((profile, sums, "rel-sage") for profile in ("lean", "retexo") for sums in SUMS),
        ("lean", "none", "rel-gat"),
    ],
)
@pytest.mark.each_choice
def test_typed_graphs_are_trained_by_agents_as_here(
    tmp_path: Path, profile: str, sums: str, model: str
) -> None:
    keys: dict[str, Any] = {**BANK, "clients": 3, "hidden": 8, "rounds": 3, "profile": profile}
    keys |= {"secure_aggregation": sums, "model": model}
    near = retexo_fl.run(out=tmp_path / "here", quiet=True, **keys)
    values = {key.replace("_", "-"): value for key, value in keys.items() if key != "profile"}
    values |= {"out": str(tmp_path / "deployed"), "engine": "deployment"}
    asked = Asked(values=values, profile=profile).of_run()
    config = settled(asked)
    parts = make_parts(make_config({**config_values(config), "engine": "inline"}))
    with agents(tmp_path / "machines", parts, settings=OPEN) as machines:
        far = retexo_fl.Run.open(train_with(machines, config, asked=asked))
    assert of_training(far) == of_training(near)
    assert model_bytes(far.path) == model_bytes(near.path)
    assert far.result.test_accuracy == near.result.test_accuracy
    crossed = [run.result.volumes["payload"]["boundary"] for run in (far, near)]
    assert crossed[0] == crossed[1]
    assert crossed[0]


def test_a_client_that_does_not_tell_leaves_the_profile_as_it_is(tmp_path: Path) -> None:
    run = deployed(tmp_path, DENSE, {"tell-sizes": False}, clients=2)
    assert (run.config.optimizer, run.config.basis_rows) == ("lbfgs", "own")
    told = "profile lean, by default: as it is, since 2 clients do not tell its graph's size"
    assert sentence(run.result) == told


def test_keys_are_settled_before_anything_is_asked_and_never_again(tmp_path: Path) -> None:
    asked = asked_for(tmp_path / "deployed", FEW, clients=2)
    config = settled(asked)
    parts = make_parts(make_config({**config_values(config), "engine": "inline"}))
    with agents(tmp_path / "machines", parts, settings=OPEN) as machines:
        run = retexo_fl.Run.open(train_with(machines, config, asked=asked))
        noted = [
            json.loads(path.read_text())
            for machine in machines
            for path in machine.state.glob("jobs/*/job.json")
        ]
    assert len(noted) == 2
    for job in noted:
        assert "open" not in job
        assert job["config"]["basis-blocks"] == run.config.basis_blocks == 3


def test_an_agent_takes_settled_keys_once_and_no_others(tmp_path: Path) -> None:
    config = settled(asked_for(tmp_path / "deployed", FEW, clients=2))
    values = {**config_values(config), **dict.fromkeys(DATA_PATH_KEYS, "")}
    parts = make_parts(make_config({**config_values(config), "engine": "inline"}))
    hello = HelloRequest(ticket=Ticket(job="job-0123456789ab", attempt=1), sizes=True)
    with agents(tmp_path / "machines", parts, settings=OPEN) as (one, _):

        def ask(**keys: Any) -> HelloAnswer:
            asked = {key.replace("_", "-"): value for key, value in keys.items()}
            return RemoteClient(one.socket, {**values, **asked}).ask(hello)

        assert sum(ask().sizes) > 0
        for keys in ({"seed": 1}, {"secure_aggregation": "none", "hidden": 16}):
            with pytest.raises(ConfigurationError, match=f"{[*keys][-1]}: got"):
                ask(**keys)
        with pytest.raises(ConfigurationError, match=r"rounds: .*most-rounds"):
            ask(rounds=10**6)
        assert ask(basis_blocks=3).vectors_out == ask(basis_blocks=3).vectors_out
        for other in ({"basis_blocks": 4}, {}):
            with pytest.raises(ConfigurationError, match="basis-blocks: got"):
                ask(**other)
