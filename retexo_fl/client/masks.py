"""A client's side of masked sums: whose sums it takes part in, its keys, and what it has answered.

Secrets and memory are in the client's store before an answer leaves, so that a client that moves to
another process, or begins again after its process was killed, answers the same or not at all.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from retexo_fl.client.api import KeysAnswer, KeysRequest, MaskedAnswer, Request, Ticket
from retexo_fl.client.masked_answers import (
    SumLengths,
    counter_of,
    form_of,
    numbers_of,
    purpose_of,
    told_form,
    told_weights,
)
from retexo_fl.client.store import ClientStore
from retexo_fl.errors import CheckpointError, SecureAggregationRefused
from retexo_fl.masking.agreement import LEAST, Agreement
from retexo_fl.masking.holder import Answered, MaskHolder, Noted
from retexo_fl.masking.keys import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    PublicKeys,
    SecretKeys,
    signed_text,
)
from retexo_fl.masking.label import Label, Place
from retexo_fl.masking.long_number import LongNumber
from retexo_fl.masking.ring import Ring
from retexo_fl.training.judging import NOTHING
from retexo_fl.units import clients_named, counted

#: Names in the store.
_SECRETS: Final = "masking-secrets"
_MEMORY: Final = "masking-memory"
_PUBLICS: Final = "masking-keys"
_CRC_BYTES: Final = 4


class KeySigner(Protocol):
    """Signs with the key of a client's certificate; knows the others, and what owners agreed."""

    def agreement(self) -> Agreement:
        """Return which sums this client's owner agreed to.

        Raises:
            AgreementError: The owners agreed on none that this client may answer by.
        """
        ...

    def brings(self) -> frozenset[str]:
        """Return the uses that this client's owner promised data of: to others it adds zeros.

        Raises:
            AgreementError: As :meth:`agreement`.
        """
        ...

    def sign(self, text: bytes) -> bytes:
        """Return 64 bytes."""
        ...

    def check(self, signed: Mapping[int, tuple[bytes, bytes]]) -> None:
        """Check, by client, what it has signed and its signature of 64 bytes.

        Raises:
            SecureAggregationRefused: One is none, or the roster does not have the client.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """What a client knows of an attempt.

    Attributes:
        number: Of the attempt.
        holder: Has the client's secrets.
        answered: What it has answered.
        publics: Keys of its cohort.
        agreement: Digest of the owners' agreement.
        uses: What the sums of its cohort may be of.
        counter: The ring of sums of counts.
    """

    number: int
    holder: MaskHolder
    answered: Answered
    publics: PublicKeys
    agreement: bytes
    uses: frozenset[str]
    counter: Ring


class ClientMasks:
    """Masks the answers of one client of one job.

    Args:
        job: Name of the job.
        client: The client's index.
        store: Of the client.
        clients: How many the job has.
        config: Digest of its configuration; empty where it has none.

    Attributes:
        signer: None where clients have no owners who agreed on sums: in a simulation.
        least_clients: Sums of fewer are refused.
    """

    def __init__(
        self, job: str, client: int, store: ClientStore, *, clients: int, config: bytes = b""
    ) -> None:
        self._job = job
        self._client = client
        self._store = store
        self._clients = clients
        self._config = config
        self.least_clients = LEAST
        self.signer: KeySigner | None = None
        self._attempt: _Attempt | None = None

    def introduce(self, attempt: int) -> tuple[bytes, bytes | None]:
        """Return the client's public key of an attempt, 32 bytes, and its signature if it signs."""
        try:
            known = self._secrets(attempt)
        except CheckpointError:
            # Of whatever attempt: if of this one, other clients believe no second key.
            known = None
        if known is None:
            drawn = SecretKeys.draw()
            known = {
                "attempt": attempt,
                "private": drawn.private.hex(),
                "own": drawn.own.hex(),
            }
            # The memory first: secrets without it answer nothing.
            self._put(_MEMORY, {"attempt": attempt})
            self._put(_SECRETS, known)
            self._attempt = None
        public = _secret_keys(known).public
        if self.signer is None:
            return public, None
        return public, self.signer.sign(signed_text(self._job, attempt, self._client, public))

    def learn(self, request: KeysRequest) -> KeysAnswer:
        """Believe the keys of the cohort, if their owners signed them; once for an attempt.

        Raises:
            SecureAggregationRefused: The cohort is not the one that the owner agreed to, a key is
                not signed by its owner, or others were believed.
            AgreementError: The owners' agreement does not have the client.
        """
        self._check_cohort(request)
        publics = self._checked_keys(request)
        known = self._secrets(request.ticket.attempt)
        if known is None:
            raise SecureAggregationRefused("masking keys came before hello")
        facts = {
            "agreement": request.agreement.hex(),
            "cohort": list(request.cohort),
            "uses": request.uses,
            "most-count": request.most_count,
            "keys": publics.digest.hex(),
        }
        for name, told in facts.items():
            if known.get(name, told) != told:
                raise SecureAggregationRefused(
                    f"the server names another {name} of masked sums than before in this attempt"
                )
        MaskHolder(self._client, _secret_keys(known), publics, answered={})
        # The keys first: what names them must not be there without them.
        self._store.put_note(_PUBLICS, publics.content)
        self._put(_SECRETS, known | facts)
        return KeysAnswer(digest=publics.digest)

    def uses(self, ticket: Ticket) -> frozenset[str]:
        """Return what the client's sums may be of in an attempt: to others it adds zeros.

        Raises:
            SecureAggregationRefused: No keys have come; or owners agreed on something else since,
                with other parts.
            AgreementError: As :meth:`KeySigner.agreement`.
        """
        known = self._attempt
        if known is None or known.number != ticket.attempt:
            known = self._known(ticket)
        if self.signer is None:
            return known.uses
        if self.signer.agreement().digest != known.agreement:
            raise SecureAggregationRefused(
                "the owners agreed on something else since this attempt began; resume the run with "
                "`retexo run --resume`"
            )
        return known.uses & self.signer.brings()

    def agreed(self) -> bytes | None:
        """Return what the owners agreed on, which all clients tell; None in a simulation.

        Raises:
            AgreementError: As :meth:`KeySigner.agreement`.
        """
        return None if self.signer is None else self.signer.agreement().content

    def hide(
        self,
        request: Request[Any],
        answer: Any,
        weights: np.ndarray | None,
        lengths: SumLengths,
        beside: np.ndarray = NOTHING,
    ) -> MaskedAnswer:
        """Return an answer under masks.

        Args:
            request: What was asked.
            answer: Of the question's own class; an update as whole numbers.
            weights: What it was computed with, decoded.
            lengths: How many numbers it has.
            beside: Of an update, the whole numbers beside it.

        Raises:
            SecureAggregationRefused: Its sum would tell the server more than it may.
        """
        known = self._known(request.ticket)
        form = form_of(request, lengths, known.counter)
        label = self._label(
            known, request, form=told_form(request, form), weights=told_weights(request, weights)
        )
        numbers = numbers_of(
            request,
            answer,
            form,
            lengths,
            terms=self._clients,
            client=self._client,
            beside=beside,
        )
        sums = known.holder.hide(label, numbers)
        self._remember(known)
        return MaskedAnswer(
            numbers=form.ring.pack(sums.narrow),
            beside=form.counter.pack(sums.counts).tobytes() + sums.wide.tobytes(),
        )

    def hide_long(self, request: Request[Any], number: LongNumber, told: bytes) -> MaskedAnswer:
        """Return a long number under masks.

        Args:
            request: What was asked.
            number: This client's.
            told: What it is of: equal at all clients, or nothing cancels.

        Raises:
            SecureAggregationRefused: As :meth:`hide`.
        """
        known = self._known(request.ticket)
        form = hashlib.sha256(number.form.words).digest()
        label = self._label(known, request, form=form, weights=hashlib.sha256(told).digest())
        hidden = known.holder.hide(label, number)
        self._remember(known)
        return MaskedAnswer(numbers=np.frombuffer(hidden.content, np.uint8), beside=b"")

    # ---- inside -------------------------------------------------------------------------------

    def _label(
        self, known: _Attempt, request: Request[Any], *, form: bytes, weights: bytes
    ) -> Label:
        """Return the label of an answer: who is added up is not the server's to say."""
        ticket = request.ticket
        return Label(
            job=self._job,
            config=self._config,
            place=Place(
                attempt=ticket.attempt,
                purpose=purpose_of(request),
                stage=ticket.stage,
                round=ticket.round,
            ),
            agreement=known.agreement,
            cohort=tuple(known.publics.by_client),
            uses=known.uses,
            keys=known.publics.digest,
            form=form,
            weights=weights,
        )

    def _check_cohort(self, request: KeysRequest) -> None:
        """Check whom the server wants to add up with this client, and of what."""
        members, uses = request.cohort, frozenset(request.uses.split())
        if list(members) != sorted({*members}) or self._client not in members:
            raise SecureAggregationRefused(
                f"{clients_named(members)} are to be added up; expected clients in ascending "
                f"order, client {self._client} among them"
            )
        if self.signer is not None:
            agreed = self.signer.agreement()
            own = agreed.cohort_of(self._client)
            if request.agreement != agreed.digest or members != own.members:
                raise SecureAggregationRefused(
                    f"{clients_named(members)} are to be added up; the owners agreed on "
                    f"{clients_named(own.members)}, in agreement {agreed.digest.hex()[:16]}"
                )
            if not uses <= own.uses:
                raise SecureAggregationRefused(
                    f"sums are to be of {request.uses}; the owners agreed on "
                    f"{' '.join(sorted(own.uses))}"
                )
        least = max(self.least_clients, LEAST)
        if len(members) < least:
            whose = " (least-clients in its agent.toml)" if least > LEAST else ""
            raise SecureAggregationRefused(
                f"a sum of {counted(len(members), 'client')}; expected {least} at least{whose}"
            )

    def _checked_keys(self, request: KeysRequest) -> PublicKeys:
        clients, keys = request.cohort, request.keys.tobytes()
        if len(keys) != KEY_BYTES * len(clients):
            raise SecureAggregationRefused(
                f"{len(keys)} bytes of masking keys for {counted(len(clients), 'client')}"
            )
        publics = PublicKeys.of(clients, keys)
        if len({*publics.by_client.values()}) < len(clients):
            raise SecureAggregationRefused("two clients have the same masking key")
        if self.signer is not None:
            signatures = request.signatures or b""
            if len(signatures) != SIGNATURE_BYTES * len(clients):
                raise SecureAggregationRefused(
                    "masking keys are not signed; expected a signature of each client"
                )
            attempt = request.ticket.attempt
            self.signer.check(
                {
                    client: (
                        signed_text(self._job, attempt, client, publics.by_client[client]),
                        signatures[at * SIGNATURE_BYTES : (at + 1) * SIGNATURE_BYTES],
                    )
                    for at, client in enumerate(clients)
                }
            )
        return publics

    def _known(self, ticket: Ticket) -> _Attempt:
        """Return the secrets of an attempt, and what it remembers."""
        attempt = ticket.attempt
        if self._attempt is None or self._attempt.number != attempt:
            known = self._secrets(attempt)
            if known is None or "keys" not in known:
                raise SecureAggregationRefused(
                    f"attempt {attempt}: no masking keys have come; expected query.keys first; "
                    "resume the run with `retexo run --resume`"
                )
            publics, answered = self._publics(known), self._memory(attempt)
            self._attempt = _Attempt(
                number=attempt,
                holder=MaskHolder(self._client, _secret_keys(known), publics, answered=answered),
                answered=answered,
                publics=publics,
                agreement=bytes.fromhex(known["agreement"]),
                uses=frozenset(known["uses"].split()),
                counter=counter_of(known["most-count"]),
            )
        else:
            # Another worker may have answered since: what it remembers binds this one, too.
            answered = self._memory(attempt)
            self._attempt.answered.clear()
            self._attempt.answered.update(answered)
        return self._attempt

    def _publics(self, known: Mapping[str, Any]) -> PublicKeys:
        clients = tuple(known["cohort"])
        content = self._store.note(_PUBLICS) or b""
        if len(content) == KEY_BYTES * len(clients):
            publics = PublicKeys.of(clients, content)
            if publics.digest.hex() == known["keys"]:
                return publics
        raise self._damaged(_PUBLICS)

    def _secrets(self, attempt: int) -> dict[str, Any] | None:
        known = self._get(_SECRETS)
        return known if known is not None and known.get("attempt") == attempt else None

    def _memory(self, attempt: int) -> Answered:
        known = self._get(_MEMORY)
        if known is None or known.get("attempt") != attempt:
            # Without it nobody can tell what was answered.
            raise CheckpointError(
                f"client {self._client}: what it answered in attempt {attempt} is lost; resume the "
                "run with `retexo run --resume`"
            )
        return {
            purpose: Noted((stage, number), bytes.fromhex(digest))
            for purpose, (stage, number, digest) in known.get("answered", {}).items()
        }

    def _remember(self, known: _Attempt) -> None:
        answered = {
            purpose: [*noted.order, noted.digest.hex()] for purpose, noted in known.answered.items()
        }
        self._put(_MEMORY, {"attempt": known.number, "answered": answered})

    def _get(self, name: str) -> dict[str, Any] | None:
        content = self._store.note(name)
        if content is None:
            return None
        if content[:_CRC_BYTES] != _crc(content[_CRC_BYTES:]):
            raise self._damaged(name)
        found: dict[str, Any] = json.loads(content[_CRC_BYTES:])
        return found

    def _put(self, name: str, known: Mapping[str, Any]) -> None:
        content = json.dumps(known).encode()
        self._store.put_note(name, _crc(content) + content)

    def _damaged(self, name: str) -> CheckpointError:
        return CheckpointError(
            f"client {self._client}: its note {name} is damaged; resume the run with "
            "`retexo run --resume`"
        )


def _crc(content: bytes) -> bytes:
    """Return the checksum that stands before what is kept, against damage on the disk."""
    return zlib.crc32(content).to_bytes(_CRC_BYTES, "little")


def _secret_keys(known: Mapping[str, Any]) -> SecretKeys:
    return SecretKeys(bytes.fromhex(known["private"]), bytes.fromhex(known["own"]))
