"""A client's side of masked sums: whose sums it takes part in, its keys, and what it has answered.

In a simulation, where clients move between processes, the keys of an attempt are in the client's
store. Those of a client that signs are in memory alone: a process that begins anew has others,
under which nothing was answered yet, and a folder that is put back has none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, Final, Protocol

import numpy as np

from retexo_fl.client.answers import SumFacts
from retexo_fl.client.api import (
    BasisRequest,
    ChoiceRequest,
    CountsAnswer,
    GramRequest,
    KeysAnswer,
    KeysRequest,
    MaskedAnswer,
    Request,
    Ticket,
    TrainRequest,
    purpose_of,
    told_weights,
)
from retexo_fl.client.masked_answers import form_of, numbers_of
from retexo_fl.client.moved import KEYS_BYTES, Moved, moved_length
from retexo_fl.client.store import ClientStore, MemoryStore
from retexo_fl.errors import MaskingKeysLost, SecureAggregationRefused
from retexo_fl.masking.agreement import LEAST, USES, Agreement
from retexo_fl.masking.holder import Maskable, MaskHolder
from retexo_fl.masking.keys import KEY_BYTES, Label, PublicKeys, SecretKeys, rows_of
from retexo_fl.masking.long_number import LongNumber
from retexo_fl.masking.ring import Ring
from retexo_fl.masking.streams import WIDE, Form, Sums
from retexo_fl.units import clients_named, counted

#: Names in the store: what no disk of a client that signs has, and what all may know.
_NOTE: Final = "masking"
_USES_NOTE: Final = "uses"
#: What train nodes add is asked for: without noise no answer, where noise is wanted.
NOISED: Final = frozenset({TrainRequest, BasisRequest, ChoiceRequest, GramRequest})


class KeySigner(Protocol):
    """Signs a client's masking keys for its owner: :class:`.RosterSigner`."""

    @property
    def agreement(self) -> Callable[[], Agreement]:
        """Returns which sums the owner agreed to.

        It raises AgreementError where the owners agreed on none that the client may answer by.
        """

    @property
    def brings(self) -> Callable[[], frozenset[str]]:
        """Returns the uses that the owner promised data of; it raises as ``agreement`` does."""

    def sign(self, job: str, attempt: int, public: bytes) -> bytes:
        """Return 88 bytes: which process this is, and its signature of that and a masking key."""

    def check(
        self, job: str, attempt: int, publics: Mapping[int, bytes], signed: bytes
    ) -> dict[int, int]:
        """Return, by client, how often it was started, as is signed with its key.

        Args:
            job: Name of the job.
            attempt: Of the job.
            publics: By client, its masking key.
            signed: What :meth:`sign` has returned at each, in this order.

        Raises:
            SecureAggregationRefused: Some client's key is not signed by its owner.
            CheckpointError: What is remembered of others could not be read or written.
        """


class ClientMasks:
    """Masks the answers of one client of one job.

    Args:
        job: Name of the job.
        client: The client's index.
        store: Of the client.
        clients: How many the job has.
        config: Digest of its configuration; empty where it has none.

    Attributes:
        job: Name of the job.
        signer: None where clients have no owners who agreed on sums: in a simulation.
        least_clients: Sums of fewer are refused.
        noised: Questions to which sums without noise are no answer.
        noise: Adds it (:meth:`.UpdateNoise.added`).
    """

    def __init__(
        self, job: str, client: int, store: ClientStore, *, clients: int, config: bytes = b""
    ) -> None:
        self.job = self._job = job
        self._client = client
        self._lasting = self._store = store
        self._clients = clients
        self._config = config
        self.least_clients = LEAST
        self.signer: KeySigner | None = None
        self.noised: frozenset[type[Request[Any]]] = frozenset()
        self.noise: Callable[[Request[Any], Sums, bytes, int], Sums] | None = None
        #: What labels of an attempt have in common, and what hides numbers under them.
        self._attempt: tuple[Label, MaskHolder] | None = None

    def sign_by(self, signer: KeySigner | None, *, least_clients: int) -> None:
        """Answer others that belong to owners, too; keys are in memory alone from now on.

        Args:
            signer: Signs this client's keys and checks theirs.
            least_clients: Sums of fewer are refused.
        """
        self.signer, self.least_clients = signer, least_clients
        self._store, self._attempt = MemoryStore(), None

    def go_on_from(self, earlier: object) -> None:
        """Keep the keys that a client had before keys of its run were settled.

        Of what is answered from then on labels name the settled ones.
        """
        assert isinstance(earlier, ClientMasks), "whether sums are masked is not settled later"
        self._store = earlier._store

    def introduce(self, attempt: int) -> tuple[bytes, bytes | None]:
        """Return the client's public key of an attempt, 32 bytes, and what it signs, if it does.

        That is its counters and a signature of 64 bytes.
        """
        known = _noted(self._store, _NOTE, attempt)
        if known is None:
            drawn = SecretKeys.draw()
            known = {"attempt": attempt, "private": drawn.private.hex(), "own": drawn.own.hex()}
            self._put(known)
            self._attempt = None
        public = _secret_keys(known).public
        if self.signer is None:
            return public, None
        return public, self.signer.sign(self._job, attempt, public)

    def told(
        self, attempt: int, counts: CountsAnswer, labels: Callable[[], Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return the fields of a hello about a client's part: no counts, and no labels.

        Args:
            attempt: Of the hello.
            counts: Of the part.
            labels: Computes what hello says of labels in the clear; not called.

        Raises:
            AgreementError: As :meth:`agreed`.
        """
        del labels
        agreement = self.agreed()
        key, signature = self.introduce(attempt)
        has = [use for use in USES if getattr(counts, use)]
        return {
            **dict.fromkeys(asdict(counts), 0),
            "sizes": (),
            "vectors_later": (),
            "brings": " ".join(sorted(self.brings(has))),
            "mask_key": key,
            "mask_signature": signature,
            "agreement": agreement,
        }

    def check_asked(self) -> None:
        """Allow what is asked under masks alone."""

    def learn(self, request: KeysRequest) -> KeysAnswer:
        """Believe the keys of the cohort, if their owners signed them.

        Within an attempt, a member's key is another only if its process is a later one.

        Raises:
            SecureAggregationRefused: The cohort is not the one that the owner agreed to, or a key
                is not signed by its owner, of an earlier process than was seen, or another without
                being of a later process; or the keys are those that others have replaced.
            AgreementError: The owners' agreement does not have the client.
            CheckpointError: As :meth:`KeySigner.check`.
        """
        self._check_cohort(request)
        publics = self._keys_in(request)
        known = _noted(self._store, _NOTE, request.ticket.attempt)
        if known is None:
            # It began anew after hello.
            return KeysAnswer(digest=b"")
        facts = {
            "agreement": request.agreement.hex(),
            "cohort": list(request.cohort),
            "uses": request.uses,
        }
        for name, told in facts.items():
            if known.get(name, told) != told:
                raise SecureAggregationRefused(
                    f"the server names another {name} of masked sums than before in this attempt"
                )
        MaskHolder(self._client, _secret_keys(known), publics)
        starts: dict[int, int] = {}
        if self.signer is not None:
            signed = request.signatures or b""
            attempt = request.ticket.attempt
            starts = self.signer.check(self._job, attempt, publics.by_client, signed)
        members = {
            str(client): [key.hex(), starts.get(client, 0)]
            for client, key in publics.by_client.items()
        }
        for client, (key, before) in known.get("members", members).items():
            if members[client][0] != key and members[client][1] <= before:
                raise SecureAggregationRefused(
                    f"the server names another masking key of client {client} than before in this "
                    "attempt; expected one of a later start of that client"
                )
        named, now = known.get("named", []), publics.digest.hex()
        if now in named[:-1]:
            # What was answered under them is known no longer: a second content would be, too.
            raise SecureAggregationRefused(
                "the server names masking keys that were replaced in this attempt; expected others"
            )
        named = [*(digest for digest in named if digest != now), now]
        self._put(known | facts | {"members": members, "named": named})
        if self._lasting is not self._store:
            lasting = {"attempt": request.ticket.attempt, **facts}
            self._lasting.put_note(_USES_NOTE, json.dumps(lasting).encode())
        if self._attempt is not None and self._attempt[0].keys != publics.digest:
            # Under these keys nothing was answered yet.
            self._attempt = None
        return KeysAnswer(digest=publics.digest)

    def uses(self, ticket: Ticket, *, without_keys: bool = False) -> frozenset[str]:
        """Return what the client's sums may be of in an attempt: to others it adds zeros.

        Args:
            ticket: Names the attempt.
            without_keys: Also where an earlier process had the keys: peers wait for what this one
                computes, though it has no answer.

        Raises:
            MaskingKeysLost: It has no keys of the attempt.
            SecureAggregationRefused: Owners agreed on something else since, with other parts.
            AgreementError: As :meth:`KeySigner.agreement`.
        """
        try:
            common, _ = self._known(ticket)
            agreement, uses = common.agreement, common.uses
        except MaskingKeysLost:
            noted = _noted(self._lasting, _USES_NOTE, ticket.attempt) if without_keys else None
            if noted is None:
                raise
            agreement, uses = bytes.fromhex(noted["agreement"]), frozenset(noted["uses"].split())
        if self.signer is None:
            return uses
        if self.signer.agreement().digest != agreement:
            raise SecureAggregationRefused(
                "the owners agreed on something else since this attempt began; resume the run with "
                "`retexo run --resume`"
            )
        return uses & self.signer.brings()

    def agreed(self) -> bytes | None:
        """Return what the owners agreed on, which all clients send; None in a simulation.

        Raises:
            AgreementError: As :meth:`KeySigner.agreement`.
        """
        return None if self.signer is None else self.signer.agreement().content

    def brings(self, has: Iterable[str]) -> frozenset[str]:
        """Return the uses that the client says it has nodes of.

        Args:
            has: Those that it has nodes of; returned where there is no agreement.

        Raises:
            AgreementError: As :meth:`KeySigner.agreement`.
        """
        return frozenset(has) if self.signer is None else self.signer.brings()

    def rows(self) -> bytes:
        """Return what the names of the job's rows begin with (:func:`.rows_of`).

        Raises:
            AgreementError: As :meth:`KeySigner.agreement`.
        """
        return rows_of(self._config, b"" if self.signer is None else self.signer.agreement().digest)

    def hide(
        self,
        request: Request[Any],
        answer: Any,
        weights: np.ndarray | None,
        facts: SumFacts,
        *,
        cut: int = 0,
        again: bool = False,
    ) -> MaskedAnswer:
        """Return an answer under masks.

        Args:
            request: What was asked.
            answer: Of the question's own class; an update as :class:`.MaskedUpdates` encodes it.
                None if it could not be computed.
            weights: What it was computed with, decoded.
            facts: Of the run's sums.
            cut: How many values were cut before.
            again: A second time, since clients lacked weights, and sent peers rows of others.

        Raises:
            MaskingKeysLost: As :meth:`uses`.
            SecureAggregationRefused: Its sum would reveal more to the server than it may.
        """
        form = form_of(request, facts)
        steps: bytes = getattr(request, "steps", None) or b""
        told = told_weights(request, weights)
        numbers = numbers_of(request, answer, form, facts, terms=self._clients, cut=cut)
        if type(request) in self.noised:
            if self.noise is None:
                raise SecureAggregationRefused("a sum without noise; expected update-dp's")
            # Also of one that could not be computed: without its share a sum would have too little.
            numbers = self.noise(request, numbers, told, self._honest(request.ticket))
        sums = self._hidden(
            request, numbers, form=form.words + b"/" + steps, weights=told, again=again
        )
        return MaskedAnswer(
            numbers=form.ring.pack(sums.narrow),
            beside=form.counter.pack(sums.counts).tobytes() + sums.wide.tobytes(),
        )

    def hide_moved(
        self, request: Request[Any], moved: Moved, *, again: bool = False
    ) -> bytes | None:
        """Return what was moved for a question under masks.

        Args:
            request: What was asked.
            moved: For it.
            again: As for :meth:`hide`.

        Returns:
            Which keys they are under, then the numbers. None if it has no keys: then its cohort
            has to get new ones, or is asked for no sums.

        Raises:
            SecureAggregationRefused: Another answer was given at this place.
        """
        try:
            common, _ = self._known(request.ticket)
        except MaskingKeysLost:
            return None
        form = Form(ring=Ring(2), narrow=0, wide=moved_length(type(request)))
        numbers = replace(form.zeros(), wide=WIDE.wrapped(moved.numbers(type(request))))
        # Of each stage by itself: under new keys those before may be asked again after a later one.
        what = f" bytes {request.ticket.stage}"
        sums = self._hidden(request, numbers, what=what, again=again)
        return common.keys[:KEYS_BYTES] + sums.wide.tobytes()

    def hide_long(self, request: Request[Any], number: LongNumber, told: bytes) -> MaskedAnswer:
        """Return a long number under masks.

        Args:
            request: What was asked.
            number: This client's.
            told: What the number was made for: if it differs between clients, masks do not cancel.

        Raises:
            SecureAggregationRefused: As :meth:`hide`.
        """
        weights = hashlib.sha256(told).digest()
        hidden = self._hidden(request, number, weights=weights)
        return MaskedAnswer(numbers=np.frombuffer(hidden.content, np.uint8), beside=b"")

    # ---- inside -------------------------------------------------------------------------------

    def _hidden(
        self,
        request: Request[Any],
        numbers: Maskable,
        *,
        form: bytes = b"",
        weights: bytes = b"",
        what: str = "",
        again: bool = False,
    ) -> Maskable:
        """Return numbers under the masks of the client's own cohort, whatever the server asks for.

        ``form`` says how they are coded, if not their own widths, ``what`` what they are beside
        the answer.
        """
        common, holder = self._known(request.ticket)
        label = replace(
            common,
            purpose=f"{purpose_of(request)}{what}{' again' if again else ''}",
            stage=request.ticket.stage,
            round=request.ticket.round,
            form=hashlib.sha256(form or numbers.words).digest(),
            weights=weights,
        )
        return holder.hide(label, numbers)

    def _honest(self, ticket: Ticket) -> int:
        """Return how many members of the cohort do not work with the server, at least."""
        common, _ = self._known(ticket)
        tolerated = 0 if self.signer is None else self.signer.agreement().tolerated
        return len(common.cohort) - tolerated

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
        if len(members) < self.least_clients:
            whose = " (least-clients in its agent.toml)" if self.least_clients > LEAST else ""
            raise SecureAggregationRefused(
                f"a sum of {counted(len(members), 'client')}; expected {self.least_clients} at "
                f"least{whose}"
            )

    def _keys_in(self, request: KeysRequest) -> PublicKeys:
        """Return the keys of the members, each another one."""
        clients, keys = request.cohort, request.keys.tobytes()
        if len(keys) != KEY_BYTES * len(clients):
            raise SecureAggregationRefused(
                f"{len(keys)} bytes of masking keys for {counted(len(clients), 'client')}"
            )
        publics = PublicKeys.of(clients, keys)
        if len({*publics.by_client.values()}) < len(clients):
            raise SecureAggregationRefused("two clients have the same masking key")
        return publics

    def _known(self, ticket: Ticket) -> tuple[Label, MaskHolder]:
        """Return what labels of an attempt have in common, and what hides numbers under them."""
        attempt = ticket.attempt
        if self._attempt is None or self._attempt[0].attempt != attempt:
            known = _noted(self._store, _NOTE, attempt)
            if known is None or "members" not in known:
                raise MaskingKeysLost(
                    f"client {self._client}, attempt {attempt}: has no masking keys, as after a "
                    "start; expected query.hello and query.keys first; resume the run with "
                    "`retexo run --resume`"
                )
            keys = b"".join(bytes.fromhex(key) for key, _ in known["members"].values())
            publics = PublicKeys.of(tuple(known["cohort"]), keys)
            common = Label(
                job=self._job,
                config=self._config,
                attempt=attempt,
                purpose="",
                stage=0,
                round=0,
                agreement=bytes.fromhex(known["agreement"]),
                cohort=tuple(publics.by_client),
                uses=frozenset(known["uses"].split()),
                keys=publics.digest,
                form=b"",
                weights=b"",
            )
            self._attempt = common, MaskHolder(self._client, _secret_keys(known), publics)
        return self._attempt

    def _put(self, known: Mapping[str, Any]) -> None:
        self._store.put_note(_NOTE, json.dumps(known).encode())


def _noted(store: ClientStore, name: str, attempt: int) -> dict[str, Any] | None:
    content = store.note(name)
    known: dict[str, Any] = {} if content is None else json.loads(content)
    return known if known.get("attempt") == attempt else None


def _secret_keys(known: Mapping[str, Any]) -> SecretKeys:
    return SecretKeys(bytes.fromhex(known["private"]), bytes.fromhex(known["own"]))
