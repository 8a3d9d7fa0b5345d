"""A client's side of masked sums: its keys of an attempt, what it has answered, what it opens.

Secrets and memory are in the client's store before an answer leaves, so that a client that moves to
another process, or begins again after its process was killed, answers the same or not at all.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
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
from retexo_fl.masking.streams import WIDE
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
        self._holder: tuple[int, MaskHolder, MaskMemory, PublicKeys] | None = None

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
            self._holder = None
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
    ) -> MaskedAnswer:
        """Return an answer under masks.

        Args:
            request: With terms.
            answer: Of the question's own class.
            weights: What it was computed with, decoded.
            lengths: How many numbers it has.

        Raises:
            SecureAggregationRefused: Its sum would tell the server more than it may.
        """
        terms: MaskTerms = request.terms  # type: ignore[attr-defined]
        asked = clients_of(terms.asked or b"")
        self._check_terms(request, len(asked))
        form = form_of(request, lengths)
        holder, memory, publics = self._known(request.ticket)
        label = Label(
            job=self._job,
            place=_place(request.ticket, purpose_of(request), terms),
            keys=publics.digest,
            asked=asked,
            form=told_form(request, form),
            weights=told_weights(request, weights),
            opens=terms.opens,
        )
        holder.check(label)
        numbers = numbers_of(request, answer, lengths, terms=len(asked), client=self._client)
        hidden = holder.hide(label, numbers)
        self._remember(request.ticket.attempt, memory)
        sums = hidden.sums
        packed = sums.form.ring.pack(sums.narrow)
        return MaskedAnswer(
            numbers=np.frombuffer(packed, np.uint8),
            wide=WIDE.pack(sums.wide),
            shares=b"".join(hidden.shares[opener] for opener in sorted(hidden.shares)) or None,
        )

    def open(self, request: OpenRequest) -> OpenAnswer:
        """Tell shares.

        Raises:
            SecureAggregationRefused: See :meth:`.MaskHolder.open`.
        """
        holder, memory, publics = self._known(request.ticket)
        label = Label(
            job=self._job,
            place=_place(request.ticket, request.purpose, request.asked_with),
            keys=publics.digest,
            asked=clients_of(request.asked_with.asked or b""),
            form=request.form,
            weights=request.weights,
            opens=request.asked_with.opens,
        )
        if not (request.purpose.isascii() and request.purpose.isprintable()):
            raise SecureAggregationRefused("to open a sum of messages of no type that there is")
        holder.check(label)
        included = clients_of(request.included)
        if not {*included} <= {*label.asked}:
            raise SecureAggregationRefused("to open a sum of clients that were not asked")
        shares: dict[int, bytes] = {}
        content, at = request.shares.tobytes(), 0
        for client in included:
            size = sealed_bytes(len(label.neighbours(client)))
            shares[client] = content[at : at + size]
            at += size
        told = holder.open(label, included, shares)
        self._remember(request.ticket.attempt, memory)
        return OpenAnswer(shares=np.frombuffer(told, np.uint8))

    # ---- inside -------------------------------------------------------------------------------

    def _check_terms(self, request: Request[Any], asked: int) -> None:
        if not is_masked(request):
            raise SecureAggregationRefused(
                f"{question_of(request).message_type}: asked for numbers without masks; expected "
                "masks, as secure-aggregation says"
            )
        if isinstance(request, TrainRequest):
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

    def _known(self, ticket: Ticket) -> tuple[MaskHolder, MaskMemory, PublicKeys]:
        """Return the secrets of an attempt, and what it remembers."""
        attempt = ticket.attempt
        if self._holder is None or self._holder[0] != attempt:
            known = self._secrets(attempt)
            if known is None or "publics" not in known:
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
            self._holder = attempt, holder, memory, publics
        return self._holder[1:]

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

    def _remember(self, attempt: int, memory: MaskMemory) -> None:
        self._put(
            _MEMORY,
            {
                "attempt": attempt,
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
