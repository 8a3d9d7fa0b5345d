"""The images, built from a clean clone, and the services of Compose files as processes of them."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.support.commands import ROOT, program, run_command
from tests.support.containers import Builder, Container, Image
from tests.support.hosts import Hosts
from tests.support.runs import model_bytes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5400)]

LOG = logging.getLogger(__name__)
#: As docs/containers.md has them, but for the rounds.
TRAINING = (
    *("--model", "dir-gcn", "--class-weights", "balanced", "--metric", "average-precision"),
    *("--profile", "retexo", "--rounds", "1", "--hidden", "8", "--quiet"),
)
_HEALTHY_S = 300.0
_TRAINED_S = 900.0
#: Whose key is refused has said so and ended by then, on a busy machine too.
_STAYS_S = 60.0


#: With SuperNodes, and of agents that are their own.
WITH_NODES, OWN_NODES = "compose.yaml", "compose-agents.yaml"


def compose(file: str = WITH_NODES) -> dict[str, Any]:
    told: dict[str, Any] = yaml.safe_load((ROOT / "containers" / file).read_text())
    return told


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a clone of what is committed, with what the page has made of the bank."""
    folder = tmp_path_factory.mktemp("clone") / "retexo-fl"
    run_command(["git", "clone", "--quiet", f"file://{ROOT}", str(folder)], cwd=ROOT)
    for command in commands_of_page():
        words = command.replace("python ", f"{sys.executable} ").replace("sudo ", "")
        words = re.sub("^retexo ", f"{program('retexo')} ", words)
        run_command(["sh", "-euc", words], cwd=folder)
    return folder


def commands_of_page() -> list[str]:
    """Return the commands of docs/containers.md that make what compose.yaml mounts."""
    page = (ROOT / "docs" / "containers.md").read_text("utf-8")
    (block,) = re.findall(r"^```sh\n(python examples.*?)^```$", page, re.DOTALL | re.M)
    return str(block).replace("\\\n", " ").splitlines()


@pytest.fixture(scope="module")
def images(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Image]]:
    """Return the images of all services by their names."""
    builder = Builder.new(tmp_path_factory.mktemp("buildah"))
    builds = {service["image"]: service["build"] for service in compose()["services"].values()}
    with ExitStack() as stack:
        # Gigabytes, which pytest would keep for three runs.
        stack.callback(shutil.rmtree, builder.folder, ignore_errors=True)
        found = {}
        for name, build in builds.items():
            builder.build(clone, build, name)
            found[name] = stack.enter_context(builder.image(name))
            LOG.info("%s: %.0f MB", name, found[name].size / 1e6)
        yield found


@pytest.fixture(params=[WITH_NODES, OWN_NODES])
def containers(
    request: pytest.FixtureRequest, clone: Path, images: dict[str, Image], tmp_path: Path
) -> Iterator[dict[str, Container]]:
    """Return all services, each on a host of its own, none of them started."""
    told = compose(request.param)
    folder = clone / "containers"
    if request.param == OWN_NODES:
        folder = _with_own_nodes(folder, tmp_path / "containers")
    volumes = tmp_path / "volumes"
    with Hosts(list(told["services"])) as hosts:
        made = {}
        for name, service in told["services"].items():
            image = images[service["image"]]
            names = tmp_path / f"{name}.hosts"
            names.write_text(
                "127.0.0.1 localhost\n"
                + "".join(
                    f"{hosts[other].address} {other}\n"
                    for other, its in told["services"].items()
                    if {*its["networks"]} & {*service["networks"]}
                )
            )
            mounts = [(str(names), "/etc/hosts", "ro")]
            mounts += [("tmpfs", place, "rw") for place in service["tmpfs"]]
            given = [mount.split(":") for mount in service["volumes"]]
            # Where nothing is mounted at a volume of the image it has one of its own.
            places = {place for _, place, *_ in given}
            given += [[f"{name}-own", it] for it in image.config["Volumes"] if it not in places]
            for source, place, *mode in sorted(given, key=lambda mount: mount[1]):
                path = folder / source if source[0] == "." else volumes / source
                if source[0] != "." and not path.exists():
                    # As a new volume: what the image has there.
                    path.mkdir(parents=True)
                    before = (image.root / place.lstrip("/")).stat()
                    os.chown(path, before.st_uid, before.st_gid)
                    path.chmod(before.st_mode & 0o777)
                mounts.append((str(path), place, (mode or ["rw"])[0]))
            made[name] = Container(
                name=name,
                host=hosts[name],
                image=image,
                service=service,
                mounts=mounts,
                folder=tmp_path,
            )
        yield made


def _with_own_nodes(folder: Path, own: Path) -> Path:
    """Copy what the page has made; make the fleet anew, as the page has it of agents alone."""
    shutil.copytree(folder, own)
    path = own / "bank.toml"
    path.write_text(path.read_text().replace("[server]", 'supernode = "agent"\n\n[server]'))
    run_command([program("retexo"), "fleet", "new", str(path)], cwd=own)
    run_command(["chown", "-R", "10001:10001", "bank", "parts"], cwd=own)
    return own


def start(containers: dict[str, Container]) -> None:
    """Start all services, each when those are so far that it depends on."""
    left = dict(containers)
    while left:
        for name, container in list(left.items()):
            needs = container.service.get("depends_on", {})
            if left.keys() & needs.keys():
                continue
            for other, how in needs.items():
                if how["condition"] == "service_healthy":
                    containers[other].wait_healthy(_HEALTHY_S)
                else:
                    assert how["condition"] == "service_completed_successfully"
                    process = containers[other].process
                    assert process.wait(_HEALTHY_S) == 0, containers[other].log.read_text()[-3000:]
            container.start()
            del left[name]
    for name, container in containers.items():
        if name != "register":
            container.wait_healthy(_HEALTHY_S)


def test_the_bank_is_trained_in_containers(
    clone: Path, containers: dict[str, Container], tmp_path: Path
) -> None:
    start(containers)
    agent, node = containers["branch-0"], containers.get("branch-0-node")
    parts = ("--partitions", str(clone / "containers" / "parts"), "--clients", "3")
    masked = ("--secure-aggregation", "masked", "--out", "one")
    command = [program("retexo"), "run", *parts, *TRAINING, *masked]
    run_command(command, cwd=tmp_path, timeout_s=_TRAINED_S)
    wanted = model_bytes(tmp_path / "one")
    assert model_bytes(trained(containers["server"], "bank")) == wanted
    _nothing_is_open(containers, agent, node)
    # An agent begins anew; the key of its SuperNode is refused for a minute.
    if node is not None:
        node.kill()
    agent.kill()
    agent.start()
    agent.wait_healthy(_HEALTHY_S)
    if node is not None:
        _restarted_until_it_stays(node)
    assert model_bytes(trained(containers["server"], "again")) == wanted
    for name, container in containers.items():
        if name != "register":
            ended = container.stop(30.0)
            assert ended in {0, 143}, f"{name}: {ended}: {container.log.read_text()[-2000:]}"


def trained(server: Container, name: str) -> Path:
    """Train, as docs/containers.md says it; return the run directory."""
    connection = ("--superlink", "server:8000", "--root-certificates", "/etc/retexo/tls/ca.crt")
    out = ("--clients", "3", "--out", f"runs/{name}")
    code, said = server.run("retexo", "run", *connection, *TRAINING, *out, timeout_s=_TRAINED_S)
    assert code == 0, said
    assert "masked" in said
    (volume,) = (source for source, place, _ in server.mounts if place == "/var/lib/retexo")
    return Path(volume) / "runs" / name


def _nothing_is_open(
    containers: dict[str, Container], agent: Container, node: Container | None
) -> None:
    for name, container in containers.items():
        if name == "register":
            continue
        code, said = container.run("sh", "-c", "id -u; grep -E '^(Cap|NoNew)' /proc/self/status")
        assert code == 0
        assert said.splitlines()[0] == container.image.user != "0"
        assert {line.split(":\t")[1].strip("0") for line in said.splitlines()[1:6]} == {""}
        for place in ("/", "/etc/retexo", "/opt/retexo/bin"):
            code, said = container.run("touch", f"{place}/x")
            assert code, f"{name}: {place}: {said}"
    if node is not None:
        # What the server sends runs there: it has the socket, and none of the agent's files.
        assert node.run("ls", "/etc/retexo")[1].split() == ["ca.crt", "supernode-key"]
        assert node.run("ls", "/run/retexo")[1].split() == ["agent.sock"]
        assert node.run("rm", "/run/retexo/agent.sock")[0] == 1
        assert node.run("sh", "-c", "ls /var/lib/retexo/part /var/lib/retexo/state")[0] == 2
    own = agent.run("sh", "-c", "ls /etc/retexo /var/lib/retexo/part")[1].split()
    assert {"key.pem", "manifest.json"} <= {*own}


def _restarted_until_it_stays(node: Container) -> None:
    """Start it as `restart: unless-stopped` does, until the SuperLink takes its key again."""
    for _ in range(40):
        node.start()
        try:
            node.process.wait(_STAYS_S)
        except subprocess.TimeoutExpired:
            node.wait_healthy(_HEALTHY_S)
            return
    pytest.fail(node.log.read_text()[-3000:])
