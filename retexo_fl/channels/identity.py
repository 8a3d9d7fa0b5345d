"""Who a client is to its peers: one key and the certificate that it signed itself."""

from __future__ import annotations

import datetime
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from retexo_fl.errors import IdentityError
from retexo_fl.files import new_file

KEY_FILE: Final = "key.pem"
CERTIFICATE_FILE: Final = "certificate.pem"
_VALID_DAYS: Final = 3653
#: Clocks of two machines differ; a Raspberry Pi has none that runs without power.
_EARLIER: Final = datetime.timedelta(days=1)
_NAME: Final = re.compile(r"retexo client (\d{1,10})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A client's own key and certificate, which belong together.

    Attributes:
        client: Client index, as the certificate names it.
        key_path: Private key, PEM.
        certificate_path: Certificate, PEM.
        certificate_pem: Its text.
    """

    client: int
    key_path: Path
    certificate_path: Path
    certificate_pem: str

    @classmethod
    def load(cls, key_path: Path, certificate_path: Path) -> Self:
        """Read and check both.

        Raises:
            IdentityError: One cannot be used, others may read the key, or it belongs to another
                certificate.
        """
        pem = read_certificate(certificate_path)
        certificate = parse_certificate(pem, str(certificate_path))
        key = load_key(key_path)
        if key.public_key() != certificate.public_key():
            raise IdentityError(f"{key_path} is not the key of the certificate {certificate_path}")
        return cls(
            client=client_of(certificate, str(certificate_path)),
            key_path=key_path,
            certificate_path=certificate_path,
            certificate_pem=pem,
        )


def make_identity(folder: Path, client: int) -> Identity:
    """Write a new key (mode 0600) and certificate into ``folder``, never over others.

    Args:
        folder: Made if needed.
        client: Client index.

    Raises:
        IdentityError: There is a key or certificate already.
        OSError: They cannot be written.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _self_signed(key, client)
    folder.mkdir(parents=True, exist_ok=True)
    key_path, certificate_path = folder / KEY_FILE, folder / CERTIFICATE_FILE
    for path in (key_path, certificate_path):
        if path.exists():
            raise IdentityError(f"{path}: exists; expected a new file (keys are not overwritten)")
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_new(key_path, pem, mode=0o600)
    write_new(certificate_path, certificate.public_bytes(serialization.Encoding.PEM), mode=0o644)
    return Identity.load(key_path, certificate_path)


def fingerprint(certificate_pem: str) -> str:
    """Return ``sha256:`` and the digest of a certificate, for people to compare.

    Raises:
        IdentityError: It is not a certificate in PEM.
    """
    return f"sha256:{certificate_digest(certificate_pem).hex()}"


@lru_cache(maxsize=1024)
def certificate_digest(certificate_pem: str) -> bytes:
    """Return the SHA-256 of a certificate in DER, which is what identifies a peer.

    Raises:
        IdentityError: It is not a certificate in PEM.
    """
    return parse_certificate(certificate_pem, "certificate").fingerprint(hashes.SHA256())


def read_certificate(path: Path) -> str:
    """Return the text of a certificate's file.

    Raises:
        IdentityError: It cannot be read.
    """
    return _read(path).decode("latin-1")


def parse_certificate(pem: str, where: str) -> x509.Certificate:
    """Read the one certificate of a PEM text.

    Raises:
        IdentityError: It is none, or several, or its key is not on P-256.
    """
    try:
        # TLS takes no other letters, not even beside the certificate.
        certificates = x509.load_pem_x509_certificates(pem.encode("ascii"))
        keys = [certificate.public_key() for certificate in certificates]
    except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise IdentityError(f"{where}: not a certificate in PEM") from error
    if len(certificates) != 1:
        raise IdentityError(f"{where}: {len(certificates)} certificates, expected one")
    key = keys[0]
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise IdentityError(f"{where}: expected an EC key on P-256, as `retexo keys new` makes")
    return certificates[0]


def client_of(certificate: x509.Certificate, where: str) -> int:
    """Return the client index that a certificate names.

    Raises:
        IdentityError: It names none.
    """
    try:
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except (ValueError, TypeError) as error:  # a value of a kind that its attribute cannot have
        raise IdentityError(f"{where}: its name cannot be read") from error
    match = _NAME.fullmatch(str(names[0].value)) if names else None
    if match is None:
        raise IdentityError(f"{where}: names no client, expected one made by `retexo keys new`")
    return int(match[1])


def _self_signed(key: ec.EllipticCurvePrivateKey, client: int) -> x509.Certificate:
    """Sign a certificate that is its own and only trust anchor.

    It passes OpenSSL's strict checks, which Python turns on from 3.13. That it may sign others
    gives its owner nothing: peers compare the digest of what they are shown with the roster.
    """
    now = datetime.datetime.now(datetime.UTC)
    serial = x509.random_serial_number()
    # Peers look trust anchors up by this name: no two keys have the same.
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, f"retexo client {client}"),
            x509.NameAttribute(NameOID.SERIAL_NUMBER, f"{serial:x}"),
        ]
    )
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    both_ends = x509.ExtendedKeyUsage(
        [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    )
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public)
        .serial_number(serial)
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + datetime.timedelta(days=_VALID_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(both_ends, critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )


def load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a private key.

    Raises:
        IdentityError: It cannot be used, or others may read it.
    """
    data = _read(path)
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise IdentityError(f"{path}: not an unencrypted private key in PEM") from error
    check_private(path, str(path))
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise IdentityError(f"{path}: expected an EC key on P-256, as `retexo keys new` makes")
    return key


def check_private(path: Path, name: str) -> None:
    """Check that nobody but the owner may read a key.

    Args:
        path: Its file.
        name: What an error says of where it is.

    Raises:
        IdentityError: Others may.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise IdentityError(f"{name}: {error.strerror}") from error
    mode = found.st_mode & 0o777
    # As mounted secrets are: root gives it to the one group of a program that is not root.
    if mode & (0o037 if found.st_uid == 0 and os.geteuid() != 0 else 0o077):
        raise IdentityError(f"{name}: others may read this key (mode {mode:04o}), expected 0600")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise IdentityError(f"{path}: {error.strerror}") from error


def write_new(path: Path, data: bytes, *, mode: int) -> None:
    """Write a file where there is none.

    Raises:
        FileExistsError: Something has this name, even a link to nothing.
        OSError: It cannot be written.
    """
    with new_file(path, mode=mode) as file:
        file.write(data)
