"""``retexo fleet check``: each thing that is not as the file says is named, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import tomli_w

from retexo_fl.channels.roster import make_member
from retexo_fl.fleet.checking import check_fleet
from retexo_fl.fleet.description import read_fleet
from tests.support.cli import CommandLine

FLEET: dict[str, object] = {
    "name": "clinics",
    "keys": "here",
    "services": "systemd",
    "server": {"address": "203.0.113.10"},
    "client": [{"count": 2, "name": "clinic-{client}", "host": "clinic-{client}.example.org"}],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from retexo_fl.fleet.making import make_fleet

    folder = tmp_path_factory.mktemp("made")
    (folder / "FLEET.toml").write_text(tomli_w.dumps(FLEET))
    make_fleet(read_fleet(folder / "FLEET.toml"), folder / "clinics")
    return folder


@pytest.fixture
def fleet(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "copy")
    return tmp_path / "copy" / "clinics"


@pytest.fixture
def retexo(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


def other_key(path: Path) -> None:
    path.unlink()
    path.with_name("certificate.pem").unlink()
    path.with_name("member.toml").unlink()
    make_member(path.parent, 1, ())


def replaced(path: Path, old: str = "", new: str = "") -> None:
    path.write_text(path.read_text().replace(old, new))


def test_a_fleet_as_it_was_made_is_well(retexo: CommandLine, fleet: Path) -> None:
    for place in (fleet, fleet.parent / "FLEET.toml"):
        said = retexo.done("fleet", "check", place)
        assert said.splitlines()[-1] == "No check failed."
        assert "client 1 at clinic-1.example.org" in said
    found = json.loads(retexo.done("fleet", "check", fleet, "--json"))
    assert [it["thing"] for it in found] == ["roster", "server", "clinic-0", "clinic-1"]


@pytest.mark.parametrize(
    ("spoil", "thing", "said"),
    [
        (
            lambda it: other_key(it / "clients/clinic-1/key.pem"),
            "clinic-1",
            "wrong key: the roster has another certificate of this client",
        ),
        (
            lambda it: shutil.copy(
                it / "clients/clinic-0/certificate.pem", it / "clients/clinic-1"
            ),
            "clinic-1",
            "key.pem is not the key of the certificate",
        ),
        (
            lambda it: shutil.copy(it / "clients/clinic-0/supernode-key", it / "clients/clinic-1"),
            "clinic-1",
            "wrong supernode-key: the server has another",
        ),
        (
            lambda it: replaced(it / "clients/clinic-0/roster.toml", "7411", "7499"),
            "clinic-0",
            "roster.toml old: another than the fleet has",
        ),
        (
            lambda it: (it / "clients/clinic-0/roster.toml").unlink(),
            "clinic-0",
            "roster.toml missing",
        ),
        (
            lambda it: (it / "clients/clinic-1/retexo-agent@.service").unlink(),
            "clinic-1",
            "retexo-agent@.service missing",
        ),
        (
            lambda it: (it / "clients/clinic-1/key.pem").chmod(0o644),
            "permissions",
            "clinic-1/key.pem: mode 0644",
        ),
        (lambda it: (it / "clients").chmod(0o755), "permissions", "clients: mode 0755"),
        (
            lambda it: replaced(it / "clients/clinic-1/agent.toml", "7411", "7499"),
            "clinic-1",
            "agent.toml differs: listen",
        ),
        (
            lambda it: (it / "server/supernodes/clinic-0.pub").unlink(),
            "clinic-0",
            "no public key of its SuperNode at the server",
        ),
        (
            lambda it: (it / "server/retexo-superlink.service").unlink(),
            "server",
            "retexo-superlink.service missing",
        ),
        (
            lambda it: shutil.copy(it / "authority/ca.crt", it / "server/tls/server.pem"),
            "server",
            "server.pem: not a certificate",
        ),
        (lambda it: (it / "roster.toml").unlink(), "roster", "roster.toml: No such file"),
        (lambda it: shutil.rmtree(it / "clients/clinic-0"), "clinic-0", "clinic-0: missing"),
    ],
)
def test_what_is_not_as_the_file_says_is_named(
    retexo: CommandLine, fleet: Path, spoil: Callable[[Path], object], thing: str, said: str
) -> None:
    spoil(fleet)
    ended = retexo("fleet", "check", fleet, "--json")
    assert (ended.code, ended.err) == (1, "")
    wrong = [it for it in json.loads(ended.out) if it["verdict"] != "good"]
    assert {it["thing"] for it in wrong} == {thing}
    assert any(said in it["seen"] for it in wrong)
    assert all(it["advice"] for it in wrong)


def test_a_file_that_changed_since_is_told(retexo: CommandLine, fleet: Path) -> None:
    changed = {**FLEET, "agent": {"most-memory-mib": 700}}
    (fleet.parent / "FLEET.toml").write_text(tomli_w.dumps(changed))
    ended = retexo("fleet", "check", fleet.parent / "FLEET.toml")
    assert ended.code == 1
    assert "the file has changed since its folder was made" in ended.out
    assert ended.out.count("agent.toml differs: most-memory-mib") == 2
    said = retexo.refused("fleet", "check", fleet.parent / "FLEET.toml", "--out", "nowhere")
    assert "nowhere: no fleet; expected what retexo fleet new made" in said


def test_what_is_installed_here_is_compared_as_well(fleet: Path, tmp_path: Path) -> None:
    machine = tmp_path / "machine"
    own, units = machine / "etc/retexo/clinic-1", machine / "etc/systemd/system"
    shutil.copytree(fleet / "clients/clinic-1", own)
    units.mkdir(parents=True)
    for unit in ("retexo-agent@.service", "retexo-supernode@.service"):
        (own / unit).rename(units / unit)

    def wrong() -> list[str]:
        found = check_fleet(read_fleet(fleet / "fleet.toml"), fleet, machine=machine)
        return [f"{it.thing}: {it.seen}" for it in found if it.verdict.value != "good"]

    assert wrong() == []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "access", lambda path, _mode: path != own)
        assert wrong() == [f"clinic-1 installed: {own}: cannot be looked into"]
    (units / "retexo-supernode@.service").unlink()
    (own / "key.pem").chmod(0o640)
    replaced(own / "roster.toml", "7411", "7499")
    assert wrong() == [
        "clinic-1 installed: roster.toml old: another than the fleet has",
        "clinic-1 installed: retexo-supernode@.service missing",
        f"clinic-1 installed: {own}/key.pem: others may read it",
    ]
