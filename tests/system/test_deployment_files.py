"""What `server/` and `clients/` ship beside Python: units, scripts, a VM's set-up, an example."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import time
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import yaml  # type: ignore[import-untyped]
from cryptography import x509

from retexo_fl.additions.kernel_path.carrying.opening import wanted_address
from retexo_fl.agent.settings import AgentSettings, read_settings
from tests.support.commands import ROOT

pytestmark = [pytest.mark.system]

UNITS = (
    "server/retexo-superlink.service",
    "clients/retexo-agent.service",
    "clients/retexo-supernode.service",
    "clients/retexo-agent@.service",
    "clients/retexo-supernode@.service",
)
#: What those of several clients on one machine say where the others say this.
OF_NAME = {
    "/var/lib/retexo-supernode": "/var/lib/retexo-supernodes/%i",
    "Directory=retexo-supernode": "Directory=retexo-supernodes/%i",
    "/var/lib/retexo": "/var/lib/retexo-agents/%i",
    "/run/retexo": "/run/retexo-agents/%i",
    "Directory=retexo": "Directory=retexo-agents/%i",
    "/etc/retexo": "/etc/retexo/%i",
    "retexo-agent.service": "retexo-agent@%i.service",
    "User=retexo": "User=retexo-%i",
    "Group=retexo": "Group=retexo-%i",
    "Description=retexo agent": "Description=retexo agent of %i",
    "SuperNode of a retexo client": "SuperNode of the retexo client %i",
    "--node-config": "--port ${NODE_PORT} \\\n  --node-config",
}
#: What an agent of the kernel path has beside its unit.
ADDITION = "clients/retexo-agent.service.d"
#: What the units start, at the places where the documents put it.
PROGRAMS = ("retexo", "flower-superlink", "flower-supernode")
SCRIPT = ROOT / "server" / "make-certificates.sh"


def ended(*command: str | Path, code: int) -> str:
    """Run a program that must end with ``code``, and return what it said."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


# ---- units ---------------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Return the root of a machine on which our units and programs stand, and systemd's units."""
    systemd = next(
        (place for place in ("/usr/lib/systemd", "/lib/systemd") if Path(place).is_dir()), None
    )
    if systemd is None or shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (Debian: systemd)")
    shutil.copytree(f"{systemd}/system", tmp_path / "usr/lib/systemd/system", symlinks=True)
    units, programs = tmp_path / "etc/systemd/system", tmp_path / "opt/retexo/bin"
    units.mkdir(parents=True)
    programs.mkdir(parents=True)
    for unit in UNITS:
        shutil.copy(ROOT / unit, units)
    for name in PROGRAMS:
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_has_nothing_to_say_against_a_unit(machine: Path, unit: str) -> None:
    name = Path(unit).name
    verify = ("systemd-analyze", "verify", "--man=no", f"--root={machine}")
    started = name.replace("@", "@clinic-7")
    assert ended(*verify, started, code=0) == ""
    # It would have said something: a program that is not there, and a word that it does not know.
    (machine / "etc/systemd/system" / name).write_text(
        (ROOT / unit).read_text().replace("/opt/retexo/bin/", "/opt/none/") + "[Service]\nWrong=1\n"
    )
    said = subprocess.run([*verify, started], capture_output=True, text=True, check=False).stderr
    assert "/opt/none/" in said
    assert "Wrong" in said


@pytest.mark.parametrize("name", ["retexo-agent", "retexo-supernode"])
def test_a_unit_of_several_clients_is_that_of_one_with_its_name(name: str) -> None:
    one, several = (_said((ROOT / f"clients/{name}{end}.service").read_text()) for end in ("", "@"))
    pattern = re.compile("|".join(rf"{re.escape(word)}(?![\w-])" for word in OF_NAME))
    assert several == pattern.sub(lambda match: OF_NAME[match[0]], one)


def _said(unit: str) -> str:
    """Return a unit without its comments."""
    return re.sub(r"^#.*\n", "", unit, flags=re.M)


def test_what_an_owner_keeps_is_hidden_from_code_that_the_server_sends() -> None:
    """The SuperNode's unit has the agent's user, and may read what is the agent's alone."""
    unit = (ROOT / "clients/retexo-supernode.service").read_text()
    hidden = " ".join(re.findall(r"^InaccessiblePaths=(.*)$", unit, re.M)).split()
    table = (ROOT / "clients/README.md").read_text()
    private = re.findall(r"^\| `([\w/.-]+)`.* \| retexo, 0[67]00 \|", table, re.M)
    assert len(private) == 3
    for path in private:
        assert any(path.startswith(each.removeprefix("-")) for each in hidden), path


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_leaves_little_open(machine: Path, unit: str) -> None:
    said = ended(
        *("systemd-analyze", "security", "--offline=true", "--threshold=20"),
        *(f"--root={machine}", Path(unit).name.replace("@", "@clinic-7")),
        code=0,
    )
    assert "OK" in said.splitlines()[-1]


@pytest.mark.parametrize("with_af_xdp", [False, True])
def test_systemd_accepts_the_addition_for_the_kernel_path(machine: Path, with_af_xdp: bool) -> None:
    name = "retexo-agent.service"
    added = machine / "etc/systemd/system" / f"{name}.d"
    added.mkdir()
    path = Path(shutil.copy(ROOT / ADDITION / "kernel-path.conf", added))
    if with_af_xdp:
        path.write_text(re.sub(r"^#(?=\w+=)", "", path.read_text(), flags=re.M))
        assert "\nLimitMEMLOCK=" in path.read_text()
    verify = ("systemd-analyze", "verify", "--man=no", f"--root={machine}", name)
    assert ended(*verify, code=0) == ""
    security = ("systemd-analyze", "security", "--offline=true", "--threshold=25")
    assert "OK" in ended(*security, f"--root={machine}", name, code=0).splitlines()[-1]
    # It would have said something: sockets and a call that nobody knows.
    wrong = path.read_text().replace("AF_NETLINK", "AF_NONE").replace("=bpf", "=no_such_call")
    path.write_text(wrong)
    said = subprocess.run(verify, capture_output=True, text=True, check=False).stderr
    assert "AF_NONE" in said
    assert "no_such_call" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's processes are started by root")
def test_a_private_user_namespace_keeps_the_same_user_out() -> None:
    # What retexo-supernode.service relies on (PrivateUsers): the agent is such a process.
    as_user = ("setpriv", "--reuid=31234", "--regid=31234", "--clear-groups")
    with subprocess.Popen([*as_user, "sleep", "60"]) as agent:
        try:
            files = f"/proc/{agent.pid}/root/etc"
            private = ("unshare", "--user", "--map-user=31234")
            deadline = time.monotonic() + 30
            while Path(f"/proc/{agent.pid}/comm").read_text() != "sleep\n":
                assert time.monotonic() < deadline, "setpriv has not become sleep"
                time.sleep(0.01)
            assert "passwd" in ended(*as_user, "ls", files, code=0)
            assert "Permission denied" in ended(*as_user, *private, "ls", files, code=2)
        finally:
            agent.kill()


# ---- certificates --------------------------------------------------------------------------------


def test_the_authority_signs_a_certificate_for_the_names_given(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    ended(SCRIPT, folder, "vm.example.org", "203.0.113.10", "2001:db8::1", "[::5]", code=0)
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    secret = dict.fromkeys(("ca.key", "server.key"), 0o600)
    assert files == secret | dict.fromkeys(("ca.crt", "server.pem"), 0o644)
    certificate = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "vm.example.org"]
    addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    assert addresses == ["127.0.0.1", "::1", "203.0.113.10", "2001:db8::1", "::5"]
    # Python 3.13 and later ask for this.
    verify = ("openssl", "verify", "-x509_strict", "-CAfile")
    ended(*verify, folder / "ca.crt", folder / "server.pem", code=0)


def test_no_certificate_is_overwritten_and_another_can_be_signed(tmp_path: Path) -> None:
    ended(SCRIPT, tmp_path, "one.example.org", code=0)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert "already there" in ended(SCRIPT, tmp_path, "two.example.org", code=2)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    for name in ("server.pem", "server.key"):
        (tmp_path / name).unlink()
    ended(SCRIPT, tmp_path, "two.example.org", code=0)
    ended("openssl", "verify", "-CAfile", tmp_path / "ca.crt", tmp_path / "server.pem", code=0)
    assert (tmp_path / "ca.crt").read_bytes() == before[tmp_path / "ca.crt"]
    (tmp_path / "server.pem").unlink()
    (tmp_path / "server.key").unlink()
    (tmp_path / "ca.key").unlink()
    assert "expected both" in ended(SCRIPT, tmp_path, "three.example.org", code=2)


@pytest.mark.parametrize("name", ["", "a,DNS:evil.example.org", "a b", "-help", "a/CN=b"])
def test_a_name_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    said = ended(SCRIPT, tmp_path / "tls", name, code=2)
    assert "expected a DNS name or an IP address" in said
    assert not (tmp_path / "tls").exists()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("2001:db8::1:8000", "expected an IPv6 address in brackets, [ADDRESS]:PORT"),
        ("[2001:db8::1]:port", "expected HOST:PORT"),
        ("ftp://vm:8000", "expected HOST:PORT"),
        ("[2001:db8::1]:8000", "nokey: cannot be read"),
        ("https://vm:8000/", "nokey: cannot be read"),
    ],
)
def test_an_address_to_register_at_is_read_as_a_url_is(
    tmp_path: Path, address: str, said: str
) -> None:
    authority = tmp_path / "ca.crt"
    authority.touch()
    script = ROOT / "server" / "register-client.sh"
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    command = ("env", f"PATH={path}", script, address, authority, tmp_path / "nokey")
    assert said in ended(*command, code=2)


# ---- a VM's set-up, and the example --------------------------------------------------------------


def test_a_new_vm_gets_the_files_of_the_server_as_they_are() -> None:
    text = (ROOT / "server" / "cloud-init.yaml").read_text()
    assert text.startswith("#cloud-config\n")
    setup: dict[str, Any] = yaml.safe_load(text)
    written = {entry["path"]: entry for entry in setup["write_files"]}
    for path, name, mode in (
        ("/usr/local/sbin/retexo-make-certificates", "make-certificates.sh", "0755"),
        ("/usr/local/sbin/retexo-register-client", "register-client.sh", "0755"),
        ("/etc/systemd/system/retexo-superlink.service", "retexo-superlink.service", "0644"),
    ):
        assert written[path]["content"] == (ROOT / "server" / name).read_text()
        assert written[path]["permissions"] == mode
    # Every file that a command reads or starts is one that was written, or a package's.
    for command in setup["runcmd"]:
        for word in command.split():
            if word.startswith(("/usr/local/", "/etc/retexo/")) and word != "/etc/retexo/tls":
                assert word in written


def test_cloud_init_takes_the_set_up() -> None:
    program = shutil.which("cloud-init")
    path = ROOT / "server" / "cloud-init.yaml"
    if program is not None:
        assert "Valid" in ended(program, "schema", "--config-file", path, code=0)
    setup = yaml.safe_load(path.read_text())
    assert set(setup) == {"package_update", "packages", "users", "write_files", "runcmd"}
    assert all(isinstance(command, str) for command in setup["runcmd"])


def test_the_example_of_an_agent_is_one_that_the_units_start() -> None:
    settings = read_settings(ROOT / "clients" / "agent.toml")
    unit = (ROOT / "clients" / "retexo-supernode.service").read_text()
    assert f'agent="{settings.socket}"' in unit
    for place in (settings.partition, settings.state):
        assert Path(place).is_relative_to("/var/lib/retexo")


def test_every_key_of_an_agent_is_in_its_example_and_readable(
    tmp_path: Path,
) -> None:
    text = (ROOT / "clients" / "agent.toml").read_text()
    for item in fields(AgentSettings):
        key = item.name.replace("_", "-")
        assert re.search(rf"^(?:# )?{key} = ", text, re.M), key
    # What a comment shows in place of a line stands in the line's place.
    shown = tomllib.loads("\n".join(re.findall(r"^# ([a-z-]+ = .*)$", text, re.M)))
    path = tmp_path / "agent.toml"
    # An agent is its own SuperNode, or counts the bytes of one.
    meter, own = {"meter"}, {"root-certificates", "supernode-key", "insecure"}
    for others in (own, meter):
        kept = {key: value for key, value in shown.items() if key not in others}
        path.write_text(tomli_w.dumps({**tomllib.loads(text), **kept}))
        settings = read_settings(path)
        assert settings.superlink
    assert wanted_address(settings.listen).scheme == "xdp"
    assert (
        settings.datagram_memory_mib
        == AgentSettings.__dataclass_fields__["datagram_memory_mib"].default
    )
