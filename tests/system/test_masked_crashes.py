"""Masked trainings whose agents, or server, are killed at every step: the same model."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from retexo_fl.agent.remote import RemoteClient
from retexo_fl.api.plan_exchanges import PlannedParts
from retexo_fl.api.plan_facts import plan_facts
from retexo_fl.channels.federation import Federation
from retexo_fl.client.api import (
    HelloRequest,
    KeysRequest,
    LabelsRequest,
    MaskedAnswer,
    Ticket,
)
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import config_values, make_config
from retexo_fl.errors import SecureAggregationRefused, StaleAttempt
from retexo_fl.federation.rounds import mask_keys
from retexo_fl.ledger import TrafficLedger
from retexo_fl.masking.agreement import Agreement
from retexo_fl.run_log.events import RoundClosed
from retexo_fl.units import clients_named
from tests.support.agents import ROSTER, AgentProcess, agents, train_with
from tests.support.commands import ROOT, program, run_command
from tests.support.fickle_training import train_on_fickle_grid
from tests.support.limits import PERMISSIVE
from tests.support.masked_training import away_in
from tests.support.runs import (
    configured,
    crossed,
    curves_of,
    events_of,
    ledger_of,
    model_bytes,
    result_of,
    train,
)
from tests.support.thread_grid import ThreadGrid

pytestmark = [pytest.mark.system]

KEYS: dict[str, Any] = {
    **{"clients": 3, "layers": 1, "hidden": 4, "rounds": 2, "model": "gcn"},
    "secure_aggregation": "masked",
}
#: The same of every kind of sum that training asks for.
LEAN: dict[str, Any] = {
    **{**KEYS, "layers": 2, "basis": "supervised", "basis_rows": "sums", "basis_blocks": 2},
    **{"update_bits": 8, "weight_bits": 8},
}
#: Where clients wait for each other within a round.
TOGETHER: dict[str, dict[str, Any]] = {
    "standard": {**KEYS, "layers": 2, "algorithm": "standard"},
    "bns": {**KEYS, "layers": 2, "algorithm": "bns", "boundary_rate": 0.5, "clients": 6},
}
TOGETHER["bns"] |= {"cohort_size": 3, "update_bits": 8, "weight_bits": 8}
#: What an agent may be killed at, in order; of labels, rounds and the rest, only once each.
STEPS = tuple(
    f"{message} {step}"
    for message in (
        "hello",
        "keys",
        "counts",
        "labels",
        "publish",
        "collect",
        "basis",
        "train_layer",
        "evaluate_layer",
        "end",
    )
    for step in ("begins", "answered")
)


@pytest.mark.parametrize(
    "keys",
    [
        # What it does is a part of what lean does, and rounds that exchange are those of bns.
        pytest.param(KEYS, id="rounds", marks=pytest.mark.slow),
        pytest.param(LEAN, id="lean"),
        *(
            pytest.param(keys, id=name, marks=[pytest.mark.slow] if name == "standard" else [])
            for name, keys in TOGETHER.items()
        ),
    ],
)
def test_an_agent_killed_at_every_step_answers_as_if_it_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any]
) -> None:
    steps = [step for step in STEPS if keys is LEAN or not step.startswith("basis ")]
    parts = make_parts(make_config(_kebab(keys)))
    terms = {"cohort_size": keys["cohort_size"]} if "cohort_size" in keys else {}
    folder = tmp_path / "agents"
    with agents(folder, parts, start=False, settings=PERMISSIVE, **terms) as made:
        made[1].before = ("dying_agent:run",)
        left = made[1].folder / "steps"
        left.write_text("\n".join(steps))
        for agent in made:
            agent.start()
        run = train_with(made, configured(tmp_path / "run", **keys))
        assert left.read_text() == ""
        # The last time the job was over.
        assert made[1].log.count(" restored job=") == len(steps) - 1
        assert not [path for agent in made for path in agent.state.glob("jobs/*/store")]
    with_cohorts_of(folder, monkeypatch)
    whole = train(tmp_path / "whole", **keys)
    assert model_bytes(run) == model_bytes(whole)
    assert curves_of(run) == curves_of(whole)
    told, expected = result_of(run), result_of(whole)
    assert told["test_accuracy"] == expected["test_accuracy"]
    assert crossed(run) == crossed(whole) != {}
    assert told.get("warnings") == expected.get("warnings")
    if keys is TOGETHER["standard"]:
        # Nor have the others entered blocks twice that were needed again.
        plain = ledger_of(train(tmp_path / "plain", **{**keys, "secure_aggregation": "none"}))
        for agent in (made[0], made[2]):
            (book,) = (agent.state / "traffic").glob("*.csv")
            entered = TrafficLedger.from_csv(book.read_text().splitlines())
            for wanted in ({"purpose": "train"}, {"purpose": "evaluate"}):
                blocks = entered.sum(kind="boundary", direction="out", **wanted).messages
                sent = plain.sum(kind="boundary", direction="out", client=agent.client, **wanted)
                assert blocks == sent.messages > 0
    if keys is KEYS:
        # Twice its cohort answered the first of two rounds in vain.
        payload, plain = told["bytes"]["payload"], expected["bytes"]["payload"]
        assert payload["updates_up"] * 6 == plain["updates_up"] * (6 + 2 * 2)


def agreement_in(folder: Path) -> Agreement:
    federation = Federation.read(folder / ROSTER)
    assert federation is not None
    return federation.agreement


def with_cohorts_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have simulations add up the cohorts that the owners of agents agreed on."""
    agreement = agreement_in(folder)
    monkeypatch.setattr(mask_keys, "simulated_agreement", lambda config, roles: agreement)


def test_agents_sign_their_keys_and_nothing_is_sent_twice(tmp_path: Path) -> None:
    parts = make_parts(make_config(_kebab(KEYS)))
    with agents(tmp_path / "agents", parts, settings=PERMISSIVE) as made:
        run = train_with(made, configured(tmp_path / "run", **KEYS))
    told, expected = result_of(run), result_of(train(tmp_path / "whole", **KEYS))
    payload, plain = told["bytes"]["payload"], expected["bytes"]["payload"]
    assert payload["updates_up"] == plain["updates_up"]
    predicted = plan_facts(make_config(_kebab(KEYS)), PlannedParts(parts))["masked"]
    assert payload["masks"] == plain["masks"] + predicted["signatures"]


def test_cohorts_whose_agents_began_anew_are_missing_as_in_a_simulation_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keys: dict[str, Any] = {
        **{**KEYS, "clients": 6, "layers": 2, "rounds": 6, "cohort_size": 3},
        **{"min_clients": 3, "round_deadline_s": 60.0},
    }
    parts = make_parts(make_config(_kebab(keys)))
    folder = tmp_path / "agents"
    with agents(folder, parts, settings=PERMISSIVE, cohort_size=3) as made:
        cohorts = agreement_in(folder).cohorts
        # By stage and round, who begins anew before it.
        gone = {(0, 4): cohorts[0].members[1], (1, 3): cohorts[1].members[2]}

        def begin_anew(event: object) -> None:
            # A round is told of when the next one is over.
            if isinstance(event, RoundClosed) and (place := (event.stage, event.round + 2)) in gone:
                made[gone[place]].kill()
                made[gone[place]].start()

        run = train_with(made, configured(tmp_path / "run", **keys), [begin_anew])
    said = [r.getMessage() for r in caplog.records if "has no masking keys" in r.getMessage()]
    assert said == [
        f"train.layer, stage {stage}, round {number}: client {client} began anew and has no "
        f"masking keys; its cohort ({clients_named(cohort.members)}) is missing in this sum"
        for ((stage, number), client), cohort in zip(gone.items(), cohorts, strict=True)
    ]
    rounds = [event for event in events_of(run) if event["event"] == "round"]
    absent = {(e["stage"], e["round"]): e["absent"] for e in rounds if "absent" in e}
    assert absent == {p: [*c.members] for p, c in zip(gone, cohorts, strict=True)}

    with_cohorts_of(folder, monkeypatch)
    alike = tmp_path / "alike"
    train_on_fickle_grid(configured(alike, **keys), parts, away_in(gone))
    assert model_bytes(run) == model_bytes(alike)
    assert curves_of(run) == curves_of(alike)
    told, expected = result_of(run), result_of(alike)
    assert told["test_accuracy"] == expected["test_accuracy"] > 0
    assert (told["stages"], told["absences"]) == (expected["stages"], expected["absences"])
    moved = [
        {a: v for a, v in ledger_of(of).lines() if a.kind not in {"masks", "control"}} | crossed(of)
        for of in (run, alike)
    ]
    assert moved[0] == moved[1] != {}


def test_an_agent_that_is_gone_is_waited_for_by_its_cohort(tmp_path: Path) -> None:
    """Who else has answered is not enough: without one of them masks do not cancel."""
    keys: dict[str, Any] = {
        **{**KEYS, "clients": 4, "rounds": 4, "min_clients": 3, "round_deadline_s": 0.5},
    }
    parts = make_parts(make_config(_kebab(keys)))
    with agents(tmp_path / "agents", parts, settings=PERMISSIVE) as made:

        def end_and_begin(event: object) -> None:
            if isinstance(event, RoundClosed) and event.round == 2:
                made[3].kill()
                Timer(3.0, made[3].start).start()

        run = train_with(made, configured(tmp_path / "run", **keys), [end_and_begin])
    rounds = [event for event in events_of(run) if event["event"] == "round"]
    assert not any(event.get("absent") for event in rounds)
    assert rounds[2]["waited_s"] > 1.0
    assert model_bytes(run) == model_bytes(train(tmp_path / "whole", **keys))


def test_a_server_killed_at_every_question_resumes_with_new_keys(tmp_path: Path) -> None:
    command = "from tests.system.test_masked_crashes import main; main()"
    found = subprocess.run(
        [sys.executable, "-c", command, str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=500,
        cwd=ROOT,
    )
    assert found.returncode == 0, found.stderr
    deaths = json.loads(found.stdout.splitlines()[-1])
    assert deaths == [
        *("query.hello 0", "query.keys 0", "query.counts 0", "query.labels 0"),
        *("query.publish 0", "query.collect 0", "train.layer 1"),
        "train.layer 2",
        # Validation of the last weights, and the test.
        *("evaluate.layer 2", "query.end 0"),
    ]


def kill_a_server_at_every_question(folder: Path) -> list[str]:
    """Kill and resume until nothing new is asked; return where it was killed."""
    keys, deaths = KEYS, folder / "deaths"
    deaths.touch()
    parts = make_parts(make_config(_kebab(keys)))
    attempts = 0
    with agents(folder / "agents", parts, settings=PERMISSIVE) as made:
        run = folder / "run"
        while True:
            # What was killed before its first checkpoint begins anew.
            again = {"resume": run} if (run / "checkpoint.safetensors").exists() else {}
            run = run if again else folder / f"run-{attempts}"
            status = _in_child(partial(_dying_server, made, deaths, run, keys | again))
            attempts += 1
            if not os.WIFSIGNALED(status):
                assert status == 0
                break
    whole = folder / "whole"
    assert _in_child(lambda: train(whole, **keys)) == 0
    assert model_bytes(run) == model_bytes(whole)
    assert curves_of(run) == curves_of(whole)
    found = deaths.read_text().splitlines()
    assert len(found) == attempts - 1
    return found


def _dying_server(made: list[AgentProcess], deaths: Path, run: Path, keys: dict[str, Any]) -> None:
    """Train, and be killed after a question was sent at whose place nobody was killed before."""
    push = ThreadGrid.push_messages

    def watched(self: ThreadGrid, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        names = list(push(self, sent))
        kind, group = sent[0].metadata.message_type, sent[0].metadata.group_id
        place = f"{kind} {group.rpartition('.')[2]}"
        if place not in deaths.read_text().splitlines():
            with deaths.open("a") as file:
                file.write(f"{place}\n")
            # Some have answered by then, others have not.
            time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)
        return names

    ThreadGrid.push_messages = watched  # type: ignore[method-assign]
    train_with(made, configured(run, **keys))


def _in_child(task: Callable[[], object]) -> int:
    """Run a task in a fork of this process, which has loaded everything; return its status."""
    process = os.fork()
    if process == 0:
        code = 1
        try:
            task()
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitpid(process, 0)[1]


def main() -> None:
    """Kill the server of a training in the folder that the command line names."""
    # In this process nothing of ours has a thread, so that it may be forked.
    import retexo_fl.client.factory
    import retexo_fl.simulation.inline_engine  # noqa: F401

    print(json.dumps(kill_a_server_at_every_question(Path(sys.argv[1]))))  # noqa: T201


def test_an_agent_answers_again_with_the_same_bytes_or_by_other_keys(tmp_path: Path) -> None:
    keys = _kebab({**KEYS, "engine": "deployment"})
    parts = make_parts(make_config(_kebab(KEYS)))
    with agents(tmp_path / "agents", parts, settings=PERMISSIVE) as made:
        asked = [RemoteClient(agent.socket, config_values(make_config(keys))) for agent in made]
        ticket = Ticket(job="job-0123456789ab", attempt=1)

        def meet(attempt: int) -> None:
            now = replace(ticket, attempt=attempt)
            hellos = [client.ask(HelloRequest(ticket=now)) for client in asked]
            request = KeysRequest(
                ticket=now,
                agreement=Agreement.parse(hellos[0].agreement or b"").digest,
                cohort=(0, 1, 2),
                uses="test train",
                keys=np.frombuffer(b"".join(h.mask_key or b"" for h in hellos), np.uint8),
                signatures=b"".join(h.mask_signature or b"" for h in hellos),
            )
            assert len({client.ask(request).digest for client in asked}) == 1

        def count(attempt: int, number: int) -> MaskedAnswer:
            now = replace(ticket, attempt=attempt, round=number)
            answer: Any = asked[0].ask(LabelsRequest(ticket=now))
            assert isinstance(answer, MaskedAnswer)
            return answer

        meet(1)
        first = count(1, 1)
        kept = tmp_path / "kept"
        shutil.copytree(made[0].state, kept)
        assert count(1, 1).beside == first.beside
        second = count(1, 2)
        assert second.beside != first.beside
        with pytest.raises(SecureAggregationRefused, match="this or a later sum was answered"):
            count(1, 1)
        for _ in range(2):
            made[0].kill()
            made[0].start()
            for number in (1, 2, 3):
                assert count(1, number).lacks_keys
        # Its new key is believed: it is of a later start. Nothing is masked as before, and what it
        # refused before it refuses still.
        meet(1)
        with pytest.raises(SecureAggregationRefused, match="this or a later sum was answered"):
            count(1, 1)
        third = count(1, 2)
        assert third.beside not in {first.beside, second.beside}
        # A disk that is put back has no keys, and the others notice.
        made[0].kill()
        shutil.rmtree(made[0].state)
        shutil.copytree(kept, made[0].state)
        made[0].start()
        assert count(1, 1).lacks_keys
        with pytest.raises(
            SecureAggregationRefused, match="^client 1: the masking key of client 0 tells of start "
        ):
            meet(1)
        for agent in made[1:]:
            reset = ["agent", "reset-counter", "0", "--config", str(agent.settings)]
            run_command([program("retexo"), *reset], cwd=tmp_path)
        with pytest.raises(SecureAggregationRefused, match="another masking key of client 0 than"):
            meet(1)
        meet(2)
        assert count(2, 1).beside not in {first.beside, second.beside, third.beside}
        with pytest.raises(StaleAttempt, match="attempt 1 was superseded by attempt 2"):
            count(1, 3)


def _kebab(keys: dict[str, Any]) -> dict[str, Any]:
    return {key.replace("_", "-"): value for key, value in keys.items()}
