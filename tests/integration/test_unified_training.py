"""Mini-batches and devices in whole trainings: results, accounts, resumes, engines and agents."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import retexo_fl
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.run_log.events import Event, RoundClosed
from retexo_fl.simulation.flower_processes import descendants_of, process_table
from tests.support.agents import agents, assert_same_training, train_with
from tests.support.cli import CommandLine
from tests.support.limits import PERMISSIVE
from tests.support.nursery import Born
from tests.support.runs import (
    Interrupter,
    configured,
    events_of,
    largest_difference,
    ledger_of,
    model_bytes,
    result_of,
    train,
)

pytestmark = [pytest.mark.devices, pytest.mark.usefixtures("forked_workers")]

SAMPLERS = ("full", "neighbour", "shadow", "gns")
#: Of the built-in data set, 1,797 nodes; 359 of them to train on, in mini-batches of 100.
SMALL: dict[str, Any] = {
    "algorithm": "central",
    "clients": 1,
    "hidden": 8,
    "fanouts": "6/4",
    "batch_nodes": 100,
    "rounds": 6,
}
GAT: dict[str, Any] = {"clients": 2, "model": "gat", "hidden": 8, "heads": 2, "rounds": 2}


# ---- mini-batches --------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_mini_batches_learn(tmp_path: Path, sampler: str) -> None:
    run = train(
        tmp_path / "run",
        **{**SMALL, "hidden": 16, "rounds": 8},
        sampler=sampler,
        local_steps=4,
    )
    # Training on all rows at once comes to 0.95 with 40 rounds.
    assert result_of(run)["test_accuracy"] > 0.8


@pytest.mark.parametrize(("algorithm", "clients"), [("central", 1), ("drop", 3)])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.each_choice
def test_one_mini_batch_of_everything_trains_as_without_sampler(
    tmp_path: Path, algorithm: str, clients: int, steps: int
) -> None:
    keys = {
        **{**SMALL, "algorithm": algorithm, "clients": clients, "rounds": 3},
        **{"local_steps": steps, "dropout": 0.3, "dtype": "float64"},
    }
    whole = train(tmp_path / "whole", **keys)
    sampled = train(tmp_path / "sampled", **{**keys, "sampler": "full", "batch_nodes": 5000})
    assert largest_difference(whole, sampled) < 1e-9
    losses = [
        [event["loss"] for event in events_of(run) if event["event"] == "round"]
        for run in (whole, sampled)
    ]
    assert losses[1] == pytest.approx(losses[0])
    assert dict(ledger_of(sampled).lines()) == dict(ledger_of(whole).lines())


def test_sampling_moves_the_same_bytes(tmp_path: Path) -> None:
    keys = {**SMALL, "algorithm": "drop", "clients": 3}
    whole = train(tmp_path / "whole", **keys)
    sampled = train(tmp_path / "sampled", **{**keys, "sampler": "neighbour", "batch_nodes": 7})
    raw = [result_of(run)["bytes"]["raw"] for run in (whole, sampled)]
    assert raw[0] == raw[1]
    assert raw[0]["boundary"] == 0


def test_plans_and_predictions_know_such_runs(retexo: CommandLine) -> None:
    options = [word for k, v in SMALL.items() for word in (f"--{k.replace('_', '-')}", str(v))]
    options += ["--sampler", "shadow"]
    told = json.loads(retexo.done("plan", "--json", *options))
    planned = told["plans"]["rows"]["algorithms"]["central"]
    retexo.done("run", "--quiet", *options, "--out", "run")
    result = result_of(Path("run"))
    for kind in ("boundary", "updates_up", "weights_down"):
        assert planned[kind] == result["bytes"]["raw"][kind]
    retexo.done("partition", "make", "--clients", "1", "--out", "parts")
    predicted = retexo.done("predict", "run", "--partitions", "parts")
    # Over all neighbours, as the run's own test.
    assert f"test accuracy   {result['test_accuracy']:.4f} of " in predicted


# ---- resumes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["neighbour", "gns"])
def test_a_resumed_training_ends_with_the_undisturbed_bits(tmp_path: Path, sampler: str) -> None:
    keys = {**SMALL, "sampler": sampler, "local_steps": 3, "model": "gat", "dropout": 0.2}
    whole = train(tmp_path / "whole", **keys)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", Interrupter(5), **keys)
    train(tmp_path / "run", **keys, resume=tmp_path / "run")
    assert result_of(tmp_path / "run")["attempts"] == 2
    assert model_bytes(tmp_path / "run") == model_bytes(whole)


def test_a_resumed_training_may_have_other_devices(tmp_path: Path) -> None:
    keys = {**SMALL, "sampler": "neighbour", "dtype": "float64"}
    before = children()
    whole = train(tmp_path / "whole", **keys)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", Interrupter(4), **keys)
    shared = {**keys, "devices": "cpu:2", "balance": "equal"}
    train(tmp_path / "run", **shared, resume=tmp_path / "run")
    assert largest_difference(whole, tmp_path / "run") < 1e-9
    assert children() <= before


# ---- devices -------------------------------------------------------------------------------------


def test_a_lazy_training_on_two_workers_has_the_bits_of_one(tmp_path: Path) -> None:
    # What else its processes are told: by what is trained, and judged.
    keys = {**GAT, "clients": 1, "class_weights": "balanced", "metric": "macro-f1"}
    before = children()
    one = train(tmp_path / "one", **keys, devices="cpu:1")
    two = train(tmp_path / "two", **keys, devices="cpu:2")
    assert model_bytes(two) == model_bytes(one)
    said = (two / "devices.log").read_text().splitlines()
    assert [line.split(" ", 1)[1] for line in said if " devices " in line] == [
        'devices client=0 found="training on cpu:2"'
    ]
    alone = train(tmp_path / "alone", **keys)
    assert not (alone / "devices.log").exists()
    assert largest_difference(one, alone) < 1e-4
    assert dict(ledger_of(two).lines()) == dict(ledger_of(alone).lines())
    assert children() <= before


def children() -> set[int]:
    """Return this process's children that compute."""
    return set(workers_below(os.getpid()))


@pytest.mark.system
def test_an_agent_with_two_workers_trains_the_bits_of_one_worker(tmp_path: Path) -> None:
    """It is told by the run; another by its own settings, which win."""
    parts = make_parts(make_config({"clients": 2}))
    train(tmp_path / "inline", **GAT, devices="cpu:1")
    settings = {**PERMISSIVE, "allow-devices": "cpu:2"}
    with agents(tmp_path / "made", parts, settings=settings, start=False) as made:
        with made[1].settings.open("a") as file:
            file.write('devices = "cuda:200,cpu:1"\n')
        for agent in made:
            agent.start()
        train_with(made, configured(tmp_path / "agents", **GAT, devices="cpu:2"))
        compilers = [has_compiler(agent.process) for agent in made]
        assert compilers == [False, False]
        sampled = {"clients": 2, "hidden": 8, "rounds": 3, "algorithm": "drop", "dtype": "float64"}
        sampled |= {"sampler": "neighbour", "fanouts": "4/3", "batch_nodes": 50, "local_steps": 2}
        train_with(made, configured(tmp_path / "sampled", **sampled))
        assert has_compiler(made[0].process)
        logs = [agent.log for agent in made]
        left = [pid for agent in made for pid in workers_of(agent.process)]
    assert_same_training(tmp_path / "agents", tmp_path / "inline")
    train(tmp_path / "sampled-inline", **sampled)
    assert largest_difference(tmp_path / "sampled", tmp_path / "sampled-inline") < 1e-9
    assert 'devices client=0 found="training on cpu:2"' in logs[0]
    assert 'devices client=1 found="cuda:200 is not there (' in logs[1]
    assert '); training on cpu"' in logs[1]
    assert left == []


@pytest.mark.system
def test_workers_end_with_an_agent_that_is_killed(tmp_path: Path) -> None:
    parts = make_parts(make_config({"clients": 2}))
    keys = {**GAT, "rounds": 500, "devices": "cpu:2"}
    with agents(tmp_path / "made", parts, settings={"allow-devices": "cpu:2"}) as made:
        found: list[int] = []

        def kill(event: Event) -> None:
            if isinstance(event, RoundClosed) and not found:
                found.extend(workers_of(made[0].process))
                made[0].kill()
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train_with(made, configured(tmp_path / "agents", **keys), [kill])
        assert len(found) == 2
        deadline = time.monotonic() + 10
        while any(Path(f"/proc/{pid}/cmdline").exists() for pid in found):
            assert time.monotonic() < deadline, "workers outlive their agent"
            time.sleep(0.05)


def has_compiler(process: subprocess.Popen[bytes] | Born | None) -> bool:
    assert process is not None
    return "llvmlite" in Path(f"/proc/{process.pid}/maps").read_text()


def workers_of(process: subprocess.Popen[bytes] | Born | None) -> list[int]:
    assert process is not None
    return workers_below(process.pid)


def workers_below(pid: int) -> list[int]:
    """Return the workers of devices below a process, by the names that they give themselves."""
    return [child for child in descendants_of(process_table(), pid) if is_worker(child)]


def is_worker(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith("retexo cpu:")
    except OSError:
        # It has ended meanwhile.
        return False


@pytest.mark.system
@pytest.mark.slow
def test_mini_batches_on_workers_inside_of_rays(tmp_path: Path) -> None:
    """Flower's simulation comes to the sums of one process; its bits: system/test_engines.py."""
    keys: dict[str, Any] = {"clients": 2, "hidden": 8, "rounds": 3, "dtype": "float64"}
    keys |= {"algorithm": "drop", "sampler": "shadow", "batch_nodes": 50, "balance": "equal"}
    retexo_fl.run(out=tmp_path / "inline", devices="cpu:1", quiet=True, **keys)
    retexo_fl.run(out=tmp_path / "flower", devices="cpu:2", engine="flower", quiet=True, **keys)
    assert largest_difference(tmp_path / "inline", tmp_path / "flower") < 1e-9


@pytest.mark.system
def test_a_killed_training_goes_on_exactly_and_leaves_no_worker(tmp_path: Path) -> None:
    keys = {**SMALL, "sampler": "neighbour", "local_steps": 2, "rounds": 30}
    keys |= {"devices": "cpu:2", "balance": "equal"}
    run, whole = tmp_path / "run", tmp_path / "whole"
    retexo_fl.run(out=whole, quiet=True, **keys)
    options = [word for k, v in keys.items() for word in (f"--{k.replace('_', '-')}", str(v))]
    command = (sys.executable, "-m", "retexo_fl", "run", "--quiet")
    process = subprocess.Popen([*command, *options, "--out", run])
    try:
        deadline = time.monotonic() + 60
        metrics = run / "metrics.jsonl"
        while not metrics.exists() or metrics.read_bytes().count(b"\n") < 9:
            assert process.poll() is None, "the training ended before it was killed"
            assert time.monotonic() < deadline
            time.sleep(0.001)
        workers = workers_of(process)
        assert len(workers) == 2
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    retexo_fl.Run.open(run).resume(quiet=True)
    assert model_bytes(run) == model_bytes(whole)
    table = process_table()
    assert [pid for pid in workers if pid in table and not table[pid].dead] == []


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            "--sampler neighbour --fanouts 5/5",
            "sampler: 'neighbour' .*algorithm lazy.*; expected 'none'",
        ),
        (
            "--algorithm drop --sampler neighbour --layers 3",
            "fanouts: '15/10' has 2 .*3 layers; expected one per layer",
        ),
        (
            "--algorithm drop --devices cpu:2",
            "devices: 'cpu:2' .*algorithm drop .*sampler 'none'; expected 'cpu'",
        ),
        ("--devices cpu:0", "devices: got 'cpu:0'; expected auto, or one or more of cpu"),
        ("--devices cuda,cuda:0", "devices is 'cuda,cuda:0'; expected each GPU once"),
        ("--fanouts 0/1", "fanouts: got '0/1'; expected whole numbers from 1"),
        ("--batch-nodes 0", "batch-nodes: got 0; expected a whole number from 1"),
        ("--cache-share 2", "cache-share: got 2.0; expected a number above 0, at most 1"),
        ("--balance fair", "balance: got 'fair'; expected one of dynamic, static"),
        (
            "--algorithm drop --sampler gns --fanouts 5/5 --model sage-pool",
            "sampler: 'gns' .*sage-pool.*; expected another sampler",
        ),
    ],
)
def test_what_cannot_be_is_one_line_and_leaves_nothing(
    retexo: CommandLine, tmp_path: Path, options: str, expected: str
) -> None:
    told = retexo.refused("run", *options.split(), "--out", "new")
    assert re.match(expected, told), told
    assert list(tmp_path.iterdir()) == []


def test_help_shows_the_options_together(retexo: CommandLine) -> None:
    told = retexo.done("run", "--help")
    panel = told[told.index("Mini-batches and devices") :]
    for key in ("sampler", "fanouts", "batch-nodes", "devices", "balance"):
        assert f"--{key}" in panel


def test_what_it_computes_on_is_said_once_the_graph_is_there(retexo: CommandLine) -> None:
    told = retexo.refused("run", "--devices", "cpu:2", "--dataset", "nonesuch", "--quiet")
    assert "nonesuch" in told


def test_a_run_says_what_it_computes_on(retexo: CommandLine) -> None:
    ended = retexo("run", "--devices", "cuda:200", "--rounds", "1", "--hidden", "4", "--quiet")
    assert ended.code == 0
    (line,) = ended.err.splitlines()
    assert re.fullmatch(r"retexo: devices: cuda:200 .*\(.*\); training on cpu", line)
