"""Signatures by the key of a client's certificate, which others find in their roster file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)

from retexo_fl.channels.identity import (
    Identity,
    certificate_digest,
    load_key,
    parse_certificate,
)
from retexo_fl.channels.roster import Roster
from retexo_fl.errors import SecureAggregationRefused
from retexo_fl.masking.agreement import Agreement
from retexo_fl.masking.keys import COUNTERS_BYTES, SIGNED_BYTES, Counters, signed_text

_HALF_BYTES: Final = 32
_SCHEME: Final = ec.ECDSA(hashes.SHA256())


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterSigner:
    """Signs a client's masking keys, with ECDSA on P-256; knows the others, and what owners agreed.

    Attributes:
        identity: This client's.
        roster: Returns the roster of the owner's file.
        agreement: Returns which sums this client's owner agreed to. It raises AgreementError where
            the owners agreed on none that the client may answer by.
        brings: Returns the uses that this client's owner promised data of: to others it adds zeros.
            It raises as ``agreement`` does.
        counters: Returns which process this is, and how many questions the client has answered.
        others: Remembers the counters of others, by client with the digests of their certificates,
            for a client.
    """

    identity: Identity
    roster: Callable[[], Roster]
    agreement: Callable[[], Agreement]
    brings: Callable[[], frozenset[str]]
    counters: Callable[[], Counters]
    others: Callable[[Mapping[int, tuple[bytes, Counters]], int], None]

    def sign(self, job: str, attempt: int, public: bytes) -> bytes:
        """Return which process this is, and its signature of that and a masking key: 88 bytes."""
        counters = self.counters()
        text = signed_text(job, attempt, self.identity.client, public, counters)
        return counters.content + signature_of(self.identity, text)

    def check(
        self, job: str, attempt: int, publics: Mapping[int, bytes], signed: bytes
    ) -> dict[int, int]:
        """Return, by client, how often it was started, as is signed with its key.

        The highest counters are remembered, on the disk when this returns.

        Args:
            job: Name of the job.
            attempt: Of the job.
            publics: By client, its masking key.
            signed: What :meth:`sign` has returned at each, in this order.

        Raises:
            SecureAggregationRefused: A signature is none or missing, the roster does not have the
                client, or it has reported higher counters before: its disk is an old copy.
            CheckpointError: Counters could not be read or written.
        """
        if len(signed) != SIGNED_BYTES * len(publics):
            raise SecureAggregationRefused(
                "masking keys are not signed; expected a signature of each client"
            )
        own, known = self.identity.client, self.roster().members
        told: dict[int, tuple[bytes, Counters]] = {}
        for at, (client, public) in enumerate(publics.items()):
            if client not in known and client != own:
                raise SecureAggregationRefused(
                    f"client {own}: client {client} is not in the roster file; expected all "
                    "clients of a run there under secure-aggregation masked"
                )
            pem = (self.identity if client == own else known[client]).certificate_pem
            piece = signed[at * SIGNED_BYTES :][:SIGNED_BYTES]
            counters = Counters.of(piece[:COUNTERS_BYTES])
            text = signed_text(job, attempt, client, public, counters)
            if not is_signed(pem, text, piece[COUNTERS_BYTES:]):
                raise SecureAggregationRefused(
                    f"client {own}: the masking key of client {client} is not signed by the key "
                    "that the roster file names"
                )
            told[client] = certificate_digest(pem), counters
        self.others({client: its for client, its in told.items() if client != own}, own)
        return {client: counters.starts for client, (_, counters) in told.items()}


def signature_of(identity: Identity, text: bytes) -> bytes:
    """Return 64 bytes, r then s, by the key of a client.

    Raises:
        IdentityError: The key cannot be used.
    """
    r, s = decode_dss_signature(load_key(identity.key_path).sign(text, _SCHEME))
    return r.to_bytes(_HALF_BYTES, "big") + s.to_bytes(_HALF_BYTES, "big")


def is_signed(pem: str, text: bytes, signature: bytes) -> bool:
    """Return whether the key of a certificate signed a text.

    Raises:
        IdentityError: It is no certificate.
    """
    public = parse_certificate(pem, "certificate").public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    r, s = (
        int.from_bytes(half, "big") for half in (signature[:_HALF_BYTES], signature[_HALF_BYTES:])
    )
    try:
        public.verify(encode_dss_signature(r, s), text, _SCHEME)
    except InvalidSignature:
        return False
    return True
