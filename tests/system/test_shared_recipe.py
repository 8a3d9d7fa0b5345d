"""A feature recipe of clients on machines of their own, over a real SuperLink and SuperNodes."""

from __future__ import annotations

import stat
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import tomli_w

from retexo_fl.agent.promises import NO_PART
from retexo_fl.masking import MASKED
from tests.support.cli import PROGRAM, CommandLine
from tests.support.commands import environment, program
from tests.support.loopback import free_ports, make_members
from tests.support.owners import agreed
from tests.support.recipes import THREE, write_sites
from tests.system.test_deployed_run import WAIT_S, answers, running, wait_for

pytestmark = [pytest.mark.system, pytest.mark.deployed, pytest.mark.timeout(2400)]

CHOICE = ("--log", "balance", "--min-count", "5")


@pytest.fixture
def superlink(tmp_path: Path) -> Iterator[str]:
    """Run a SuperLink and a SuperNode for each client, whose agents are not there yet."""
    port = free_ports(1)[0]
    with ExitStack() as stack:
        command = [program("flower-superlink"), "--insecure", "--port", str(port)]
        stack.enter_context(running(tmp_path, "superlink", command))
        wait_for(lambda: answers(port))
        for name in THREE:
            command = [
                *(program("flower-supernode"), "--insecure", "--superlink", f"127.0.0.1:{port}"),
                *("--port", str(free_ports(1)[0])),
                *("--node-config", f'agent="{tmp_path / name}.sock"'),
            ]
            stack.enter_context(running(tmp_path, f"supernode-{name}", command))
        yield f"127.0.0.1:{port}"


def fit(superlink: str, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [*PROGRAM, "features", "fit", "--superlink", superlink, "--insecure"]
    return subprocess.run(
        [*command, "--clients", "3", *CHOICE, *options, "--out", str(out)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def share(folder: Path, name: str, *options: str, summary: str = "") -> list[str]:
    """Write a client's ``agent.toml``, whose part is not there yet; return its command."""
    own = folder / "keys" / str(THREE.index(name))
    settings = {
        **{"socket": f"{name}.sock", "roster": "roster.toml"},
        **{"key": str(own / "key.pem"), "certificate": str(own / "certificate.pem")},
        **{"partition": "none", "state": f"{name}-state"},
    }
    (folder / f"{name}.toml").write_text(tomli_w.dumps(settings))
    return [
        *(*PROGRAM, "features", "share", f"{folder / (summary or name)}.json", *options),
        *("--config", f"{folder / name}.toml", "--out", f"{folder / name}-recipe.toml"),
    ]


def owners_with_summaries(retexo: CommandLine, folder: Path) -> Path:
    """Write the owners' roster, and a table and a summary of each; return the whole table."""
    whole = write_sites(folder, THREE)
    identities, roster = make_members(folder / "keys", len(THREE))
    everyone = roster.members.keys()
    federation = agreed(
        roster,
        identities,
        digests=dict.fromkeys(everyone, NO_PART),
        uses=dict.fromkeys(everyone, frozenset({"nodes"})),
    )
    (folder / "roster.toml").write_text(federation.text())
    for name in THREE:
        table = folder / f"{name}.csv"
        options = ("--drop", "code", "--out", folder / f"{name}.json")
        retexo.done("features", "summarise", table, *options)
    return whole


def test_all_clients_get_the_recipe_of_the_whole_table(
    superlink: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    retexo = CommandLine(capfd)
    whole = owners_with_summaries(retexo, tmp_path)
    retexo.done(
        "features", "fit", whole, *CHOICE, "--drop", "code", "--out", tmp_path / "whole.toml"
    )
    expected = (tmp_path / "whole.toml").read_bytes()
    # Under masks, which both ends choose by themselves.
    with ExitStack() as stack:
        shares = [
            stack.enter_context(running(tmp_path, f"share-{name}", share(tmp_path, name)))
            for name in THREE
        ]
        done = fit(superlink, tmp_path / "made.toml")
        assert done.returncode == 0, done.stderr
        assert [each.wait(WAIT_S) for each in shares] == [0] * len(THREE)
    masked = MASKED
    assert masked in done.stderr
    assert "bank: left out, as all rows have the same text" in done.stderr
    assert "rows with texts that no client names" in done.stderr
    assert (tmp_path / "made.toml").read_bytes() == expected
    for name in THREE:
        path = tmp_path / f"{name}-recipe.toml"
        assert path.read_bytes() == expected
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert not (tmp_path / f"{name}.sock").exists()
        said = (tmp_path / f"share-{name}.log").read_text()
        assert masked in said
        assert "peers.toml: classes = 2, features = " in said


# What the server refuses, without Flower's programs: tests/integration/test_shared_recipe.py.
@pytest.mark.slow
def test_a_client_that_has_other_columns_ends_the_command(
    superlink: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """In the clear: in a line, and no recipe goes out."""
    retexo = CommandLine(capfd)
    owners_with_summaries(retexo, tmp_path)
    other = ("--drop", "code,country", "--out", tmp_path / "other.json")
    retexo.done("features", "summarise", tmp_path / "south.csv", *other)
    clear = ("--secure-aggregation", "none")
    with ExitStack() as stack:
        for name, summary in (("north", "north"), ("south", "other"), ("west", "west")):
            command = share(tmp_path, name, *clear, summary=summary)
            stack.enter_context(running(tmp_path, f"clear-{name}", command))
        failed = fit(superlink, tmp_path / "made.toml", *clear)
    assert failed.returncode == 2, failed.stderr
    assert "column 'country' is missing" in failed.stderr.splitlines()[-1]
    assert not list(tmp_path.glob("*-recipe.toml"))


def test_a_share_that_is_stopped_leaves_no_socket(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_sites(tmp_path)
    _, roster = make_members(tmp_path / "keys", len(THREE))
    (tmp_path / "roster.toml").write_text(roster.text())
    table, out = tmp_path / "north.csv", tmp_path / "north.json"
    CommandLine(capfd).done("features", "summarise", table, "--drop", "code", "--out", out)
    with running(tmp_path, "share", share(tmp_path, "north")) as process:
        wait_for((tmp_path / "north.sock").exists)
        process.terminate()
        assert process.wait(WAIT_S) == 130
    assert not (tmp_path / "north.sock").exists()
