"""``retexo fleet new``: what all machines get, once, and what a change of the file changes."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w

from retexo_fl.agent.settings import read_settings
from retexo_fl.channels.federation import Federation
from retexo_fl.channels.identity import Identity
from retexo_fl.channels.roster import Roster
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.file_lock import locked_folder
from retexo_fl.graph import write_partitions
from tests.support.cli import CommandLine
from tests.support.short_paths import tmp_path

__all__ = ["tmp_path"]

FLEET: dict[str, object] = {
    "name": "clinics",
    "keys": "here",
    "server": {"address": "203.0.113.10"},
    "agent": {"most-memory-mib": 900, "predictions": "of-{name}"},
    "client": [
        {"count": 2, "name": "clinic-{client}", "host": "clinic-{client}.example.org"},
        {
            "count": 2,
            "name": "lab-{client}",
            "host": "2001:db8::7",
            "addresses": ["tcp://[{host}]:{port}", "relay:"],
            "listen": ["tcp://[::]:{port}"],
            "agent": {"least-train-nodes": 3},
        },
    ],
}
SECRETS = {"key.pem", "supernode-key", "agreement-secret", "server.key", "ca.key"}


@pytest.fixture
def retexo(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    """Nothing secret rests on the mask of whoever makes it."""
    before = os.umask(0)
    yield
    os.umask(before)


def write(path: Path, **changes: object) -> Path:
    path.write_text(tomli_w.dumps({**FLEET, **changes}))
    return path


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def changed(before: dict[str, bytes], folder: Path) -> set[str]:
    now = content(folder)
    return {name for name in before | now if before.get(name) != now.get(name)}


def modes(folder: Path) -> dict[Path, int]:
    return {path: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))}


def test_one_file_makes_all(retexo: CommandLine, tmp_path: Path) -> None:
    out = tmp_path / "clinics"
    assert retexo.done("fleet", "new", write(tmp_path / "FLEET.toml")) == f"4 clients in {out}\n"
    roster = Roster.read(out / "roster.toml")
    assert [its.addresses for its in roster.members.values()] == [
        ("tcp://clinic-0.example.org:7411",),
        ("tcp://clinic-1.example.org:7411",),
        ("tcp://[2001:db8::7]:7411", "relay:"),
        ("tcp://[2001:db8::7]:7412", "relay:"),
    ]
    for client, name in enumerate(("clinic-0", "clinic-1", "lab-2", "lab-3")):
        folder = out / "clients" / name
        settings = read_settings(folder / "agent.toml")
        identity = Identity.load(Path(settings.key), Path(settings.certificate))
        assert identity.client == client
        assert roster.members[client].certificate_pem == identity.certificate_pem
        assert Roster.read(Path(settings.roster)) == roster
        assert settings.most_memory_mib == 900
        assert settings.least_train_nodes == (3 if name.startswith("lab") else 10)
        assert settings.predictions == str(folder / f"of-{name}")
        assert (folder / "ca.crt").read_bytes() == (out / "server/tls/ca.crt").read_bytes()
        public = folder / "supernode-key.pub"
        assert public.read_bytes() == (out / f"server/supernodes/{name}.pub").read_bytes()
        told = subprocess.run(
            ["ssh-keygen", "-y", "-f", folder / "supernode-key"], capture_output=True, check=True
        )
        assert told.stdout.split()[:2] == public.read_bytes().split()
        assert told.stdout.startswith(b"ecdsa-sha2-nistp384 ")
        assert len((folder / "README").read_text().splitlines()) == 3
    assert read_settings(out / "clients/lab-3/agent.toml").listen == ("tcp://[::]:7412",)
    assert "--port 9095 " in (out / "clients/lab-3/README").read_text()
    verify = ["openssl", "verify", "-x509_strict", "-verify_ip", "203.0.113.10", "-CAfile"]
    tls = out / "server/tls"
    subprocess.run([*verify, tls / "ca.crt", tls / "server.pem"], check=True, capture_output=True)
    assert not (tls / "ca.key").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["FLEET.toml", "clinics"]


def test_nothing_secret_can_be_read_by_others(retexo: CommandLine, tmp_path: Path) -> None:
    retexo.done("fleet", "new", write(tmp_path / "FLEET.toml"))
    found = modes(tmp_path / "clinics")
    assert {mode for path, mode in found.items() if path.is_dir()} == {0o700}
    secret = {path: mode for path, mode in found.items() if path.name in SECRETS}
    assert len(secret) == 4 * 2 + 2
    assert set(secret.values()) == {0o600}
    for path in found.keys() - secret.keys():
        assert path.is_dir() or b"PRIVATE KEY" not in path.read_bytes()


def test_one_client_more_changes_only_what_names_it(retexo: CommandLine, tmp_path: Path) -> None:
    path, out = write(tmp_path / "FLEET.toml"), tmp_path / "clinics"
    retexo.done("fleet", "new", path)
    before = content(out)
    assert retexo.done("fleet", "new", path).endswith("\nnothing changed\n")
    assert changed(before, out) == set()
    one = {"host": "clinic-4.example.org", "name": "clinic-4"}
    write(path, client=[*FLEET["client"], one])  # type: ignore[misc]
    assert retexo.done("fleet", "new", path).splitlines()[1:] == [
        "new        clients/clinic-4",
        "changed    roster.toml",
        "changed    server/README",
        "register   server/supernodes/clinic-4.pub (server/README)",
        "changed    roster.toml of 4 clients",
    ]
    others = {it for it in changed(before, out) if not it.startswith("clients/clinic-4/")}
    assert others == {
        *("fleet.toml", "roster.toml", "server/README", "server/supernodes/clinic-4.pub"),
        *(f"clients/{name}/roster.toml" for name in ("clinic-0", "clinic-1", "lab-2", "lab-3")),
    }
    assert {mode for it, mode in modes(out).items() if it.is_dir()} == {0o700}
    # A limit, of one client; a client less.
    write(path, client=[*FLEET["client"][:1], {**one, "client": 4}])  # type: ignore[index]
    said = retexo.done("fleet", "new", path)
    assert "left over  clients/lab-2: not in the file" in said
    assert list(Roster.read(out / "roster.toml").members) == [0, 1, 4]
    assert Identity.load(out / "clients/clinic-4/key.pem", out / "clients/clinic-4/certificate.pem")


def test_another_address_of_the_server_gets_a_certificate_of_the_same_authority(
    retexo: CommandLine, tmp_path: Path
) -> None:
    path, out = write(tmp_path / "FLEET.toml"), tmp_path / "clinics"
    retexo.done("fleet", "new", path)
    before = content(out)
    write(path, server={"address": "vm.example.org"})
    retexo.done("fleet", "new", path)
    assert {name for name in changed(before, out) if "/tls/" in name or "authority" in name} == {
        "server/tls/server.pem",
        "server/tls/server.key",
    }
    assert stat.S_IMODE((out / "server/tls/server.key").stat().st_mode) == 0o600
    (out / "authority/ca.key").unlink()
    said = retexo.refused("fleet", "new", write(path, server={"address": "other.example.org"}))
    assert "ca.key: missing; expected it back for a certificate of other.example.org" in said


def test_keys_may_leave_the_folder(retexo: CommandLine, tmp_path: Path) -> None:
    path, out = write(tmp_path / "FLEET.toml"), tmp_path / "clinics"
    retexo.done("fleet", "new", path)
    for name in ("key.pem", "supernode-key"):
        (out / "clients/lab-2" / name).unlink()
    before = content(out)
    retexo.done("fleet", "new", path)
    assert changed(before, out) == set()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nam": 1}, "nam: unknown key; expected some of name, keys, services"),
        ({"name": "Clinics!"}, "name: got 'Clinics!'; expected 1 to 20 small letters"),
        ({"keys": "mine"}, 'keys: got \'mine\'; expected "here" or "theirs"'),
        ({"services": True}, 'services: got True; expected "none" or "systemd" or "containers"'),
        (
            {"services": "containers", "keys": "theirs", "masks": {}},
            "services: got 'containers'; expected keys = \"here\" with [masks], or other services",
        ),
        ({"server": {}}, "[server]: address: missing; expected a text"),
        ({"server": {"address": "a b"}}, "[server]: address: got 'a b:8000'; expected HOST:PORT"),
        ({"server": {"address": "a", "port": 0}}, "[server]: port: got 0; expected a whole number"),
        (
            {"services": "systemd", "server": {"address": "a", "port": 8001}},
            "[server]: port: got 8001; expected 8000, that of the server's unit or image",
        ),
        ({"agent": {"most-rouns": 3}}, "client 0: [agent]: most-rouns: unknown key; did you mean"),
        ({"agent": {"most-rounds": "3"}}, "client 0: [agent]: most-rounds: got '3'; expected a"),
        ({"agent": {"roster": "r"}}, "[agent]: roster: got 'r'; expected it not to be here"),
        ({"client": []}, "client: got []; expected [[client]] tables"),
        ({"client": [{"count": 2}]}, "[[client]] 1: host: missing; expected a text"),
        ({"client": [{"host": "h", "prot": 1}]}, "[[client]] 1: prot: unknown key; expected"),
        ({"client": [{"host": "h", "count": 0}]}, "[[client]] 1: count: got 0; expected a whole"),
        ({"client": [{"host": "{x}"}]}, "[[client]] 1: host: got '{x}'; expected no braces but"),
        (
            {"client": [{"host": "h", "addresses": ["tcp://h:1"]}]},
            "[[client]] 1: listen: missing; expected a list of texts",
        ),
        (
            {"client": [{"host": "h", "addresses": ["ftp://h"], "listen": []}]},
            "[[client]] 1: addresses: got 'ftp://h'; expected address 'ftp://h' is unknown",
        ),
        (
            {"client": [{"host": "h", "count": 2, "name": "one"}]},
            "client: two with the name 'one'; expected another for each",
        ),
        (
            {"client": [{"host": "h"}, {"host": "i", "client": 0, "name": "i"}]},
            "client: two with the index 0; expected another for each",
        ),
        (
            {"client": [{"host": "h"}, {"host": "h"}]},
            "client 1: port 7411 of h is taken by client 0; expected another port or node-port",
        ),
        (
            {"agent": {"metrics": "127.0.0.1:9300"}},
            "client 3: port 9300 of 2001:db8::7 is taken by client 2; expected another port",
        ),
        (
            {"agent": {"metrics": "/run/metrics.sock"}},
            "client 3: metrics /run/metrics.sock of 2001:db8::7 is taken by client 2; expected a "
            "path with {name} in it",
        ),
        (
            {"client": [{"host": "h", "count": 2, "part": "/srv//part"}]},
            "client 1: part /srv/part of h is taken by client 0; expected another part, such as",
        ),
        ({"masks": {"tolerated": 1}}, "client 0: part-here: missing; expected its part on this"),
        ({"masks": {"relation": "r"}}, "[masks]: relation: got 'r'; expected links = true"),
        ({"masks": {"least": 2}}, "[masks]: least: got 2; expected a whole number from 3"),
    ],
)
def test_a_file_that_cannot_be_used_makes_nothing(
    retexo: CommandLine, tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    path = write(tmp_path / "FLEET.toml", **changes)
    assert said in retexo.refused("fleet", "new", path)
    assert list(tmp_path.iterdir()) == [path]


def test_no_other_folder_is_written_to(retexo: CommandLine, tmp_path: Path) -> None:
    path, out = write(tmp_path / "FLEET.toml"), tmp_path / "out"
    out.mkdir()
    (out / "notes").touch()
    assert "is not empty; expected a new folder" in retexo.refused(
        "fleet", "new", path, "--out", out
    )
    (out / "notes").unlink()
    out.chmod(0o755)
    retexo.done("fleet", "new", path, "--out", out)
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    before = content(out)
    said = retexo.refused("fleet", "new", write(path, name="labs"), "--out", out)
    assert "is that of the fleet 'clinics'; expected another folder" in said
    # Another client under a name that is taken.
    tables = [{**FLEET["client"][0], "client": 7, "name": "clinic-0", "count": 1}]  # type: ignore[index]
    said = retexo.refused("fleet", "new", write(path, client=tables), "--out", out)
    assert "certificate.pem: is of client 0; expected that of client 7" in said
    assert changed(before, out) == set()
    assert sorted(tmp_path.iterdir()) == [path, out]


def test_figures_are_served_at_a_place_for_each(
    retexo: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their library is for agents' machines, not for that on which the files are made."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    agent = {"metrics": "/run/retexo-agents/{name}/metrics.sock"}
    retexo.done("fleet", "new", write(tmp_path / "FLEET.toml", agent=agent))
    for name in ("lab-2", "lab-3"):
        text = (tmp_path / "clinics/clients" / name / "agent.toml").read_text()
        assert f'metrics = "/run/retexo-agents/{name}/metrics.sock"' in text


def test_a_folder_whose_path_is_too_long_for_a_socket_is_told(
    retexo: CommandLine, tmp_path: Path
) -> None:
    folder = tmp_path / ("l" * 80)
    folder.mkdir()
    path = write(folder / "FLEET.toml")
    said = retexo.done("fleet", "new", path).splitlines()
    assert len(said) == 2
    assert "clients/clinic-0/agent.sock has " in said[1]
    assert "an agent takes 107: it can run where its bundle has a shorter path" in said[1]
    said = retexo.done("fleet", "check", path).splitlines()
    assert sum("an agent listens at 107 at most" in line for line in said) == 4


def test_all_containers_have_the_same_places(retexo: CommandLine, tmp_path: Path) -> None:
    path = write(tmp_path / "FLEET.toml", services="containers")
    retexo.done("fleet", "new", path)
    assert (tmp_path / "clinics/clients/lab-3/agent.toml").read_text().splitlines()[:6] == [
        'partition = "/var/lib/retexo/part"',
        'state = "/var/lib/retexo/state"',
        'socket = "/run/retexo/agent.sock"',
        'key = "/etc/retexo/key.pem"',
        'certificate = "/etc/retexo/certificate.pem"',
        'roster = "/etc/retexo/roster.toml"',
    ]
    for bundle in ("clients/lab-3", "server"):
        readme = (tmp_path / "clinics" / bundle / "README").read_text()
        assert "Start: containers of docs/containers.md, whose user owns this folder" in readme
    assert retexo.done("fleet", "check", path).count(" bad ") == 0


MAKE = """
import os, signal, sys
from pathlib import Path
from retexo_fl.fleet import making
from retexo_fl.fleet.description import read_fleet

def killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)

making.server_texts = killed
making.make_fleet(read_fleet(Path(sys.argv[1])), Path(sys.argv[2]))
"""


def test_what_a_killed_run_left_is_removed_by_the_next(retexo: CommandLine, tmp_path: Path) -> None:
    path, out = write(tmp_path / "FLEET.toml"), tmp_path / "clinics"
    ended = subprocess.run([sys.executable, "-c", MAKE, path, out], check=False, timeout=100)
    assert ended.returncode == -9
    assert {it.name for it in tmp_path.rglob("*")} >= {"key.pem", "supernode-key"}
    assert not out.exists()
    retexo.done("fleet", "new", path)
    assert sorted(tmp_path.iterdir()) == [path, out]


def test_two_processes_make_no_fleet_of_each_others_keys(
    retexo: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "FLEET.toml")
    monkeypatch.setattr("retexo_fl.fleet.making._FREE_S", 0.0)
    with locked_folder(tmp_path):
        said = retexo.refused("fleet", "new", path)
    assert f"another process is making a fleet in {tmp_path}; expected none" in said
    assert list(tmp_path.iterdir()) == [path]


# ---- keys of owners ------------------------------------------------------------------------------


def make_keys(retexo: CommandLine, out: Path, name: str, owner: Path) -> None:
    """Do what the bundle's README tells its owner, and send what it names."""
    shutil.copytree(out / "clients" / name, owner)
    make, send, _ = (owner / "README").read_text().splitlines()
    assert make.startswith("Read agent.toml first. ")
    commands = make.partition("folder: ")[2].partition(";")[0].rstrip(".")
    ours, _, theirs = commands.partition(" && ")
    words = shlex.split(ours)
    assert words.pop(0) == "retexo"
    retexo.done(*(str(owner) if word == "." else word for word in words))
    subprocess.run(theirs, shell=True, cwd=owner, check=True)  # noqa: S602 - as its owner would
    for source, target in (("member.toml", f"{name}.toml"), ("supernode-key.pub", f"{name}.pub")):
        assert f"{source} as members/{target}" in send
        shutil.copy(owner / source, out / "members" / target)


def test_owners_make_their_own_keys(retexo: CommandLine, tmp_path: Path) -> None:
    path, out = write(tmp_path / "FLEET.toml", keys="theirs"), tmp_path / "clinics"
    said = retexo.done("fleet", "new", path)
    assert said.splitlines()[1:3] == [
        "missing    client 0 (clinic-0): members/clinic-0.toml",
        "missing    client 0 (clinic-0): members/clinic-0.pub",
    ]
    assert not (out / "roster.toml").exists()
    secret = {str(it.relative_to(out)) for it in out.rglob("*") if it.name in SECRETS}
    assert secret == {"authority/ca.key", "server/tls/server.key"}
    names = ("clinic-0", "clinic-1", "lab-2", "lab-3")
    for name in names[:3]:
        make_keys(retexo, out, name, tmp_path / name)
    said = retexo.done("fleet", "new", path)
    assert said.splitlines()[-2:] == [
        "missing    client 3 (lab-3): members/lab-3.toml",
        "missing    client 3 (lab-3): members/lab-3.pub",
    ]
    assert not (out / "roster.toml").exists()
    make_keys(retexo, out, "lab-3", tmp_path / "lab-3")
    said = retexo.done("fleet", "new", path)
    assert "changed    roster.toml of 4 clients" in said
    assert "missing" not in said
    roster = Roster.read(out / "roster.toml")
    for client, name in enumerate(names):
        pem = (tmp_path / name / "certificate.pem").read_text()
        assert roster.members[client].certificate_pem == pem
        assert Roster.read(out / "clients" / name / "roster.toml") == roster
        assert (out / f"server/supernodes/{name}.pub").exists()
    # A file of another client, an address that nobody expects, a key that is none.
    before = content(out)
    for changes, sentence in (
        ({"lab-3.pub": b"ssh-ed25519 AAAA"}, "lab-3.pub: expected an EC public key"),
        (
            {"lab-3.toml": content(out)["members/lab-2.toml"]},
            "client 2 is listed twice",
        ),
        (
            {"lab-3.toml": content(out)["members/lab-3.toml"].replace(b":7412", b":7499")},
            "client 3: its member file has the addresses tcp://[2001:db8::7]:7499, relay:;",
        ),
    ):
        for name, text in changes.items():
            (out / "members" / name).write_bytes(text)
        assert sentence in retexo.refused("fleet", "new", path)
        for name in changes:
            (out / "members" / name).write_bytes(before[f"members/{name}"])
    assert changed(before, out) == set()


def test_an_owner_whose_programs_are_services_sends_what_is_installed(
    retexo: CommandLine, tmp_path: Path
) -> None:
    path = write(tmp_path / "FLEET.toml", keys="theirs", services="systemd", masks={})
    retexo.done("fleet", "new", path)
    folder = tmp_path / "clinics" / "clients" / "lab-3"
    assert (folder / "supernode.env").read_text() == "SUPERLINK=203.0.113.10:8000\nNODE_PORT=9095\n"
    make, send, start = (folder / "README").read_text().splitlines()
    settings = "--config /etc/retexo/lab-3/agent.toml"
    assert make.startswith("Read agent.toml and install.sh first. ")
    assert f"; as root, sh install.sh PART; retexo keys member {settings}." in make
    assert "/etc/retexo/lab-3/member.toml as members/lab-3.toml" in send
    assert f"(retexo keys sign proposed.toml {settings})" in send
    assert start.endswith("systemctl enable --now retexo-agent@lab-3 retexo-supernode@lab-3")


def test_agents_that_are_their_own_supernodes_have_no_other_program(
    retexo: CommandLine, tmp_path: Path
) -> None:
    path = write(tmp_path / "FLEET.toml", supernode="agent", services="systemd")
    retexo.done("fleet", "new", path)
    folder = tmp_path / "clinics" / "clients" / "lab-3"
    settings = read_settings(folder / "agent.toml")
    assert settings.superlink == "203.0.113.10:8000"
    assert settings.root_certificates == "/etc/retexo/lab-3/ca.crt"
    assert settings.supernode_key == "/etc/retexo/lab-3/supernode-key"
    assert not [*folder.glob("*supernode*.service"), *folder.glob("supernode.env")]
    assert "enable --now retexo-agent@lab-3\n" in (folder / "README").read_text()
    assert "client 3 at 2001:db8::7" in retexo.done("fleet", "check", path)
    refused = retexo.refused("fleet", "new", write(path, supernode="own"))
    assert 'supernode: got \'own\'; expected "flower" or "agent"' in refused


# ---- what owners agree on ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("six") / "parts"
    write_partitions(make_parts(make_config({"dataset": "digits", "clients": 6})), folder)
    return folder


def test_one_owner_promises_and_signs_for_all(
    retexo: CommandLine, tmp_path: Path, parts: Path
) -> None:
    def with_clients(count: int) -> Path:
        table = {"count": count, "host": "10.0.0.{client}", "part-here": f"{parts}/part-{{client}}"}
        return write(tmp_path / "FLEET.toml", client=[table], masks={"tolerated": 0})

    path, out = with_clients(3), tmp_path / "clinics"
    retexo.done("fleet", "new", path)
    first = Federation.read(out / "roster.toml")
    assert first is not None
    assert [its.members for its in first.agreement.cohorts] == [(0, 1, 2)]
    secret = out / "clients/client-0/agreement-secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    before = content(out)
    assert retexo.done("fleet", "new", path).endswith("\nnothing changed\n")
    # One client alone would be told apart from the others.
    assert "expected 3 such clients at least" in retexo.refused("fleet", "new", with_clients(4))
    assert changed(before, out) == set()
    assert sorted(tmp_path.iterdir()) == [path, out]
    retexo.done("fleet", "new", with_clients(6))
    later = Federation.read(out / "roster.toml")
    assert later is not None
    assert [its.members for its in later.agreement.cohorts] == [(0, 1, 2), (3, 4, 5)]
    assert later.past == first.versions
    assert content(out)["clients/client-0/agreement-secret"] == secret.read_bytes()


def test_owners_promise_and_sign_what_the_fleet_proposes(
    retexo: CommandLine, tmp_path: Path, parts: Path
) -> None:
    tables = [{"count": 3, "host": "10.0.0.{client}"}]
    path = write(tmp_path / "FLEET.toml", keys="theirs", client=tables, masks={}, agent={})
    out = tmp_path / "clinics"
    retexo.done("fleet", "new", path)
    owners = {f"client-{client}": tmp_path / f"client-{client}" for client in range(3)}
    for name, owner in owners.items():
        make_keys(retexo, out, name, owner)
    said = retexo.done("fleet", "new", path)
    assert "missing    client 1 (client-1): members/client-1.toml with a new promise" in said
    for client, (name, owner) in enumerate(owners.items()):
        shutil.copytree(parts / f"part-{client}", owner / "part")
        retexo.done("keys", "member", "--config", owner / "agent.toml")
        shutil.copy(owner / "member.toml", out / "members" / f"{name}.toml")
    said = retexo.done("fleet", "new", path)
    assert "changed    proposed.toml of client-0, client-1, client-2" in said
    assert "missing    client 2 (client-2): members/ a signature of proposed.toml" in said
    for name, owner in owners.items():
        proposed = out / "clients" / name / "proposed.toml"
        retexo.done("keys", "sign", proposed, "--config", owner / "agent.toml")
        (signature,) = owner.glob("signature-*.toml")
        shutil.copy(signature, out / "members")
    assert "missing" not in retexo.done("fleet", "new", path)
    agreed = Federation.read(out / "clients/client-1/roster.toml")
    assert agreed is not None
    assert [its.members for its in agreed.agreement.cohorts] == [(0, 1, 2)]
    assert retexo.done("fleet", "new", path).endswith("\nnothing changed\n")
    # Whoever signed has told its number: for other members all promise anew.
    tables[0]["count"] = 6
    write(path, keys="theirs", client=tables, masks={}, agent={})
    retexo.done("fleet", "new", path)
    for client in range(3, 6):
        owner = tmp_path / f"client-{client}"
        make_keys(retexo, out, owner.name, owner)
        shutil.copytree(parts / f"part-{client}", owner / "part")
        retexo.done("keys", "member", "--config", owner / "agent.toml")
        shutil.copy(owner / "member.toml", out / "members" / f"{owner.name}.toml")
    said = retexo.done("fleet", "new", path)
    lacking = [line for line in said.splitlines() if line.startswith("missing")]
    assert [line.split()[2] for line in lacking] == ["0", "1", "2"]
    assert all("with a new promise" in line for line in lacking)
    assert Federation.read(out / "roster.toml") == agreed
