"""TLS without sockets: both ends are proved, and what goes wrong is said in words."""

from __future__ import annotations

import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from retexo_fl.channels.identity import Identity, certificate_digest, make_identity
from retexo_fl.channels.roster import Member, Roster
from retexo_fl.channels.secure_stream import (
    SecureStream,
    accepting_context,
    connecting_context,
)
from retexo_fl.errors import ChannelClosed, PeerRefused


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> list[Identity]:
    folder = tmp_path_factory.mktemp("keys")
    return [make_identity(folder / str(client), client) for client in range(4)]


def _member(identity: Identity) -> Member:
    return Member(client=identity.client, certificate_pem=identity.certificate_pem, addresses=())


def _accepting(own: Identity, others: list[Identity]) -> SecureStream:
    roster = Roster.of(_member(one) for one in others)
    clients = {member.digest: client for client, member in roster.members.items()}
    return SecureStream(accepting_context(own, roster), is_accepting=True, clients=clients)


def _connecting(own: Identity, to: Identity) -> SecureStream:
    clients = {certificate_digest(to.certificate_pem): to.client}
    context = connecting_context(own, _member(to))
    return SecureStream(context, is_accepting=False, clients=clients)


def _carry(one: SecureStream, two: SecureStream) -> None:
    if data := one.data_to_send():
        two.receive_data(data)
    if data := two.data_to_send():
        one.receive_data(data)


def _met(one: SecureStream, two: SecureStream) -> tuple[int | None, int | None]:
    for _ in range(4):
        clients = one.handshake(), two.handshake()
        _carry(one, two)
    return clients


def test_any_client_of_the_roster_is_known_by_its_certificate(identities: list[Identity]) -> None:
    for client in (1, 2, 3):
        one, two = (
            _connecting(identities[client], identities[0]),
            _accepting(identities[0], identities),
        )
        assert _met(one, two) == (0, client)
        one.write(b"x" * 100_000)
        two.write(b"reply")
        _carry(one, two)
        got = bytearray()
        while (data := two.read()) is not None:
            got += data
        assert got == b"x" * 100_000
        assert bytes(one.read() or b"") == b"reply"
        one.close()
        _carry(one, two)
        assert bytes(two.read() or b"") == b""


def test_a_stranger_is_refused_and_learns_it_at_its_first_read(
    identities: list[Identity],
) -> None:
    one, two = _connecting(identities[3], identities[0]), _accepting(identities[0], identities[:3])
    one.handshake()
    _carry(one, two)
    two.handshake()
    _carry(one, two)
    assert one.handshake() == 0
    _carry(one, two)
    with pytest.raises(PeerRefused, match="certificate: its certificate is unknown"):
        two.handshake()
    _carry(one, two)
    with pytest.raises(PeerRefused, match="the peer does not know our certificate"):
        one.read()


def test_a_server_that_is_another_client_is_refused(identities: list[Identity]) -> None:
    one, two = _connecting(identities[1], identities[0]), _accepting(identities[2], identities)
    one.handshake()
    _carry(one, two)
    two.handshake()
    _carry(one, two)
    with pytest.raises(PeerRefused, match="certificate: its certificate is unknown"):
        one.handshake()
    _carry(one, two)
    with pytest.raises(PeerRefused, match="the peer does not know our certificate"):
        two.handshake()


def test_a_certificate_that_a_member_signed_is_refused(
    identities: list[Identity], tmp_path: Path
) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    member = identities[1]
    signer = serialization.load_pem_private_key(member.key_path.read_bytes(), None)
    anchor = x509.load_pem_x509_certificate(member.certificate_pem.encode())
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "someone")]))
        .issuer_name(anchor.subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(anchor.not_valid_before_utc)
        .not_valid_after(anchor.not_valid_after_utc)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(
                anchor.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
            ),
            critical=False,
        )
        .sign(signer, hashes.SHA256())  # type: ignore[arg-type]
    )
    key_path, path = tmp_path / "key.pem", tmp_path / "certificate.pem"
    key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    signed = replace(member, key_path=key_path, certificate_path=path)
    one, two = _connecting(signed, identities[0]), _accepting(identities[0], identities)
    with pytest.raises(PeerRefused, match="certificate: its certificate is"):
        _met(one, two)


def test_who_shows_no_certificate_is_refused(identities: list[Identity]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=identities[0].certificate_pem)
    clients = {certificate_digest(identities[0].certificate_pem): 0}
    one = SecureStream(context, is_accepting=False, clients=clients)
    two = _accepting(identities[0], identities)
    with pytest.raises(PeerRefused, match="^certificate: .*no certificate"):
        _met(one, two)


def test_an_older_tls_is_refused(identities: list[Identity]) -> None:
    context = connecting_context(identities[1], _member(identities[0]))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    clients = {certificate_digest(identities[0].certificate_pem): 0}
    one = SecureStream(context, is_accepting=False, clients=clients)
    with pytest.raises(ChannelClosed, match="TLS: "):
        _met(one, _accepting(identities[0], identities))


def test_a_stranger_is_not_told_who_is_in_the_roster(identities: list[Identity]) -> None:
    roster = Roster.of(_member(one) for one in identities)
    few = accepting_context(identities[0], Roster.of([_member(identities[0])]))
    many = accepting_context(identities[0], roster)
    sizes = []
    for context in (few, many):
        clients = {certificate_digest(one.certificate_pem): one.client for one in identities}
        two = SecureStream(context, is_accepting=True, clients=clients)
        one = _connecting(identities[1], identities[0])
        one.handshake()
        _carry(one, two)
        two.handshake()
        sizes.append(len(two.data_to_send()))
    # Signatures differ by a byte or two; a list of names would take a hundred.
    assert abs(sizes[0] - sizes[1]) <= 8


def test_altered_bytes_and_a_missing_goodbye_are_noticed(identities: list[Identity]) -> None:
    one, two = _connecting(identities[1], identities[0]), _accepting(identities[0], identities)
    _met(one, two)
    one.write(b"sound")
    sound = one.data_to_send()
    one.write(b"altered")
    altered = bytearray(one.data_to_send())
    altered[-1] ^= 1
    two.receive_data(sound + altered)
    assert bytes(two.read() or b"") == b"sound"
    with pytest.raises(ChannelClosed, match="TLS: "):
        two.read()
    one.receive_data(b"")
    with pytest.raises(ChannelClosed, match="without a TLS close"):
        one.read()


def test_a_certificate_is_not_used_outside_its_time(
    identities: list[Identity], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import datetime

    from retexo_fl.channels import identity

    monkeypatch.setattr(identity, "_EARLIER", datetime.timedelta(days=-2))
    early = make_identity(tmp_path, 1)
    everyone = [identities[0], early]
    one, two = _connecting(early, identities[0]), _accepting(identities[0], everyone)
    with pytest.raises(PeerRefused, match="is not valid yet; compare the clocks"):
        _met(one, two)
