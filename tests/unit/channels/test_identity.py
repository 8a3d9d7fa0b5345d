"""Keys, certificates and rosters: what belongs together is taken, all else refused by name."""

from __future__ import annotations

import ssl
import stat
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from retexo_fl.channels.addresses import check_address, parse_tcp
from retexo_fl.channels.identity import Identity, fingerprint, load_key, make_identity
from retexo_fl.channels.roster import Member, Roster
from retexo_fl.errors import IdentityError


def _member(folder: Path, client: int, *addresses: str) -> Member:
    identity = make_identity(folder / str(client), client)
    return Member(
        client=client, certificate_pem=identity.certificate_pem, addresses=tuple(addresses)
    )


def test_a_new_identity_can_be_loaded_and_its_key_is_private(tmp_path: Path) -> None:
    made = make_identity(tmp_path / "new", 7)
    assert Identity.load(made.key_path, made.certificate_path) == made
    assert made.client == 7
    assert stat.S_IMODE(made.key_path.stat().st_mode) == 0o600
    assert fingerprint(made.certificate_pem).startswith("sha256:")
    assert len(fingerprint(made.certificate_pem)) == 7 + 64


def test_a_key_is_never_written_over(tmp_path: Path) -> None:
    before = make_identity(tmp_path, 0)
    with pytest.raises(IdentityError, match=r"key\.pem: exists; expected"):
        make_identity(tmp_path, 0)
    assert Identity.load(before.key_path, before.certificate_path) == before


def test_an_identity_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    one, two = make_identity(tmp_path / "1", 1), make_identity(tmp_path / "2", 2)
    with pytest.raises(IdentityError, match=r"1/key\.pem .*2/certificate\.pem"):
        Identity.load(one.key_path, two.certificate_path)
    with pytest.raises(IdentityError, match="not a certificate in PEM"):
        Identity.load(one.key_path, one.key_path)
    with pytest.raises(IdentityError, match=r"certificate\.pem: .*private key"):
        Identity.load(one.certificate_path, one.certificate_path)
    with pytest.raises(IdentityError, match="No such file"):
        Identity.load(tmp_path / "absent", one.certificate_path)
    one.key_path.chmod(0o640)
    with pytest.raises(IdentityError, match=r"key\.pem: .*mode 0640.*expected 0600"):
        Identity.load(one.key_path, one.certificate_path)


@pytest.mark.parametrize(
    ("owner", "user", "mode", "taken"),
    [
        (0, 10001, 0o440, True),
        (0, 10001, 0o444, False),
        (0, 10001, 0o460, False),
        (0, 0, 0o440, False),
        (10001, 10001, 0o440, False),
        (10001, 10001, 0o400, True),
    ],
)
def test_a_mounted_secret_is_a_key_that_root_gives_to_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int, user: int, mode: int, taken: bool
) -> None:
    made = make_identity(tmp_path / "1", 1)
    found = SimpleNamespace(st_uid=owner, st_mode=stat.S_IFREG | mode)
    monkeypatch.setattr(Path, "stat", lambda self: found)
    monkeypatch.setattr("retexo_fl.channels.identity.os.geteuid", lambda: user)
    if taken:
        assert load_key(made.key_path).curve.name == "secp256r1"
    else:
        with pytest.raises(IdentityError, match="others may read this key"):
            load_key(made.key_path)


def test_a_roster_is_read_as_it_was_written(tmp_path: Path) -> None:
    members = [_member(tmp_path, 5, "relay:"), _member(tmp_path, 0, "tcp://[::1]:7411", "relay:")]
    roster = Roster.of(members)
    assert list(roster.members) == [0, 5]
    path = tmp_path / "roster.toml"
    path.write_text(roster.text())
    assert Roster.read(path) == roster
    assert Roster.parse("") == Roster()
    moved = replace(members[0], addresses=("tcp://10.0.0.5:1",))
    changed = roster.with_members([moved])
    assert changed.members[5] == moved
    assert roster.members[5] == members[0]


def test_a_roster_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    zero, one = _member(tmp_path, 0), _member(tmp_path, 1)
    with pytest.raises(IdentityError, match="roster: client 0 .*twice"):
        Roster.of([zero, zero])
    with pytest.raises(IdentityError, match="client 2: .*certificate .*client 1"):
        Roster.of([replace(one, client=2)])
    with pytest.raises(IdentityError, match="client 0: .*'http://x'.* expected"):
        Roster.of([replace(zero, addresses=("http://x",))])
    with pytest.raises(IdentityError, match="client 0: not a certificate"):
        Roster.of([replace(zero, certificate_pem="nothing")])
    with pytest.raises(IdentityError, match="expected one"):
        Roster.of([replace(zero, certificate_pem=zero.certificate_pem + one.certificate_pem)])
    for text, sentence in (
        ("[[member]]\nclient = 1", "member 1: expected the keys addresses, certificate, client"),
        ("x = 1", "expected .*member.* tables"),
        ("[[", "not TOML"),
        ('[[member]]\nclient = "1"\naddresses = []\ncertificate = ""', "client is '1'"),
        ("[[member]]\nclient = 1\naddresses = [1]\ncertificate = ''", "a list of strings"),
    ):
        path = tmp_path / "roster.toml"
        path.write_text(text)
        with pytest.raises(IdentityError, match=f"roster.toml: .*{sentence}"):
            Roster.read(path)


def test_one_key_is_one_client(tmp_path: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    from retexo_fl.channels import identity

    zero = make_identity(tmp_path, 0)
    key = serialization.load_pem_private_key(zero.key_path.read_bytes(), None)
    certificate: x509.Certificate = identity._self_signed(key, 1)  # type: ignore[arg-type]
    pem = certificate.public_bytes(serialization.Encoding.PEM).decode()
    members = [
        Member(client=0, certificate_pem=zero.certificate_pem, addresses=()),
        Member(client=1, certificate_pem=pem, addresses=()),
    ]
    with pytest.raises(IdentityError, match="client 1 has the key of client 0"):
        Roster.of(members)


@pytest.mark.parametrize(
    "address", ["tcp://host:1", "tcp://10.0.0.1:65535", "tcp://[fe80::1]:7411", "relay:"]
)
def test_addresses_of_a_roster(address: str) -> None:
    check_address(address)
    if address.startswith("tcp"):
        assert str(parse_tcp(address)) == address


@pytest.mark.parametrize(
    "address",
    [
        *("", "tcp", "tcp:", "tcp://", "tcp://host", "tcp://host:", "tcp://host:0"),
        *("tcp://host:65536", "tcp://:1", "tcp://::1:7411", "tcp://a b:1", "tcp://host:1/x"),
        *("relay:x", "relay", "udp://host:1", "tcp://host:\u0661", "host:1", "tcp://a/b:1"),
        *("tcp://a..b:1", f"tcp://{'a' * 64}.example:1"),
    ],
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(IdentityError, match="address"):
        check_address(address)


def test_what_stands_beside_a_certificate_changes_nothing(tmp_path: Path) -> None:
    member = _member(tmp_path, 0)
    described = replace(member, certificate_pem=f"Client 0:\n{member.certificate_pem}\n")
    assert Roster.of([described]).members[0].digest == member.digest
    for letter in ("\u00fc", "\u2713"):
        other = replace(member, certificate_pem=f"{letter}\n{member.certificate_pem}")
        with pytest.raises(IdentityError, match="not a certificate in PEM"):
            Roster.of([other])


@pytest.mark.parametrize("text", [f"client = {'9' * 5000}", "a = " + "[" * 100_000])
def test_text_that_is_too_much_for_its_reader_is_no_roster(text: str) -> None:
    with pytest.raises(IdentityError, match="not TOML"):
        Roster.parse(text)


def test_a_key_on_a_curve_that_nobody_knows_is_named(tmp_path: Path) -> None:
    pem = make_identity(tmp_path, 0).certificate_pem
    der = ssl.PEM_cert_to_DER_cert(pem)
    curve = bytes.fromhex("06082a8648ce3d030107")
    assert curve in der
    other = ssl.DER_cert_to_PEM_cert(der.replace(curve, curve[:-1] + b"\x7f"))
    with pytest.raises(IdentityError, match="client 0: not a certificate in PEM"):
        Roster.of([Member(client=0, certificate_pem=other, addresses=())])


def test_one_may_listen_at_any_port() -> None:
    assert parse_tcp("tcp://127.0.0.1:0", least_port=0).port == 0


def test_a_certificate_of_a_version_that_nobody_knows_is_named(tmp_path: Path) -> None:
    der = ssl.PEM_cert_to_DER_cert(make_identity(tmp_path, 0).certificate_pem)
    version = bytes.fromhex("a003020102")
    assert version in der
    other = ssl.DER_cert_to_PEM_cert(der.replace(version, version[:-1] + b"\x07", 1))
    with pytest.raises(IdentityError, match="client 0: not a certificate in PEM"):
        Roster.of([Member(client=0, certificate_pem=other, addresses=())])
