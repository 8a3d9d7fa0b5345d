"""What `edge/` ships: a script that makes a Raspberry Pi a client, units, and their limits.

The script runs for real in a copy of this machine that says it is a Raspberry Pi; what it
would download, and systemd itself, are programs that write down how they were called.
"""

from __future__ import annotations

import re
import shutil
import socket
import stat
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from retexo_fl import __version__
from retexo_fl.agent.settings import read_settings
from tests.support.commands import ROOT, environment
from tests.support.machine_copies import COPY, need_root, places, write_stand_ins

pytestmark = [pytest.mark.system]

EDGE = ROOT / "edge"
SCRIPT = EDGE / "install.sh"
PAGE = ROOT / "docs" / "edge.md"
MEASURED = ROOT / "docs" / "measured" / "deployment.md"
UNITS = ("retexo-agent.service", "retexo-supernode.service", "retexo-bluetooth.service")
#: What the units start, where they say.
PROGRAMS = (
    "opt/retexo/bin/retexo",
    "opt/retexo/bin/flower-supernode",
    "usr/sbin/rfkill",
    "usr/bin/bluetoothctl",
)
#: The unit of BlueZ, as far as ours need it.
BLUEZ = "[Service]\nType=dbus\nBusName=org.bluez\nExecStart=/usr/bin/bluetoothctl\n"


def ended(*command: str | Path, code: int, path: str | None = None) -> str:
    """Run a program that must end with ``code``, and return what it said."""
    done = subprocess.run(
        command,
        env=environment({"PATH": path} if path else None),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


# ---- the script looks ----------------------------------------------------------------------------


def stand_in(folder: Path, name: str, script: str) -> None:
    """Put a program into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def like_a(folder: Path, architecture: str, machine: str) -> str:
    """Return a PATH on which the machine says that it is of another kind."""
    stand_in(folder, "dpkg", f"echo {architecture}")
    stand_in(folder, "uname", f"echo {machine}")
    stand_in(folder, "apt-cache", "exit 100")
    return f"{folder}:/usr/sbin:/usr/bin:/sbin:/bin"


@pytest.mark.parametrize(
    ("architecture", "machine", "said"),
    [
        ("amd64", "x86_64", "this machine is amd64 (x86_64), not arm64"),
        ("armhf", "aarch64", "this is a 32-bit system (armhf on aarch64)"),
        ("armhf", "armv7l", "this is a 32-bit system (armhf on armv7l)"),
    ],
)
def test_a_machine_that_is_no_64_bit_pi_is_refused_by_name(
    tmp_path: Path, architecture: str, machine: str, said: str
) -> None:
    path = like_a(tmp_path, architecture, machine)
    before = sorted(tmp_path.iterdir())
    # Not as root either: it looks before it does anything.
    for options in ([], ["--dry-run"]):
        assert said in ended(SCRIPT, *options, code=2, path=path)
    assert sorted(tmp_path.iterdir()) == before


def test_a_dry_run_says_what_would_be_done_and_does_nothing(tmp_path: Path) -> None:
    path = like_a(tmp_path, "arm64", "aarch64")
    for name in ("apt-get", "systemctl", "useradd", "usermod", "install", "sed", "cp", "rm", "env"):
        stand_in(tmp_path, name, f"echo did {name} >> {tmp_path}/done")
    wheel = tmp_path / "retexo_fl-9-py3-none-any.whl"
    wheel.touch()
    # What this machine lacks beside its processor is said too, and is another test's.
    done = subprocess.run(
        [SCRIPT, "--dry-run", "--any-memory", "--wheel", wheel],
        env=environment({"PATH": path}),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert "not arm64" not in done.stderr
    assert not (tmp_path / "done").exists()
    for step in (
        "apt-get install",
        "useradd",
        "pip install",
        "systemctl enable",
        "bluez",
        f"{wheel}[bluetooth]",
    ):
        assert step in done.stdout


@pytest.mark.parametrize(
    "words", [["--wrong"], ["--wheel"], ["part"], ["--wheel", "/no/such"], ["--bundle", "/no"]]
)
def test_words_that_mean_nothing_are_refused(words: Sequence[str]) -> None:
    assert "expected" in ended(SCRIPT, *words, code=2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "expected FOLDER"),
        (["--machine", "armv7l", "wheels"], "'armv7l': expected aarch64 or x86_64"),
        (["--python", "3.9", "wheels"], "'3.9': expected 3.11 or later"),
        (["--wrong"], "'--wrong': expected"),
        ([str(EDGE)], f"{EDGE}: exists; expected a new folder"),
    ],
)
def test_a_bundle_of_nothing_known_is_refused(words: Sequence[str], said: str) -> None:
    assert said in ended(EDGE / "bundle.sh", *words, code=2)


def test_a_port_in_use_is_named_before_a_server_to_try_is_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "two-pis"
    ended(ROOT / "server" / "make-certificates.sh", folder / "tls", "127.0.0.1", code=0)
    programs = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    with socket.socket() as taken:
        with suppress(OSError):  # Somebody else may have it.
            taken.bind(("0.0.0.0", 8000))  # noqa: S104 - as the SuperLink does
            taken.listen()
        said = ended(EDGE / "quick-server.sh", folder, "h", "a", "b", code=2, path=programs)
        assert "port 8000 is in use: stop the process that uses it" in said


def test_what_is_no_wheel_or_bundle_of_ours_is_refused_by_name(tmp_path: Path) -> None:
    other = tmp_path / "other-1-py3-none-any.whl"
    other.touch()
    assert f"{other}: expected a wheel of retexo-fl" in ended(SCRIPT, "--wheel", other, code=2)
    said = ended(SCRIPT, "--bundle", tmp_path, code=2)
    assert f"{tmp_path}: no wheel of retexo-fl; expected what edge/bundle.sh made" in said


def test_shellcheck_has_nothing_to_say() -> None:
    if shutil.which("shellcheck") is None:
        # The shell itself at least reads it.
        assert ended("sh", "-n", SCRIPT, code=0) == ""
    else:
        assert ended("shellcheck", SCRIPT, code=0) == ""


# ---- the script does: each night, beside an emulated machine (test_aarch64.py) -------------------


#: Installs twice, on a release that is known, and shows what is there afterwards.
_INSTALL = """
cd /mnt
install="$1/edge/install.sh --any-memory"
export PIP_NO_INDEX=1 PIP_NO_BUILD_ISOLATION=0
unset PIP_FIND_LINKS
echo VERSION_CODENAME=bullseye > /etc/os-release
if $install > refused 2>&1; then exit 1; fi
test ! -e /mnt/calls
test ! -e /opt/retexo
echo VERSION_CODENAME=trixie > /etc/os-release
$install > first
/opt/retexo/bin/retexo --version > version
echo mine >> /etc/retexo/agent.toml
find /etc/systemd /etc/retexo /boot/firmware -type f | sort | xargs sha256sum > files-1
$install --bundle /mnt/bundle > second
/opt/retexo/bin/python -c "import retexo_fl; print(retexo_fl.__version__)" > version-2
find /etc/systemd /etc/retexo /boot/firmware -type f | sort | xargs sha256sum > files-2
cp /boot/firmware/cmdline.txt /mnt/
cp -r /etc/systemd /etc/retexo /mnt/
id retexo > user
stat --format='%U %a' /var/lib/retexo > home
ls /opt/retexo/bin /opt/retexo > program
mkdir -p own/keys own/part
for name in keys/key.pem keys/agreement-secret keys/certificate.pem supernode-key ca.crt \\
  roster.toml part/a SUPERLINK
do echo "$name=" > "own/$name"; done
mv own/SUPERLINK own/supernode.env
mkdir /var/lib/retexo/part && touch /var/lib/retexo/part/old
$install --bundle /mnt/bundle --files own > third
cd /etc/retexo
stat --format='%n %U %a' key.pem agreement-secret certificate.pem supernode-key \\
  ca.crt roster.toml > /mnt/placed
cat supernode.env key.pem >> /mnt/placed
stat --format='%n %U' /var/lib/retexo/part/* >> /mnt/placed
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what was seen on a copy of this machine after two installations."""
    need_root()
    seen, copy = tmp_path_factory.mktemp("seen"), tmp_path_factory.mktemp("copy")
    write_stand_ins(seen / "stand_ins")
    home, bundle = seen / "home-of-pi", seen / "bundle"
    home.mkdir()
    bundle.mkdir()
    with zipfile.ZipFile(bundle / "retexo_fl-0-py3-none-any.whl", "w") as wheel:
        facts = "retexo_fl-0.dist-info"
        needs = "".join(f"Requires-Dist: {need}\n" for need in ("numpy", "tomli-w"))
        told = f"Metadata-Version: 2.1\nName: retexo-fl\nVersion: 0\n{needs}"
        wheel.writestr(f"{facts}/METADATA", told)
        wheel.writestr(
            f"{facts}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{facts}/RECORD", "")
        wheel.writestr("retexo_fl/__init__.py", "__version__ = 'of the bundle'\n")
    (seen / "install").write_text(_INSTALL)
    command = ("unshare", "--mount", "--", "sh", "-c", COPY, "sh", copy, seen, home, places())
    run = ("/bin/sh", "-eu", "/mnt/install", ROOT)
    ended(*command, *run, code=0, path=f"/mnt/stand_ins:{search_path()}")
    return seen


def search_path() -> str:
    """Return a PATH on which this interpreter is `python3`."""
    return f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"


@pytest.mark.slow
def test_everything_is_where_the_units_look(installed: Path) -> None:
    for name in ("retexo-agent.service", "retexo-supernode.service"):
        there = installed / "systemd/system" / name
        assert there.read_bytes() == (ROOT / "clients" / name).read_bytes()
        added = there.with_name(f"{name}.d") / "edge.conf"
        assert added.read_bytes() == (EDGE / f"{name}.d" / "edge.conf").read_bytes()
    assert (installed / "systemd/system/retexo-bluetooth.service").is_file()
    assert (installed / "systemd/journald.conf.d/retexo.conf").is_file()
    assert "bluetooth" in (installed / "user").read_text()
    assert (installed / "home").read_text() == "retexo 700\n"
    program = (installed / "program").read_text().split()
    assert "pip" in program
    assert "unpacking" not in program


@pytest.mark.slow
def test_the_clone_is_installed_and_then_what_a_bundle_has(installed: Path) -> None:
    assert (installed / "version").read_text() == f"retexo-fl {__version__}\n"
    assert (installed / "version-2").read_text() == "of the bundle\n"


@pytest.mark.slow
def test_a_clients_files_are_put_in_place_and_its_units_started(installed: Path) -> None:
    assert (installed / "placed").read_text().splitlines() == [
        "key.pem retexo 600",
        "agreement-secret retexo 600",
        "certificate.pem root 644",
        "supernode-key root 600",
        "ca.crt root 644",
        "roster.toml root 644",
        "SUPERLINK=",
        "keys/key.pem=",
        "/var/lib/retexo/part/a retexo",
    ]
    calls = (installed / "calls").read_text().splitlines()
    assert calls[-1] == "systemctl restart retexo-agent.service retexo-supernode.service"


@pytest.mark.slow
def test_packages_units_and_bluetooth_are_asked_for(installed: Path) -> None:
    calls = (installed / "calls").read_text().splitlines()
    asked, *_ = (call for call in calls if call.startswith("apt-get install"))
    assert {"python3-venv", "bluez", "rfkill", "pi-bluetooth", "bluez-firmware"} <= set(
        asked.split()
    )
    assert "firmware-brcm80211" not in asked
    assert "systemctl enable --now bluetooth.service" in calls
    assert "systemctl enable --now retexo-bluetooth.service" in calls
    assert "systemctl enable retexo-agent.service retexo-supernode.service" in calls
    # Nothing is started that has no key yet.
    assert len([call for call in calls if "restart retexo-agent" in call]) == 1
    assert "put these in place" in (installed / "first").read_text()


@pytest.mark.slow
def test_another_release_is_refused_before_anything_is_done(installed: Path) -> None:
    assert (installed / "refused").read_text().startswith("install: the system is 'bullseye'")


@pytest.mark.slow
def test_a_second_time_changes_nothing(installed: Path) -> None:
    assert (installed / "files-1").read_text() == (installed / "files-2").read_text()
    assert (installed / "retexo/agent.toml").read_text().endswith("mine\n")


@pytest.mark.slow
def test_the_kernel_is_told_once_to_count_memory(installed: Path) -> None:
    line = "console=tty1 root=PARTUUID=1 rootwait cgroup_enable=memory\n"
    assert (installed / "cmdline.txt").read_text() == line
    assert "reboot once" in (installed / "first").read_text()


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
    units = tmp_path / "etc/systemd/system"
    units.mkdir(parents=True)
    (units / "bluetooth.service").write_text(BLUEZ)
    for name in UNITS:
        source = EDGE if (EDGE / name).exists() else ROOT / "clients"
        shutil.copy(source / name, units)
        if (EDGE / f"{name}.d").is_dir():
            shutil.copytree(EDGE / f"{name}.d", units / f"{name}.d")
    for place in PROGRAMS:
        stand_in((tmp_path / place).parent, Path(place).name, "")
    return tmp_path


@pytest.mark.parametrize("name", UNITS)
def test_systemd_has_nothing_to_say_against_a_unit(machine: Path, name: str) -> None:
    verify = ("systemd-analyze", "verify", "--man=no", f"--root={machine}", name)
    assert ended(*verify, code=0) == ""
    # It would have said something: a word that it does not know, in the same file.
    ours = machine / "etc/systemd/system" / f"{name}.d" / "edge.conf"
    changed = ours if ours.exists() else ours.parent.with_suffix("")
    changed.write_text(changed.read_text().replace("[Service]", "[Service]\nWrong=1"))
    assert "Wrong" in subprocess.run(verify, capture_output=True, text=True, check=False).stderr


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_leaves_little_open(machine: Path, name: str) -> None:
    said = ended(
        *("systemd-analyze", "security", "--offline=true", "--threshold=25"),
        *(f"--root={machine}", name),
        code=0,
    )
    assert "OK" in said.splitlines()[-1]


def test_a_killed_supernode_comes_back_after_its_key_is_free() -> None:
    added = (EDGE / "retexo-supernode.service.d" / "edge.conf").read_text()
    (wait_s,) = re.findall(r"^RestartSec=(\d+)$", added, re.M)
    # For 60 s the SuperLink refuses the key of a SuperNode that died.
    assert int(wait_s) > 60
    for name in UNITS[:2]:
        added = (EDGE / f"{name}.d" / "edge.conf").read_text()
        (high,) = re.findall(r"^MemoryHigh=(\d+)%$", added, re.M)
        (most,) = re.findall(r"^MemoryMax=(\d+)%$", added, re.M)
        assert int(high) < int(most) < 100


def test_the_agent_may_use_bluetooth_and_the_supernode_may_not() -> None:
    agent, supernode = ((EDGE / f"{name}.d" / "edge.conf").read_text() for name in UNITS[:2])
    assert "RestrictAddressFamilies=AF_BLUETOOTH" in agent
    assert "SupplementaryGroups=bluetooth" in agent
    assert "luetooth" not in supernode


def test_the_example_of_an_agent_is_one_that_the_units_start() -> None:
    settings = read_settings(EDGE / "agent.toml")
    unit = (ROOT / "clients" / "retexo-supernode.service").read_text()
    assert f'agent="{settings.socket}"' in unit
    assert any(address.startswith("bluetooth:") for address in settings.listen)
    for place in (settings.partition, settings.state):
        assert Path(place).is_relative_to("/var/lib/retexo")


# ---- the page ------------------------------------------------------------------------------------


def numbers_of(row: str) -> list[str]:
    return [cell.strip().replace(",", "") for cell in row.strip("|").split("|")]


def formula(nodes: float, boundary: float, entries: float, features: int, hidden: int) -> float:
    """Return the megabytes of an agent, as the page says."""
    stands = "300,000,000 + 4 ((6 N + 3 B) (F + H) + 70 N + 13 E)"
    assert stands in PAGE.read_text(encoding="utf-8")
    rows = (6 * nodes + 3 * boundary) * (features + hidden)
    return 300 + 4e-6 * (rows + 70 * nodes + 13 * entries)


def test_the_formula_of_memory_is_not_below_what_was_measured() -> None:
    page = MEASURED.read_text(encoding="utf-8")
    rows = re.findall(r"^(?:\| [\d,]+ ){7}\|$", page, re.M)
    assert len(rows) == 10
    for row in rows:
        *sizes, measured, told = map(int, numbers_of(row))
        said = formula(*sizes)
        assert round(said) == told
        assert said > measured


def test_the_models_hold_what_the_formula_says() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]*\| [\d,]+ MB \| [\d,]+ MB \| [\d,]+ thousand.*$", page, re.M)
    assert len(rows) == 5
    for row in rows:
        _, seen, room, *held = numbers_of(row)
        seen_mb, room_mb = (float(text.removesuffix(" MB")) for text in (seen, room))
        # The system, Flower's three processes and the agent; or MemoryMax.
        assert room_mb == pytest.approx(min(seen_mb - 120 - 335 - 300, 0.6 * seen_mb - 300), abs=1)
        for features, text in zip((64, 512), held, strict=True):
            nodes = 1000 * int(text.removesuffix(" thousand"))
            taken = formula(nodes, nodes / 4, 10 * nodes, features, 64) - 300
            assert taken == pytest.approx(room_mb, rel=0.1)
            assert taken < room_mb + 1


def test_the_page_tells_what_the_files_do() -> None:
    for page in (PAGE, EDGE / "README.md"):
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#]*)(?:#[^)]*)?\)", text):
            assert not target or (page.parent / target).exists(), target
        for name in re.findall(r"`(edge/[\w.-]+)`", text):
            assert (ROOT / name).exists(), name
    listed = re.findall(r"^\| `([\w./-]+\.\w+)` \|", (EDGE / "README.md").read_text(), re.M)
    assert sorted(listed) == sorted(
        str(path.relative_to(EDGE))
        for path in EDGE.rglob("*")
        if path.is_file() and path.name != "README.md"
    )
    assert stat.S_IMODE(SCRIPT.stat().st_mode) == 0o755
