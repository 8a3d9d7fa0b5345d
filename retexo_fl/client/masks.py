"""A client's side of masked sums: its keys of an attempt, what it has answered, what it opens.

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

from retexo_fl.client.api import (
    KeysAnswer,
    KeysRequest,
    MaskedAnswer,
    MaskTerms,
    OpenAnswer,
    OpenRequest,
    Request,
    Ticket,
    TrainRequest,
    clients_of,
    is_masked,
    question_of,
)
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
from retexo_fl.masking.holder import (
    LEAST_CLIENTS,
    MaskHolder,
    MaskMemory,
    Noted,
    sealed_bytes,
)
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
from retexo_fl.updates.masked import MaskedUpdates

#: Names in the store.
_SECRETS: Final = "masking-secrets"
_MEMORY: Final = "masking-memory"
_PUBLICS: Final = "masking-keys"
_CRC_BYTES: Final = 4


class KeySigner(Protocol):
    """Signs with the key of a client's certificate, and checks signatures by the roster."""

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
        memory: What it has answered.
        publics: All clients' keys.
        counter: The ring of sums of counts.
    """

    number: int
    holder: MaskHolder
    memory: MaskMemory
    publics: PublicKeys
    counter: Ring


class ClientMasks:
    """Masks the answers of one client of one job.

    Args:
        job: Name of the job.
        client: The client's index.
        store: Of the client.

    Attributes:
        signer: None where clients do not know each other's certificates: in a simulation.
        least_clients: Sums of fewer are refused.
    """

    def __init__(self, job: str, client: int, store: ClientStore) -> None:
        self._job = job
        self._client = client
        self._store = store
        self.least_clients = LEAST_CLIENTS
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
        """Believe the keys of all clients, if their owners signed them; once for an attempt.

        Raises:
            SecureAggregationRefused: A key is not signed by its owner, or others were believed.
        """
        attempt = request.ticket.attempt
        publics = self._checked_keys(request)
        known = self._secrets(attempt)
        if known is None:
            raise SecureAggregationRefused("masking keys came before hello")
        if known.setdefault("publics", publics.digest.hex()) != publics.digest.hex():
            raise SecureAggregationRefused(
                "the server names other masking keys than before in this attempt"
            )
        if known.setdefault("most-count", request.most_count) != request.most_count:
            raise SecureAggregationRefused(
                f"the server says that all clients have {request.most_count} nodes or pairs "
                f"together; before in this attempt it said {known['most-count']}"
            )
        MaskHolder(self._client, _secret_keys(known), publics, memory=MaskMemory())
        # The keys first: what names them must not be there without them.
        self._store.put_note(_PUBLICS, publics.content)
        self._put(_SECRETS, known | {"clients": request.clients.hex()})
        return KeysAnswer(digest=publics.digest)

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
            request: With terms.
            answer: Of the question's own class; an update as whole numbers.
            weights: What it was computed with, decoded.
            lengths: How many numbers it has.
            beside: Of an update, the whole numbers beside it.

        Raises:
            SecureAggregationRefused: Its sum would tell the server more than it may.
        """
        self._check_terms(request)
        known = self._known(request.ticket)
        form = form_of(request, lengths, known.counter)
        label = self._label(
            request, form=told_form(request, form), weights=told_weights(request, weights)
        )
        numbers = numbers_of(
            request,
            answer,
            form,
            lengths,
            terms=len(label.asked),
            client=self._client,
            beside=beside,
        )
        hidden = known.holder.hide(label, numbers)
        self._remember(known)
        sums = hidden.sums
        return MaskedAnswer(
            numbers=form.ring.pack(sums.narrow),
            beside=form.counter.pack(sums.counts).tobytes() + sums.wide.tobytes(),
            shares=b"".join(hidden.shares[opener] for opener in sorted(hidden.shares)) or None,
        )

    def hide_long(self, request: Request[Any], number: LongNumber, told: bytes) -> MaskedAnswer:
        """Return a long number under masks, of a sum that nobody may be missing from.

        Args:
            request: With terms.
            number: This client's.
            told: What it is of: equal at all clients, or nothing cancels.

        Raises:
            SecureAggregationRefused: As :meth:`hide`; or somebody may be missing.
        """
        self._check_terms(request)
        known = self._known(request.ticket)
        form = hashlib.sha256(number.form.words).digest()
        label = self._label(request, form=form, weights=hashlib.sha256(told).digest())
        if label.opens:
            raise SecureAggregationRefused(
                f"{label.place.name}: to be opened without some clients; expected of all"
            )
        hidden = known.holder.hide_long(label, number)
        self._remember(known)
        return MaskedAnswer(numbers=np.frombuffer(hidden.content, np.uint8), beside=b"")

    def open(self, request: OpenRequest) -> OpenAnswer:
        """Tell shares.

        Raises:
            SecureAggregationRefused: See :meth:`.MaskHolder.open`.
        """
        known = self._known(request.ticket)
        label = Label(
            job=self._job,
            place=_place(request.ticket, request.purpose, request.asked_with),
            keys=known.publics.digest,
            asked=clients_of(request.asked_with.asked or b""),
            form=request.form,
            weights=request.weights,
            opens=request.asked_with.opens,
        )
        if not (request.purpose.isascii() and request.purpose.isprintable()):
            raise SecureAggregationRefused("to open a sum of messages of no type that there is")
        known.holder.check(label)
        included = clients_of(request.included)
        if not {*included} <= {*label.asked}:
            raise SecureAggregationRefused("to open a sum of clients that were not asked")
        shares: dict[int, bytes] = {}
        content, at = request.shares.tobytes(), 0
        for client in included:
            size = sealed_bytes(len(label.neighbours(client)))
            shares[client] = content[at : at + size]
            at += size
        told = known.holder.open(label, included, shares)
        self._remember(known)
        return OpenAnswer(shares=np.frombuffer(told, np.uint8))

    # ---- inside -------------------------------------------------------------------------------

    def _label(self, request: Request[Any], *, form: bytes, weights: bytes) -> Label:
        """Return the label of an answer, if it may be asked for."""
        known = self._known(request.ticket)
        terms: MaskTerms = request.terms  # type: ignore[attr-defined]
        label = Label(
            job=self._job,
            place=_place(request.ticket, purpose_of(request), terms),
            keys=known.publics.digest,
            asked=clients_of(terms.asked or b""),
            form=form,
            weights=weights,
            opens=terms.opens,
        )
        known.holder.check(label)
        return label

    def _check_terms(self, request: Request[Any]) -> None:
        if not is_masked(request):
            raise SecureAggregationRefused(
                f"{question_of(request).message_type}: asked for numbers without masks; expected "
                "masks, as secure-aggregation says"
            )
        if isinstance(request, TrainRequest):
            asked = len(clients_of(request.terms.asked or b""))
            shared = MaskedUpdates.shared(request.steps or b"")
            if shared.terms < asked:
                raise SecureAggregationRefused(
                    f"steps for {shared.terms} updates, where {asked} clients are asked"
                )

    def _checked_keys(self, request: KeysRequest) -> PublicKeys:
        clients, keys = clients_of(request.clients), request.keys.tobytes()
        if len(keys) != KEY_BYTES * len(clients):
            raise SecureAggregationRefused(
                f"{len(keys)} bytes of masking keys for {len(clients)} clients"
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
            if known is None or not {"publics", "most-count"} <= known.keys():
                raise SecureAggregationRefused(
                    f"attempt {attempt}: no masking keys have come; expected query.keys first; "
                    "resume the run with `retexo run --resume`"
                )
            publics = self._publics(known)
            memory = self._memory(attempt)
            holder = MaskHolder(
                self._client,
                _secret_keys(known),
                publics,
                memory=memory,
                least_clients=self.least_clients,
            )
            self._attempt = _Attempt(
                number=attempt,
                holder=holder,
                memory=memory,
                publics=publics,
                counter=counter_of(known["most-count"]),
            )
        else:
            # Another worker may have answered since: what it remembers binds this one, too.
            self._attempt.memory.follow(self._memory(attempt))
        return self._attempt

    def _publics(self, known: Mapping[str, Any]) -> PublicKeys:
        clients = clients_of(bytes.fromhex(known["clients"]))
        content = self._store.note(_PUBLICS) or b""
        if len(content) == KEY_BYTES * len(clients):
            publics = PublicKeys.of(clients, content)
            if publics.digest.hex() == known["publics"]:
                return publics
        raise self._damaged(_PUBLICS)

    def _secrets(self, attempt: int) -> dict[str, Any] | None:
        known = self._get(_SECRETS)
        return known if known is not None and known.get("attempt") == attempt else None

    def _memory(self, attempt: int) -> MaskMemory:
        known = self._get(_MEMORY)
        if known is None or known.get("attempt") != attempt:
            # Without it nobody can tell what was answered.
            raise CheckpointError(
                f"client {self._client}: what it answered in attempt {attempt} is lost; resume the "
                "run with `retexo run --resume`"
            )
        return MaskMemory(
            answered=_notes(known.get("answered", {})),
            opened=_notes(known.get("opened", {})),
            asked={purpose: bytes.fromhex(d) for purpose, d in known.get("asked", {}).items()},
        )

    def _remember(self, known: _Attempt) -> None:
        memory = known.memory
        self._put(
            _MEMORY,
            {
                "attempt": known.number,
                "answered": _told(memory.answered),
                "opened": _told(memory.opened),
                "asked": {purpose: digest.hex() for purpose, digest in memory.asked.items()},
            },
        )

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


def _place(ticket: Ticket, purpose: str, terms: MaskTerms) -> Place:
    return Place(
        attempt=ticket.attempt,
        purpose=purpose,
        stage=ticket.stage,
        round=ticket.round,
        trial=terms.trial,
    )


def _secret_keys(known: Mapping[str, Any]) -> SecretKeys:
    return SecretKeys(bytes.fromhex(known["private"]), bytes.fromhex(known["own"]))


def _told(notes: Mapping[str, Noted]) -> dict[str, Any]:
    return {purpose: [*noted.order, noted.digest.hex()] for purpose, noted in notes.items()}


def _notes(told: Mapping[str, Any]) -> dict[str, Noted]:
    return {
        purpose: Noted((stage, number, trial), bytes.fromhex(digest))
        for purpose, (stage, number, trial, digest) in told.items()
    }
