"""Questions of a feature recipe: what it needs to know of tables, and the recipe itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from retexo_fl.client.api.base import Question, Request, Ticket
from retexo_fl.client.api.rounds import MaskedAnswer
from retexo_fl.client.schema import FLAT


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRequest(Request["SummaryAnswer"]):
    """Ask what a feature recipe needs of the client's nodes, if its owner shares that.

    Attributes:
        ticket: Names job and attempt.
    """

    ticket: Ticket = field(metadata=FLAT)


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryAnswer:
    """A summary of the client's table.

    Attributes:
        summary: uint8, the JSON that `retexo features summarise` writes.
    """

    summary: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsRequest(Request["ColumnsAnswer"]):
    """Ask what columns the client's nodes have, without a number: where sums are masked."""

    ticket: Ticket = field(metadata=FLAT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsAnswer:
    """What a client sends in the clear before a masked sum over tables.

    Attributes:
        client: Its index.
        mask_key: As in :class:`HelloAnswer`; likewise ``mask_signature`` and ``agreement``.
        columns: uint8, the JSON of :class:`.TableColumns`.
    """

    client: int
    mask_key: bytes
    mask_signature: bytes
    agreement: bytes
    columns: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSumsRequest(Request[MaskedAnswer]):
    """Add up what a feature recipe needs to know of the clients' tables, under masks.

    Attributes:
        ticket: Names job and attempt.
        columns: uint8, the JSON of what columns all clients have together.
    """

    ticket: Ticket = field(metadata=FLAT)
    columns: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeRequest(Request["RecipeAnswer"]):
    """Store the feature recipe that all clients use.

    Attributes:
        ticket: Names job and attempt.
        recipe: uint8, TOML.
    """

    ticket: Ticket = field(metadata=FLAT)
    recipe: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeAnswer:
    """The digest of the recipe that the client has stored."""

    digest: str


SUMMARY: Final = Question("summary", "query.summary", SummaryRequest, SummaryAnswer)
COLUMNS: Final = Question("columns", "query.columns", ColumnsRequest, ColumnsAnswer)
COLUMN_SUMS: Final = Question("column_sums", "query.sums", ColumnSumsRequest, MaskedAnswer)
RECIPE: Final = Question("recipe", "query.recipe", RecipeRequest, RecipeAnswer)
