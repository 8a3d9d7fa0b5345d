"""One training to which everything happens ends with the bits of one to which nothing happens.

Real programs on test hosts, as docs/deployment.md starts them: once with SuperNodes, once with
agents that are their own nodes. A fault that is not noticed proves
nothing, so each is seen to fall where it is meant to. SuperLink and SuperNodes are killed by
tests/system/test_masked_deployment.py, by day; this whole story is told at night, since each of its
faults is met alone by day, without Flower's programs: blocks that are cut in test_meetings.py and
test_kernel_training.py, agents killed in an exchange there and in test_peering.py, at each step in
test_masked_crashes.py, full disks in test_stopping.py.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import pytest

from retexo_fl.federation.checkpoints import read_checkpoint
from retexo_fl.simulation.links import Link
from tests.support.commands import program, run_command
from tests.support.data import cora_dir
from tests.support.deployment import Deployment
from tests.support.faults import (
    Agents,
    SmallDisk,
    answered,
    end_of_command,
    rounds_of,
    small_disk,
    wait_for,
)
from tests.support.hosts import Hosts
from tests.support.places import SERVER, WAYS, host_names, own_nodes
from tests.support.runs import curves_of, events_of, model_bytes, result_of

pytestmark = [
    pytest.mark.system,
    pytest.mark.deployed,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
]

#: Dense vectors make the blocks of stage 0 seven frames long, many steps a round that takes time.
OPTIONS = (
    *("--model", "sage", "--hidden", "64", "--rounds", "4", "--last-rounds", "1"),
    *("--codec", "dense", "--local-steps", "50", "--local-learning-rate", "0.0003"),
)
#: Between the two clients: a block of stage 0 takes a quarter of a minute.
RATE_BIT_S = 4_000_000
#: Longer than TCP waits before it repeats a packet for the fifth time.
CUT_S = 10.0
#: Flower takes a node for away that was silent for a minute.
GIVEN_UP_S = 70.0
#: Others may have to do on this machine.
PATIENCE_S = 300.0
FRAME_BYTES = 2**20
#: Room for a line of the history, not for a checkpoint.
LEFT_BYTES = 2**18


@dataclass(slots=True, kw_only=True)
class Story:
    """What was done to a training, and what was seen of it.

    Attributes:
        run: Its run directory.
        undisturbed: That of the same training in one process.
        federation: It trained here; its logs are still there.
        facts: By fault, what was measured when it happened.
        said: By fault, what the command printed that it ended, and its exit code.
    """

    run: Path
    undisturbed: Path
    federation: Deployment
    facts: dict[str, dict[str, int]] = field(default_factory=dict)
    said: dict[str, tuple[int, list[str]]] = field(default_factory=dict)


@pytest.fixture(scope="module", params=WAYS)
def story(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Story]:
    folder = tmp_path_factory.mktemp("faults")
    parts = folder / "parts"
    source = ("--dataset", "cora", "--data-dir", str(cora_dir()))
    size = ("--clients", "2", "--out", str(parts))
    run_command([program("retexo"), "partition", "make", *source, *size], cwd=folder)
    alone = ("--partitions", str(parts), "--out", str(folder / "undisturbed"), "--quiet")
    run_command([program("retexo"), "run", "--profile", "retexo", *OPTIONS, *alone], cwd=folder)
    with small_disk(folder / "disk", megabytes=32) as disk, Hosts(host_names(2)) as hosts:
        hosts.shape(_between)
        nodes = own_nodes(request.param, 2)
        federation = Deployment(hosts, folder, parts, 2, own_nodes=nodes)
        federation.start()
        told = Story(
            run=disk.path / "run", undisturbed=folder / "undisturbed", federation=federation
        )
        _first_attempt(told, disk)
        _second_attempt(told)
        yield told


def _between(one: str, other: str) -> Link:
    is_slow = SERVER not in (one, other)
    return Link(rate_bit_s=Fraction(RATE_BIT_S)) if is_slow else Link()


# ---- what happens --------------------------------------------------------------------------------


def _first_attempt(story: Story, disk: SmallDisk) -> None:
    """An agent comes late; cut the link and kill it in an exchange; then a disk is full."""
    federation, agents = story.federation, Agents(federation=story.federation)
    assert federation["agent-1"].stop() == 0
    command = federation.start_run(story.run, *OPTIONS)
    wait_for(
        lambda: "so far; missing: client 1" in command.said(),
        "who is missing",
        command=command,
    )
    federation.restart("agent-1")

    def arrived(client: int, frames: int) -> bool:
        return agents.kept_bytes(client) > frames * FRAME_BYTES

    wait_for(lambda: arrived(0, 1) and arrived(1, 1), "the exchange", command=command)
    federation.hosts.cut("client-0", "client-1")
    story.facts["cut"] = {"kept": agents.kept_bytes(1)}
    time.sleep(CUT_S)
    story.facts["cut"]["kept_at_end"] = agents.kept_bytes(1)
    federation.hosts.mend("client-0", "client-1")

    def goes_on() -> bool:
        # On a slow machine three frames may have been there before the link was cut.
        return agents.kept_bytes(1) > story.facts["cut"]["kept_at_end"]

    # Who has the most of its block when packets pass again may have all of it first.
    wait_for(lambda: arrived(1, 3) and goes_on(), "the exchange's rest", command=command)
    federation.kill("agent-1")
    story.facts["killed in exchange"] = {"kept": agents.kept_bytes(1)}
    federation.restart("agent-1")

    wait_for(lambda: len(rounds_of(story.run)) >= 1, "round 1 of stage 0", command=command)
    story.facts["whole"] = {str(client): agents.kept_bytes(client) for client in range(2)}
    story.facts["exchange"] = agents.frames(0)
    story.facts["after"] = agents.frames(1)
    disk.fill(left_bytes=LEFT_BYTES)
    story.said["full disk"] = end_of_command(command, within_s=PATIENCE_S)
    kept = read_checkpoint(story.run / "checkpoint.safetensors").facts
    story.facts["full disk"] = {
        "stage": kept["stage"],
        "round": kept["round"],
        "last line": rounds_of(story.run)[-1][1],
    }
    disk.make_room()


def _second_attempt(story: Story) -> None:
    """An agent has lost all it kept; kill one in a round; cut its host off from the server."""
    federation, agents = story.federation, Agents(federation=story.federation)
    assert federation["agent-1"].stop() == 0
    shutil.rmtree(federation.client_folder(1) / "state")
    federation.restart("agent-1")
    command = federation.start_run(story.run, "--resume")
    killed = agents.kill_in_round(0, 0, within_s=PATIENCE_S)
    part = federation["agent-0"]
    story.facts["killed in round"] = {"answers": answered(part, killed)}
    federation.restart("agent-0")
    done = len(rounds_of(story.run))
    wait_for(lambda: len(rounds_of(story.run)) > done, "a round more", command=command)
    federation.hosts.cut(SERVER, "client-1")
    known = len(command.said())
    time.sleep(GIVEN_UP_S)
    wait_for(
        lambda: "waits for client 1" in command.said()[known:], "who is cut off", command=command
    )
    federation.hosts.mend(SERVER, "client-1")
    story.said["finish"] = end_of_command(command, within_s=2 * PATIENCE_S)
    story.facts["killed in round"]["answers at end"] = answered(part, killed)


# ---- what must hold ------------------------------------------------------------------------------


def test_weights_are_those_of_an_undisturbed_training(story: Story) -> None:
    assert story.said["finish"][0] == 0
    attempts = [event["attempt"] for event in events_of(story.run) if "attempt" in event]
    assert attempts == [1, 2]
    assert model_bytes(story.run) == model_bytes(story.undisturbed)
    assert curves_of(story.run) == curves_of(story.undisturbed)
    done, undisturbed = result_of(story.run), result_of(story.undisturbed)
    for key in ("test_accuracy", "val_accuracy", "micro_f1", "stages", "missing_rows"):
        assert done[key] == undisturbed[key]


def test_a_client_that_is_cut_off_from_the_server_is_waited_for(story: Story) -> None:
    # Nobody had to start its node again because of it.
    running = story.federation.running
    node = running.get("supernode-1", running["agent-1"])
    assert node.process is not None
    assert node.process.poll() is None
    assert not node.said_now().count("superlink refused=")


def test_a_cut_link_goes_on_where_it_was(story: Story) -> None:
    cut, whole = story.facts["cut"], story.facts["whole"]
    # What was on its way may still arrive when the link is cut.
    assert FRAME_BYTES < cut["kept"] <= cut["kept_at_end"] < whole["1"]
    # The other end was killed later: even so, no whole frame came twice.
    assert story.facts["exchange"]["received"] == whole["0"]


def test_an_agent_killed_in_an_exchange_gets_what_is_missing(story: Story) -> None:
    killed, whole = story.facts["killed in exchange"], story.facts["whole"]
    assert story.facts["cut"]["kept_at_end"] < killed["kept"] < whole["1"]
    # A frame that was half written when it was killed is not kept.
    missing = whole["1"] - killed["kept"]
    assert missing <= story.facts["after"]["received"] < missing + FRAME_BYTES
    assert story.facts["exchange"]["sent"] < 2 * whole["1"]


def test_a_full_disk_is_named_and_the_last_checkpoint_is_whole(story: Story) -> None:
    code, lines = story.said["full disk"]
    errors = [line for line in lines if line.startswith("retexo: error: ")]
    assert code == 1
    assert errors == lines[-1:]
    path = story.run / "checkpoint.safetensors"
    assert errors[0].startswith(f"retexo: error: {path}: ")
    assert "(No space left on device); " in errors[0]
    assert f": retexo run --resume {story.run} " in errors[0]
    # A round's line is written with the round after it, which the checkpoint lacks.
    checkpoint = story.facts["full disk"]
    assert checkpoint["stage"] == 0
    # Rounds shorter than a second go on while one is written, for a second at most.
    assert 1 <= checkpoint["round"] <= checkpoint["last line"]


def test_an_agent_that_is_killed_in_a_round_computes_it_again(story: Story) -> None:
    killed = story.facts["killed in round"]
    assert killed["answers"] == 0
    assert killed["answers at end"] == 1
    assert story.federation["agent-0"].said_now().count("restored job=") == 1


def test_rounds_go_on_without_an_agent_that_is_away(story: Story) -> None:
    federation, run = story.federation, story.federation.folder / "quorum"
    size = ("--model", "sage", "--layers", "1", "--rounds", "8")
    command = federation.start_run(run, *size, "--min-clients", "1", "--round-deadline-s", "25")
    wait_for(lambda: len(rounds_of(run)) >= 2, "round 2", command=command)
    federation.kill("agent-1")
    wait_for(lambda: [1] in _absent(run), "a round without client 1", command=command)
    federation.restart("agent-1")
    code, _ = end_of_command(command, within_s=PATIENCE_S)
    assert code == 0
    absent = _absent(run)
    # It takes part again without anybody's doing.
    assert [] in absent[absent.index([1]) :]
    assert result_of(run)["absences"]["1"] == absent.count([1])


def _absent(run: Path) -> list[list[int]]:
    """Return, by round, the clients that it was closed without."""
    rounds = [event for event in events_of(run) if event["event"] == "round"]
    return [event.get("absent", []) for event in rounds]
