"""Containerfile and Compose file say what code, units and page say; both are run each night."""

from __future__ import annotations

import json
import re
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from retexo_fl.fleet.description import (
    AGENT_PORT,
    NODE_PORT,
    SUPERLINK_PORT,
    FleetClient,
    read_fleet,
)
from retexo_fl.fleet.making import SERVER_TLS, bundle
from tests.support.commands import ROOT

FOLDER = ROOT / "containers"
TARGETS = ("server", "agent", "supernode")
#: With SuperNodes, and of agents that are their own.
FILES = ("compose.yaml", "compose-agents.yaml")
PAGE = (ROOT / "docs" / "containers.md").read_text("utf-8")


def stages() -> dict[str, list[tuple[str, str]]]:
    """Return the instructions of each stage by its name, after those of what it is from."""
    text = (FOLDER / "Containerfile").read_text("utf-8")
    text = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.M))
    found: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for line in filter(None, text.splitlines()):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            source, _, name = rest.partition(" AS ")
            found[name] = list(found.get(source, ()))
        found.setdefault(name, []).append((word, rest.strip()))
    return found


def last(stage: str, word: str) -> str:
    return [rest for it, rest in stages()[stage] if it == word][-1]


def environment(stage: str) -> dict[str, str]:
    lines = " ".join(rest for word, rest in stages()[stage] if word == "ENV")
    return dict(pair.split("=", 1) for pair in lines.split())


def unit(name: str) -> str:
    return re.sub(r"\\\n\s*", "", (ROOT / name).read_text("utf-8"))


def services(file: str = "compose.yaml") -> dict[str, Any]:
    told: dict[str, Any] = compose(file)["services"]
    return told


def compose(file: str = "compose.yaml") -> dict[str, Any]:
    told: dict[str, Any] = yaml.safe_load((FOLDER / file).read_text("utf-8"))
    return told


def clients() -> tuple[FleetClient, ...]:
    return read_fleet(FOLDER / "bank.toml").clients


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_runs_programs_that_there_are_as_nobody_special(target: str) -> None:
    assert last(target, "USER") == "10001:10001"
    assert any("--uid 10001 --gid 10001" in rest for _, rest in stages()[target])
    assert "10001" in PAGE
    programs = {it.name for it in entry_points(group="console_scripts")}
    command = json.loads(last(target, "CMD"))
    assert set(re.findall(r"[\w-]+", " ".join(command))) & programs
    check = json.loads(last(target, "HEALTHCHECK").partition("CMD ")[2])
    assert check[0] in {"retexo", "python3"}
    assert "/etc/retexo/agent.toml" in check or str(NODE_PORT) in check[-1] or "doctor" in check


def test_flower_is_started_as_by_the_units() -> None:
    found = json.loads(last("server", "CMD"))
    (started,) = re.findall(r"^ExecStart=\S*/(.*)$", unit("server/retexo-superlink.service"), re.M)
    wanted = started.replace("${CREDENTIALS_DIRECTORY}", "/etc/retexo/tls").split()
    assert found == wanted
    told = json.loads(last("supernode", "CMD"))[-1].removeprefix("exec ").split()
    (started,) = re.findall(r"^ExecStart=\S*/(.*)$", unit("clients/retexo-supernode.service"), re.M)
    wanted = started.replace("${CREDENTIALS_DIRECTORY}", "/etc/retexo").split()
    assert [word.strip('"') for word in told] == [
        word.replace("${SUPERLINK}", "$SUPERLINK") for word in wanted
    ]
    for target, name in (
        ("server", "server/retexo-superlink"),
        ("supernode", "clients/retexo-supernode"),
    ):
        of_unit = dict(re.findall(r"^Environment=(\w+)=(\S+)$", unit(f"{name}.service"), re.M))
        places = {"HOME", "FLWR_HOME", "PATH"}
        assert {it for it in of_unit.items() if it[0] not in places} <= environment(target).items()


def test_ports_are_those_of_the_code() -> None:
    assert last("server", "EXPOSE") == str(SUPERLINK_PORT)
    assert last("agent", "EXPOSE") == str(AGENT_PORT)
    assert f"port {SUPERLINK_PORT}" in PAGE
    assert f"port {AGENT_PORT}" in PAGE
    assert f"'127.0.0.1', {NODE_PORT}" in last("supernode", "HEALTHCHECK")


def test_what_is_copied_is_in_a_clone() -> None:
    for word, rest in stages()["build"]:
        if word == "COPY":
            assert all((ROOT / name).exists() for name in rest.split()[:-1]), rest
    assert "/server/register-client.sh" in last("server", "COPY")
    # What a wheel is made of.
    told = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    wheel = told["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    copied = [rest.split()[-1] for word, rest in stages()["build"] if word == "COPY"]
    assert {name.partition("/")[0] for name in wheel} <= {*copied}


@pytest.mark.parametrize(
    ("file", "name"), [(file, name) for file in FILES for name in services(file)]
)
def test_a_service_may_nothing_and_finds_what_it_needs(file: str, name: str) -> None:
    service, told = services(file)[name], compose(file)
    target = service["build"]["target"]
    assert service["image"] == f"localhost/retexo-{target}"
    assert (FOLDER / service["build"]["context"] / service["build"]["dockerfile"]).samefile(
        FOLDER / "Containerfile"
    )
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert {*service["networks"]} <= told["networks"].keys()
    assert all(network["internal"] for network in told["networks"].values())
    for mount in service["volumes"]:
        source, place, *mode = mount.split(":")
        assert place.startswith(("/etc/retexo", "/var/lib/retexo", "/run/retexo"))
        # What was made on the machine is only read; state is in volumes that the file declares.
        assert mode == ["ro"] if source[0] == "." else source in told["volumes"]
    for other in service.get("depends_on", {}):
        assert other in told["services"]


def test_the_services_are_those_of_the_fleet() -> None:
    fleet = read_fleet(FOLDER / "bank.toml")
    assert fleet.services == "containers"
    assert {*services()} == {
        *("server", "register"),
        *(it.host for it in fleet.clients),
        *(f"{it.host}-node" for it in fleet.clients),
    }
    assert fleet.server.host == "server"
    assert f"SUPERLINK={fleet.server}" in last("supernode", "ENV")
    assert f"./{fleet.name}/{SERVER_TLS}:/etc/retexo/tls:ro" in services()["server"]["volumes"]
    assert str(fleet.server) in services()["register"]["command"][-1]


@pytest.mark.parametrize("one", clients(), ids=lambda one: one.name)
def test_a_client_is_two_containers_that_share_a_socket(one: FleetClient) -> None:
    agent = dict(it.split(":")[1::-1] for it in services()[one.host]["volumes"])
    node = services()[f"{one.host}-node"]
    its = dict(it.split(":")[1::-1] for it in node["volumes"])
    for key in ("key", "certificate", "roster"):
        assert Path(one.agent[key]).parent == Path("/etc/retexo")
    assert agent["/etc/retexo"] == f"./bank/{bundle(one)}"
    assert one.part_here is not None
    assert (FOLDER / agent[one.agent["partition"]]).resolve() == one.part_here.resolve()
    assert Path(one.agent["state"]).parent == Path("/var/lib/retexo")
    socket = str(Path(one.agent["socket"]).parent)
    assert agent[socket] == its[socket]
    assert f"{its[socket]}:{socket}:ro" in node["volumes"]
    assert f'agent="{one.agent["socket"]}"' in json.loads(last("supernode", "CMD"))[-1]
    # Nothing else of the agent's, whose files are not for code that the server sends.
    assert its.keys() == {
        *("/etc/retexo/ca.crt", "/etc/retexo/supernode-key", "/var/lib/retexo", socket)
    }
    assert its["/var/lib/retexo"] != agent["/var/lib/retexo"]
    assert not {*node["networks"]} & {*services()[one.host]["networks"]}
    assert one.addresses == (f"tcp://{one.host}:{AGENT_PORT}",)


def test_an_agent_that_is_its_own_supernode_is_one_container(tmp_path: Path) -> None:
    own = tmp_path / "bank.toml"
    text = (FOLDER / "bank.toml").read_text("utf-8")
    own.write_text(text.replace("[server]", 'supernode = "agent"\n\n[server]'))
    fleet = read_fleet(own)
    told, with_nodes = services(FILES[1]), services()
    assert told.keys() == {"server", "register", *(one.host for one in fleet.clients)}
    assert all(told[name] == with_nodes[name] for name in ("server", "register"))
    assert compose(FILES[1])["networks"] == compose()["networks"]
    for one in fleet.clients:
        agent = told[one.host]
        # It finds what it did, and the SuperLink, whose settings are in its own folder.
        assert agent["volumes"] == with_nodes[one.host]["volumes"]
        assert {*agent["networks"]} == {
            *with_nodes[one.host]["networks"],
            *told["server"]["networks"],
        }
        assert one.agent["superlink"] == str(fleet.server)
        for key in ("root-certificates", "supernode-key"):
            assert Path(one.agent[key]).parent == Path("/etc/retexo")
        left = {"networks", "depends_on", "volumes"}
        assert {key: of for key, of in agent.items() if key not in left} == {
            key: of for key, of in with_nodes[one.host].items() if key not in left
        }
