"""A summary of which the server gets no number: what a client adds to the sums over all tables."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from retexo_fl.agent.agreed import OwnersFile
from retexo_fl.agent.introductions import Introductions
from retexo_fl.agent.settings import AgentSettings
from retexo_fl.channels.identity import Identity
from retexo_fl.channels.key_signing import RosterSigner
from retexo_fl.client.api import (
    ColumnsAnswer,
    ColumnsRequest,
    ColumnSumsRequest,
    KeysAnswer,
    KeysRequest,
    MaskedAnswer,
    Ticket,
)
from retexo_fl.client.masks import ClientMasks
from retexo_fl.client.store import MemoryStore
from retexo_fl.errors import AgreementError, ConfigurationError, SecureAggregationRefused
from retexo_fl.graph.recipes import TableColumns, TableSummary, number_of
from retexo_fl.masking import MASKED
from retexo_fl.units import counted

_COLUMNS: Final = Path("the server's columns")


class MaskedShare:
    """Answers about one summary; as ``MaskHolder``, and of one sum in all.

    That sum may be asked for again, by a job whose predecessor was interrupted: over the same
    clients and columns this client adds the same number, so that what two such sums differ by is of
    clients that were started again alone. A process that is started again takes part in whatever
    sum: whether it is, its owner decides.

    Args:
        summary: Of the client's table.
        signer: Signs its key, and checks those of others.
        least_clients: Sums of fewer are refused.
        least_nodes: Texts that fewer of its nodes have are neither named nor counted.

    Raises:
        ConfigurationError: The summary cannot be added up. Its owner learns that now: by a later
            refusal the server would.
    """

    def __init__(
        self,
        summary: TableSummary,
        signer: RosterSigner,
        *,
        least_clients: int,
        least_nodes: int,
    ) -> None:
        columns = TableColumns.of(summary, least_nodes)
        number_of(summary, columns, columns)
        self._summary = summary.without_source()
        self._columns = columns.without_source()
        self._signer = signer
        self._least_clients = least_clients
        #: Of the job that was asked about last.
        self._masks: dict[Ticket, ClientMasks] = {}
        #: The columns of which sums were sent.
        self._told: bytes | None = None

    def columns(self, request: ColumnsRequest) -> ColumnsAnswer:
        """Return what columns there are, and a public key."""
        ticket = request.ticket
        client = self._signer.identity.client
        if ticket not in self._masks:
            members = self._signer.agreement().cohort_of(client).members
            masks = ClientMasks(ticket.job, client, MemoryStore(), clients=len(members))
            masks.sign_by(self._signer, least_clients=self._least_clients)
            self._masks = {ticket: masks}
        key, signature = self._masks[ticket].introduce(ticket.attempt)
        assert signature is not None
        content = self._columns.to_json().encode()
        return ColumnsAnswer(
            client=client,
            mask_key=key,
            mask_signature=signature,
            agreement=self._signer.agreement().content,
            columns=np.frombuffer(content, np.uint8),
        )

    def keys(self, request: KeysRequest) -> KeysAnswer:
        """Believe the keys of all clients; see :meth:`.ClientMasks.learn`."""
        return self._masks_of(request.ticket).learn(request)

    def sums(self, request: ColumnSumsRequest) -> MaskedAnswer:
        """Return what this client adds to the sums over all tables, under masks.

        Raises:
            SecureAggregationRefused: Columns were sent to another job; sums were sent of other
                columns; or as :func:`.number_of` and :meth:`.ClientMasks.hide`.
        """
        masks = self._masks_of(request.ticket)
        content = request.columns.tobytes()
        if self._told not in (None, content):
            raise SecureAggregationRefused(
                "sums were told that are of other columns; a second sum could tell their "
                "difference; expected the same columns, or `retexo features share` to be started "
                "again by every owner who wants that"
            )
        try:
            asked = TableColumns.parse(content, _COLUMNS)
        except ConfigurationError as error:
            raise SecureAggregationRefused(str(error)) from error
        number = number_of(self._summary, self._columns, asked)
        answer = masks.hide_long(request, number, content)
        self._told = content
        return answer

    def _masks_of(self, ticket: Ticket) -> ClientMasks:
        # A question of another stage or round would be for a second sum.
        if ticket not in self._masks:
            raise SecureAggregationRefused(
                f"job {ticket.job[:60]}: this client has told no columns for this; expected "
                "query.columns first: after a start in the middle, `retexo features fit` once more"
            )
        return self._masks[ticket]


def signer_if_possible(settings: AgentSettings, asked: str) -> tuple[RosterSigner | None, str]:
    """Return what signs masking keys, if the summary is sent under masks, and a sentence about it.

    Args:
        settings: Of the client's agent.
        asked: ``masked``, ``none``, or nothing for masks where they can be.

    Raises:
        ConfigurationError: They cannot be, and the owner wants them.
        IdentityError: Key, certificate or roster file cannot be used.
    """
    required = settings.require_secure_aggregation
    if asked == "none":
        if required:
            raise ConfigurationError(
                "secure-aggregation: none; expected masked (require-secure-aggregation in this "
                "client's agent.toml)"
            )
        return None, "secure-aggregation none: the server reads the summary"
    try:
        return _signer(settings), MASKED
    except AgreementError as error:
        if asked == "masked" or required:
            raise ConfigurationError(f"secure-aggregation: masked, but {error}") from error
        return None, f"secure-aggregation none: the server reads the summary ({error})"


def _signer(settings: AgentSettings) -> RosterSigner | None:
    """Return what signs.

    Raises:
        AgreementError: Why nothing can.
    """
    roster = settings.roster
    if not roster or not Path(roster).exists():
        raise AgreementError("there is no roster file; expected roster in this client's agent.toml")
    identity = Identity.load(Path(settings.key), Path(settings.certificate))
    members = OwnersFile(settings, identity).agreement().cohort_of(identity.client).members
    if len(members) < settings.least_clients:
        raise AgreementError(
            f"its cohort has {counted(len(members), 'client')}; expected {settings.least_clients} "
            "at least (least-clients)"
        )
    # It counts as a start of this client, so not before all else is well.
    return Introductions(settings, identity).signer()
