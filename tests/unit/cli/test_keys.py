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
