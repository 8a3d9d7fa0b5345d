"""What the doctor says of a client: with its files as they should be, and with each one wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.channels.identity import make_identity
from retexo_fl.channels.roster import Roster
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from tests.support.agents import AgentProcess, agents, retexo
from tests.support.cli import CommandLine, Ended

KEYS: dict[str, Any] = {"clients": 2, "hidden": 8}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[AgentProcess]]:
    with agents(tmp_path, make_parts(make_config(KEYS)), start=False) as made:
        yield made


Examine = Callable[[AgentProcess], dict[str, dict[str, str]]]


@pytest.fixture
def examined(capsys: pytest.CaptureFixture[str]) -> Examine:
    command = CommandLine(capsys)
    return lambda agent: _findings(command("doctor", "--config", agent.settings, "--json"))


def _findings(ended: Ended) -> dict[str, dict[str, str]]:
    findings = json.loads(ended.out)
    wrong = any(item["verdict"] == "bad" for item in findings)
    assert ended.code == int(wrong), ended.err
    return {item["thing"]: item for item in findings}


def test_client_that_has_not_started_is_only_doubtful(
    pair: list[AgentProcess], examined: Examine
) -> None:
    found = examined(pair[0])
    verdicts = {thing: item["verdict"] for thing, item in found.items()}
    assert {verdicts[thing] for thing in ("part", "state", "key", "roster")} == {"good"}
    assert verdicts["agent"] == "doubtful"
    assert "nothing listens there" in found["peer 1"]["seen"]
    assert "client 0 of 2" in found["part"]["seen"]


def test_a_part_below_its_owners_least_train_nodes_is_doubtful(
    pair: list[AgentProcess], examined: Examine
) -> None:
    with pair[0].settings.open("a") as file:
        file.write("least-train-nodes = 1000\n")
    part = examined(pair[0])["part"]
    assert part["verdict"] == "doubtful"
    found = re.search(r" (\d+) train nodes.*least-train-nodes.* 1000$", part["seen"])
    assert found is not None
    assert f"least-train-nodes = {found[1]} " in part["advice"]


def test_addresses_that_peers_are_told_and_nobody_listens_at_are_doubtful(
    pair: list[AgentProcess], examined: Examine
) -> None:
    """A port may be another one behind a router; a scheme may not, and datagrams have one."""
    path = pair[0].folder.parent / "roster.toml"
    settings = pair[0].settings.read_text()
    listen = re.search(r'^listen = \["tcp://([\d.]+):\d+"\]$', settings, re.MULTILINE)
    assert listen is not None

    def found(told: str, heard: str) -> dict[str, str]:
        members = Roster.read(path).members
        own = replace(members[0], addresses=(told, "relay:"))
        path.write_text(Roster.of([own, members[1]]).text())
        pair[0].settings.write_text(settings.replace(listen[0], f"listen = [{heard}]"))
        return examined(pair[0])["roster"]

    host = listen[1]
    assert found(f"tcp://{host}:7411", f'"tcp://{host}:7412"')["verdict"] == "good"
    assert found(f"udp://{host}:7411", f'"auto://{host}:7411"')["verdict"] == "good"
    for told, heard in (
        (f"udp://{host}:7411", f'"tcp://{host}:7412"'),
        (f"tcp://{host}:7411", f'"xdp://{host}:7411"'),
        (f"tcp://{host}:7411", ""),
    ):
        roster = found(told, heard)
        assert roster["verdict"] == "doubtful"
        assert f"peers are told {told}, " in roster["seen"]
        assert roster["seen"].endswith(heard.strip('"') or "no address")


def _without_part(agent: AgentProcess) -> None:
    (agent.folder.parent / "parts" / "part-0" / "manifest.json").unlink()


def _with_open_key(agent: AgentProcess) -> None:
    (agent.folder / "key.pem").chmod(0o644)


def _with_another_key(agent: AgentProcess) -> None:
    made = make_identity(agent.folder / "other", 0)
    made.key_path.replace(agent.folder / "key.pem")


def _with_anothers_identity(agent: AgentProcess) -> None:
    for name in ("key.pem", "certificate.pem"):
        (agent.folder.parent / "1" / name).replace(agent.folder / name)


def _with_peer_left_out(agent: AgentProcess) -> None:
    path = agent.folder.parent / "roster.toml"
    members = Roster.read(path).members
    path.write_text(Roster.of([members[0]]).text())


def _with_old_certificate_in_roster(agent: AgentProcess) -> None:
    made = make_identity(agent.folder / "other", 0)
    for path in (made.key_path, made.certificate_path):
        path.replace(agent.folder / path.name)


def _with_unknown_setting(agent: AgentProcess) -> None:
    agent.settings.write_text(agent.settings.read_text() + 'partitoin = "x"\n')


@pytest.mark.parametrize(
    ("spoil", "thing", "words"),
    [
        (_without_part, "part", "manifest"),
        (_with_open_key, "key", "others may read"),
        (_with_another_key, "key", "certificate.pem"),
        (_with_anothers_identity, "key", "client 1; the part is 0's"),
        (_with_peer_left_out, "roster", "without peers 1"),
        (_with_old_certificate_in_roster, "roster", "another certificate"),
        (_with_unknown_setting, "configuration", "did you mean 'partition'?"),
    ],
)
def test_what_is_wrong_is_named(
    pair: list[AgentProcess],
    examined: Examine,
    spoil: Callable[[AgentProcess], None],
    thing: str,
    words: str,
) -> None:
    spoil(pair[0])
    found = examined(pair[0])[thing]
    assert found["verdict"] == "bad"
    assert words in found["seen"]
    assert found["advice"]


@pytest.mark.system
def test_running_agents_are_good(pair: list[AgentProcess], examined: Examine) -> None:
    for agent in pair:
        agent.start()
    found = examined(pair[0])
    assert {item["verdict"] for item in found.values()} == {"good", "absent"}
    assert re.match(r"tcp://[\d.]+:\d+ answers; .*certificate", found["peer 1"]["seen"])
    done = retexo("doctor", "--config", str(pair[0].settings))
    assert "No check failed" in done.stdout
    assert not re.search(r"[ \t]$", done.stdout, re.MULTILINE)


@pytest.mark.system
def test_peer_with_another_roster_is_bad(pair: list[AgentProcess], examined: Examine) -> None:
    """Its certificate is the one we expect, but it does not know ours."""
    stranger = make_identity(pair[0].folder / "new", 0)
    for agent in pair:
        agent.start()
    pair[0].close()
    for path in (stranger.key_path, stranger.certificate_path):
        path.replace(pair[0].folder / path.name)
    found = examined(pair[0])
    assert found["peer 1"]["verdict"] == "bad"
    assert "our certificate" in found["peer 1"]["seen"]
