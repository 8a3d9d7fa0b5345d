"""How answers leave a client: in the clear, or as whole numbers under masks.

Where sums are masked, what fails by the client's data must not tell whose it was: its owner's log
says what failed, and the server gets one sentence, or zeros that are added up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final, TypeVar, cast

import numpy as np

from retexo_fl.client.answers import KEYLESS, LACKING_MASKED, SumFacts
from retexo_fl.client.api import AnswerT, Request
from retexo_fl.client.masks import ClientMasks
from retexo_fl.errors import (
    AgreementError,
    ChannelError,
    CheckpointError,
    ConfigurationError,
    ExchangeIncomplete,
    MaskingKeysLost,
    PartitionError,
    ProtocolError,
    SecureAggregationRefused,
    StaleAttempt,
)

logger = logging.getLogger(__name__)

Found = TypeVar("Found")

#: What follows from the questions that were asked, what owners agreed on, what peers sent and the
#: disk: it may be told under masks, too.
_TOLD: Final = (
    *(AgreementError, ChannelError, CheckpointError, ConfigurationError, ExchangeIncomplete),
    *(ProtocolError, SecureAggregationRefused, StaleAttempt),
)


class Sealing:
    """Seals the answers of one client.

    Args:
        client: Its index.
        facts: What is known of its sums.
        masks: None where sums are not masked.
    """

    def __init__(self, client: int, facts: SumFacts, masks: ClientMasks | None) -> None:
        self._client = client
        self._facts = facts
        self._masks = masks

    @contextmanager
    def sealed(self) -> Generator[None]:
        """Have what fails by this client's data be told by one sentence, where sums are masked.

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

    def _keep_to_owner(self, error: Exception) -> None:
        """Tell the owner alone what failed (where: in the log of level DEBUG).

        Raises:
            Exception: The error itself, where it may be told: without masks, or not of data.
        """
        if self._masks is None or isinstance(error, _TOLD):
            raise error
        logger.warning(
            "client %d: its answer could not be computed: %s: %s",
            self._client,
            type(error).__name__,
            " ".join(str(error).split()),
        )
        logger.debug("it failed here", exc_info=error)

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

    def answered(
        self,
        request: Request[AnswerT],
        answer: AnswerT | None,
        weights: np.ndarray | None = None,
        size: int = 0,
        *,
        values: np.ndarray | None = None,
        again: bool = False,
    ) -> AnswerT:
        """Return an answer as it leaves: under masks, where sums are masked.

        Args:
            request: What was asked.
            answer: In the clear; None if :meth:`computed` returned that.
            weights: What it was computed with, decoded.
            size: How many values its array stands for.
            values: Of an update, whose values that are not finite count as cut.
            again: The round was begun before.
        """
        if self._masks is None:
            assert answer is not None
            return answer
        facts = replace(self._facts, update=size)
        cut = 0 if values is None else int(np.count_nonzero(~np.isfinite(values)))
        hidden: Any = KEYLESS
        with suppress(MaskingKeysLost):
            hidden = self._masks.hide(request, answer, weights, facts, cut=cut, again=again)
        return cast("AnswerT", hidden)

    def lacking(self, answer: AnswerT) -> AnswerT:
        """Return the answer of a client that lacks weights."""
        lacking: Any = LACKING_MASKED
        return answer if self._masks is None else cast("AnswerT", lacking)
