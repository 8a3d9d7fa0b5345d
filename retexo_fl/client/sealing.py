"""How answers leave a client: in the clear, or as whole numbers under masks.

Which of the two a run has is decided once (:func:`sealing_of`); whoever answers need not ask. Where
sums are masked, what fails by the client's data must not reveal whose it was: its owner's log says
what failed, and the server gets one sentence, or zeros that are added up. How long coded rows are
follows from data as well, so what an exchange moved is summed over whole cohorts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import Any, ClassVar, Final, TypeAlias, TypeVar, cast

import numpy as np

from retexo_fl.client.answers import KEYLESS, LACKING_MASKED, SumFacts
from retexo_fl.client.api import (
    AnswerT,
    CollectAnswer,
    CollectRequest,
    CountsAnswer,
    EndRequest,
    EvaluateAnswer,
    EvaluateRequest,
    KeysAnswer,
    KeysRequest,
    PredictRequest,
    PublishAnswer,
    Request,
    Ticket,
    TrainAnswer,
)
from retexo_fl.client.masks import NOISED, ClientMasks, KeySigner
from retexo_fl.client.moved import EXCHANGE, ExchangeAccount, Moved
from retexo_fl.client.stage_rows import rows_that_fit
from retexo_fl.client.store import ClientStore
from retexo_fl.config import RunConfig, config_digest
from retexo_fl.errors import (
    AgreementError,
    ChannelError,
    CheckpointError,
    ConfigurationError,
    ExchangeIncomplete,
    LocalProtocolError,
    MaskingKeysLost,
    PartitionError,
    ProtocolError,
    RetexoError,
    SecureAggregationRefused,
    StaleAttempt,
)
from retexo_fl.exchange import Vectors
from retexo_fl.ledger import PeerTraffic
from retexo_fl.masking.agreement import USES

logger = logging.getLogger(__name__)

Found = TypeVar("Found")
#: The keys and the cohort of a client, or none.
Masks: TypeAlias = "NoMasks | ClientMasks"
#: Returns what an attempt has moved before a stage, by an account that outlives the process.
Moving: TypeAlias = Callable[[Ticket], PeerTraffic]
#: Of a question whose answer may take exchanges with peers.
RoundAnswerT = TypeVar("RoundAnswerT", TrainAnswer, EvaluateAnswer)

#: What follows from the questions that were asked, what owners agreed on, what peers sent and the
#: disk: the server may learn it under masks, too.
_TOLD: Final = (
    *(AgreementError, ChannelError, CheckpointError, ConfigurationError, ExchangeIncomplete),
    *(ProtocolError, SecureAggregationRefused, StaleAttempt),
)
#: Rows that are sent under masks stay below; no codec refuses them.
_MOST_ROW: Final = 2.0**60


def sealing_of(
    config: RunConfig, facts: SumFacts, *, job: str, client: int, store: ClientStore
) -> Sealing:
    """Return how the answers of a client leave.

    Args:
        config: Of the run.
        facts: What is known of its sums.
        job: Name of the job.
        client: The client's index.
        store: Of the client.
    """
    if config.secure_aggregation != "masked":
        return Sealing()
    masks = ClientMasks(job, client, store, clients=config.clients, config=config_digest(config))
    if config.update_dp:
        masks.noised = NOISED
    return MaskedSealing(client, facts, masks, store)


class NoMasks:
    """What a client has of keys and cohorts where sums are not masked: none; as ClientMasks."""

    def told(
        self, attempt: int, counts: CountsAnswer, labels: Callable[[], Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return the fields of a hello about a client's part: all counts and labels."""
        del attempt
        return {**asdict(counts), **labels()}

    def sign_by(self, signer: KeySigner | None, *, least_clients: int) -> None:
        """Sign no keys: there are none."""

    def go_on_from(self, earlier: object) -> None:
        """Keep no keys: there are none."""

    def check_asked(self) -> None:
        """Refuse a question that exists only under masks: in the clear hello has answered it.

        Raises:
            LocalProtocolError: Always.
        """
        raise _not_masked()

    def learn(self, request: KeysRequest) -> KeysAnswer:
        """Refuse to learn keys.

        Raises:
            LocalProtocolError: Always.
        """
        raise _not_masked()

    def uses(self, ticket: Ticket, *, without_keys: bool = False) -> frozenset[str]:
        """Return what the client's sums may be of: of everything."""
        del ticket, without_keys
        return frozenset(USES)

    def rows(self) -> bytes:
        """Return what the names of the job's rows begin with: nothing."""
        return b""


class Sealing:
    """Lets answers leave in the clear: there is nothing to seal.

    Attributes:
        tells_sums_alone: Nothing that only this client adds can be read of an answer.
        refusal: What refuses to answer at one place twice.
        may_judge_again: The weights after the last round may be judged at that round's place.
        tells_squares: Sums of features go with those of their squares, from which the server
            chooses the step that other sums are multiples of.
        names_features: The name of the features is checked: it follows from more than weights.
        name_of_rows: From what the names of rows follow.
        masks: What the client has of keys and cohorts.
    """

    tells_sums_alone: ClassVar[bool] = False
    refusal: ClassVar[type[RetexoError]] = LocalProtocolError
    may_judge_again: ClassVar[bool] = True
    tells_squares: ClassVar[bool] = False
    names_features: ClassVar[bool] = False
    name_of_rows: ClassVar[str] = "the weights"

    def __init__(self) -> None:
        self.masks: Masks = NoMasks()

    # ---- answers --------------------------------------------------------------------------------

    @contextmanager
    def sealed(self) -> Generator[None]:
        """Replace errors that depend on this client's data by one sentence, where sums are masked.

        Raises:
            PartitionError: Its part does not fit a peer's.
            SecureAggregationRefused: An answer could not be computed; the owner's log says why.
        """
        try:
            yield
        except Exception as error:
            self._keep_to_owner(error)
            if isinstance(error, PartitionError):
                raise PartitionError(
                    "its part and a peer's do not fit together; the log of its agent says where"
                ) from None
            raise SecureAggregationRefused(
                "an answer could not be computed; the log of its agent says why"
            ) from None

    def computed(self, compute: Callable[[], Found]) -> Found | None:
        """Return what an answer is made of; under masks None if that failed.

        What fails follows from this client's data, so the server must not learn whose it was: the
        answer is zeros, and one more value that was cut. Its owner's log says what failed.

        Raises:
            RetexoError: What follows from the questions and the exchange alone.
        """
        try:
            return compute()
        except Exception as error:
            self._keep_to_owner(error)
            return None

    def _keep_to_owner(self, error: Exception) -> None:
        """Log for the owner alone what failed (where: in the log of level DEBUG).

        Raises:
            Exception: The error itself, where the server may learn it: without masks, or where it
                does not depend on data.
        """
        raise error

    def answered(
        self,
        request: Request[AnswerT],
        answer: AnswerT | None,
        weights: np.ndarray | None = None,
        size: int = 0,
        *,
        values: np.ndarray | None = None,
        code: Callable[[AnswerT], AnswerT] | None = None,
        again: bool = False,
    ) -> AnswerT:
        """Return an answer as it leaves.

        Args:
            request: What was asked.
            answer: In the clear; None if :meth:`computed` returned that.
            weights: What it was computed with, decoded.
            size: How many values its array has when decoded.
            values: Of an update, whose values that are not finite count as cut.
            code: Makes of it what travels in the clear, if that is something else.
            again: The round was begun before.
        """
        del request, weights, size, values, again
        assert answer is not None
        return answer if code is None else code(answer)

    def lacking(self, answer: AnswerT) -> AnswerT:
        """Return the answer of a client that lacks weights."""
        return answer

    def with_traffic(
        self,
        request: Request[Any],
        answer: RoundAnswerT,
        moved: Mapping[str, PeerTraffic],
        *,
        again: bool,
    ) -> RoundAnswerT:
        """Return an answer with what crossed for it inside its round, by purpose.

        Args:
            request: What was asked.
            answer: As it leaves.
            moved: By purpose of its exchanges.
            again: The round was begun before.
        """
        del request, again
        validating = moved.get("evaluate", PeerTraffic())
        if isinstance(answer, EvaluateAnswer):
            return replace(answer, traffic=validating)
        training = moved.get("train", PeerTraffic())
        return replace(answer, training_traffic=training, validation_traffic=validating)

    def is_last(self, request: Request[Any]) -> bool:
        """Return whether a job is over for the client that has answered a question."""
        if isinstance(request, EvaluateRequest):
            return request.last
        return isinstance(request, PredictRequest)

    # ---- exchanges ------------------------------------------------------------------------------

    def rows(self, ticket: Ticket, rows: Vectors) -> Vectors:
        """Return rows as they may be sent before a stage."""
        del ticket
        return rows

    def published(
        self, ticket: Ticket, answer: PublishAnswer, count: Moving | None
    ) -> PublishAnswer:
        """Return what the server learns of rows that were sent.

        Args:
            ticket: Names the exchange.
            answer: With the bytes that left just now.
            count: Knows those of the attempt, where something does.
        """
        return answer if count is None else replace(answer, traffic=count(ticket).sent)

    def check_closing(self, stage: int) -> None:
        """Check that an exchange may be closed without some vectors.

        Raises:
            SecureAggregationRefused: It may not.
        """

    def collected(
        self, request: CollectRequest, answer: CollectAnswer, vectors: int, count: Moving | None
    ) -> CollectAnswer:
        """Return what the server learns of rows that have come.

        Args:
            request: What was asked.
            answer: With the bytes that came just now.
            vectors: How many the client sends in the exchange.
            count: As for :meth:`published`.
        """
        del vectors
        return answer if count is None else replace(answer, traffic=count(request.ticket).received)


class MaskedSealing(Sealing):
    """Seals answers: whole numbers under masks leave, and nothing else that depends on data.

    Args:
        client: Its index.
        facts: What is known of its sums.
        masks: Hides them.
        store: Of the client: another process reports the same of an exchange.
    """

    tells_sums_alone = True
    refusal = SecureAggregationRefused
    may_judge_again = False
    tells_squares = True
    names_features = True
    name_of_rows = "the weights, or this client's configuration or agreement"

    def __init__(
        self, client: int, facts: SumFacts, masks: ClientMasks, store: ClientStore
    ) -> None:
        self._client = client
        self._facts = facts
        self.masks: Masks = masks
        self._hiding = masks
        self._moved = ExchangeAccount(store)

    # ---- answers --------------------------------------------------------------------------------

    def _keep_to_owner(self, error: Exception) -> None:
        if isinstance(error, _TOLD):
            raise error
        logger.warning(
            "client %d: its answer could not be computed: %s: %s",
            self._client,
            type(error).__name__,
            " ".join(str(error).split()),
        )
        logger.debug("it failed here", exc_info=error)

    def answered(
        self,
        request: Request[AnswerT],
        answer: AnswerT | None,
        weights: np.ndarray | None = None,
        size: int = 0,
        *,
        values: np.ndarray | None = None,
        code: Callable[[AnswerT], AnswerT] | None = None,
        again: bool = False,
    ) -> AnswerT:
        """See :meth:`.Sealing.answered`."""
        del code
        facts = replace(self._facts, update=size)
        cut = 0 if values is None else int(np.count_nonzero(~np.isfinite(values)))
        hidden: Any = KEYLESS
        with suppress(MaskingKeysLost):
            hidden = self._hiding.hide(request, answer, weights, facts, cut=cut, again=again)
        return cast("AnswerT", hidden)

    def lacking(self, answer: AnswerT) -> AnswerT:
        """See :meth:`.Sealing.lacking`."""
        del answer
        lacking: Any = LACKING_MASKED
        return cast("AnswerT", lacking)

    def with_traffic(
        self,
        request: Request[Any],
        answer: RoundAnswerT,
        moved: Mapping[str, PeerTraffic],
        *,
        again: bool,
    ) -> RoundAnswerT:
        """See :meth:`.Sealing.with_traffic`."""
        told: Any = answer
        hidden = self._hiding.hide_moved(request, Moved(by_purpose=moved), again=again)
        return cast("RoundAnswerT", replace(told, moved=hidden))

    def is_last(self, request: Request[Any]) -> bool:
        """See :meth:`.Sealing.is_last`."""
        return isinstance(request, EndRequest)

    # ---- exchanges ------------------------------------------------------------------------------

    def rows(self, ticket: Ticket, rows: Vectors) -> Vectors:
        """Return rows that every codec takes: a refusal would reveal whose are not."""
        fitting, cut = rows_that_fit(rows, _MOST_ROW)
        if cut:
            self._moved.add(ticket, PeerTraffic(), cut=cut)
        return fitting

    def published(
        self, ticket: Ticket, answer: PublishAnswer, count: Moving | None
    ) -> PublishAnswer:
        """See :meth:`.Sealing.published`."""
        self._note(ticket, PeerTraffic(sent=answer.traffic), count)
        return PublishAnswer()

    def check_closing(self, stage: int) -> None:
        """See :meth:`.Sealing.check_closing`."""
        raise SecureAggregationRefused(
            f"stage {stage}: to train without vectors of some peers; expected all under "
            "secure-aggregation masked, since the server could choose whose are missing"
        )

    def collected(
        self, request: CollectRequest, answer: CollectAnswer, vectors: int, count: Moving | None
    ) -> CollectAnswer:
        """See :meth:`.Sealing.collected`; a cohort that has new keys gets the same again."""
        self._note(request.ticket, PeerTraffic(received=answer.traffic), count)
        if not answer.complete:
            return CollectAnswer(complete=False)
        return CollectAnswer(complete=True, moved=self._hidden_moved(request, vectors, count))

    def _note(self, ticket: Ticket, moved: PeerTraffic, count: Moving | None) -> None:
        if count is None and moved != PeerTraffic():
            self._moved.add(ticket, moved)

    def _hidden_moved(
        self, request: CollectRequest, vectors: int, count: Moving | None
    ) -> bytes | None:
        """Return what a complete exchange moved, under masks; None if it has no keys."""
        ticket = request.ticket
        moved, cut = self._moved.told(ticket, None if count is None else count(ticket))
        told = Moved(by_purpose={EXCHANGE: moved}, vectors=vectors, cut=cut)
        return self._hiding.hide_moved(request, told)


def _not_masked() -> LocalProtocolError:
    """Return what refuses a question about masks where sums are not masked."""
    return LocalProtocolError("asked about masks; expected secure-aggregation none")
