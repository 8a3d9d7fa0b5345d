"""``retexo keys``: files that belong together, and sentences about those that do not."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from retexo_fl.channels.identity import Identity
from retexo_fl.channels.roster import Roster
from tests.support.cli import CommandLine


def _new(retexo: CommandLine, folder: Path, client: int, *addresses: str) -> Path:
    options = [word for address in addresses for word in ("--address", address)]
    ended = retexo("keys", "new", "--client", str(client), *options, "--out", folder)
    assert ended.code == 0, ended.err
    return folder / "member.toml"


def test_new_keys_become_a_roster(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    retexo = CommandLine(capsys)
    zero = _new(retexo, tmp_path / "0", 0, "tcp://10.0.0.1:7411", "relay:")
    one = _new(retexo, tmp_path / "1", 1)
    assert stat.S_IMODE((tmp_path / "0" / "key.pem").stat().st_mode) == 0o600
    identity = Identity.load(tmp_path / "0" / "key.pem", tmp_path / "0" / "certificate.pem")
    roster = tmp_path / "roster.toml"
    ended = retexo("keys", "roster", one, zero, "--out", roster)
    assert (ended.code, ended.out) == (0, f"2 clients in {roster}\n")
    members = Roster.read(roster).members
    assert members[0].certificate_pem == identity.certificate_pem
    assert members[0].addresses == ("tcp://10.0.0.1:7411", "relay:")
    shown = retexo("keys", "show", roster)
    assert [line for line in shown.out.splitlines() if line.startswith("client")] == [
        "client 0",
        "client 1",
    ]
    assert "addresses    tcp://10.0.0.1:7411 relay:" in shown.out
    assert "addresses    none" in shown.out
    (line,) = [line for line in shown.out.splitlines() if "fingerprint" in line][:1]
    assert line in retexo("keys", "show", tmp_path / "0" / "certificate.pem").out
    assert line.split()[1] in retexo("keys", "show", zero).out


def test_nothing_is_written_over(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    retexo = CommandLine(capsys)
    member = _new(retexo, tmp_path / "0", 0)
    before = {path.name: path.read_bytes() for path in (tmp_path / "0").iterdir()}
    member.unlink()
    again = retexo("keys", "new", "--client", "0", "--out", tmp_path / "0")
    assert again.code == 2
    assert "key.pem: exists; expected" in again.err
    del before["member.toml"]
    assert {path.name: path.read_bytes() for path in (tmp_path / "0").iterdir()} == before
    taken = retexo("keys", "roster", tmp_path / "0" / "key.pem", "--out", tmp_path / "0/key.pem")
    assert taken.code == 2
    assert "exists" in taken.err


def test_entries_that_contradict_each_other_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    retexo = CommandLine(capsys)
    zero = _new(retexo, tmp_path / "0", 0)
    for arguments, sentence in (
        (("roster", zero, zero, "--out", tmp_path / "r"), "client 0 is listed twice"),
        (("roster", tmp_path / "absent", "--out", tmp_path / "r"), "absent: No such file"),
        (("show", tmp_path / "absent.pem"), "absent.pem: No such file"),
        (("show", tmp_path / "0" / "key.pem"), "not a certificate in PEM"),
        (
            ("new", "--client", "1", "--address", "10.0.0.1:7411", "--out", tmp_path / "1"),
            "address '10.0.0.1:7411' is unknown",
        ),
    ):
        ended = retexo("keys", *arguments)
        assert ended.code == 2
        assert sentence in ended.err
    assert not (tmp_path / "1").exists()
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("tcp://10.0.0.1:7411", "tcp://10.0.0.1:7411"),
        ("tcp://Pi0.local:7411", "tcp://pi0.local:7411"),
        ("bluetooth://b8:27:eb:12:34:56", "bluetooth://B8:27:EB:12:34:56"),
        ("udp://10.0.0.1:7412", "xdp://10.0.0.1:7412"),
    ],
)
def test_two_clients_at_one_address_are_refused_by_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, one: str, other: str
) -> None:
    retexo = CommandLine(capsys)
    zero = _new(retexo, tmp_path / "0", 0, "tcp://10.0.0.9:7411", one)
    four = _new(retexo, tmp_path / "4", 4, other)
    ended = retexo("keys", "roster", zero, four, "--out", tmp_path / "roster.toml")
    assert ended.code == 2
    assert f"clients 0 and 4 have the address {other!r}; expected another host or port" in ended.err
    assert not (tmp_path / "roster.toml").exists()


def test_clients_may_share_a_machine_and_the_relay(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    retexo = CommandLine(capsys)
    addresses = (
        ("tcp://10.0.0.1:7411", "bluetooth://B8:27:EB:12:34:56/1", "relay:"),
        ("tcp://10.0.0.1:7421", "bluetooth://B8:27:EB:12:34:56/2", "relay:"),
    )
    made = [_new(retexo, tmp_path / str(n), n, *own) for n, own in enumerate(addresses)]
    assert retexo("keys", "roster", *made, "--out", tmp_path / "roster.toml").code == 0
