"""The ServerApp that makes one feature recipe of the summaries of all clients' tables."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from retexo_fl.client.api import (
    ColumnsAnswer,
    ColumnsRequest,
    ColumnSumsRequest,
    RecipeAnswer,
    RecipeRequest,
    SummaryAnswer,
    SummaryRequest,
    Ticket,
)
from retexo_fl.config import make_config
from retexo_fl.errors import (
    CheckpointError,
    ConfigurationError,
    RemoteProtocolError,
    RoundIncomplete,
)
from retexo_fl.federation import records
from retexo_fl.federation.asking import Ask, Messenger, WaitPolicy, named
from retexo_fl.federation.greeting import whoever_comes
from retexo_fl.federation.rounds.mask_keys import agreed_by, hand_out_keys
from retexo_fl.files import write_whole
from retexo_fl.graph.recipes import (
    FeatureRecipe,
    FitOptions,
    TableColumns,
    TableSummary,
    fit_recipe,
    merge_columns,
    merge_summaries,
    parse_summary,
    read_recipe,
    sum_of_nothing,
    summary_of_sums,
)
from retexo_fl.ledger import TrafficLedger
from retexo_fl.masking.long_number import LongNumber
from retexo_fl.replacing import check_new_file
from retexo_fl.units import clients_named

logger = logging.getLogger(__name__)

_BEGIN_AGAIN: Final = (
    "the owners of those that are missing start `retexo features share` again, all others leave "
    "theirs running; then `retexo features fit` once more"
)
_TAKE_THE_FILE: Final = (
    "the recipe is made, and stored at the others: their owners give the file to those that lack "
    "it, or all begin again"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeTask(FitOptions):
    """What is made, and where it goes.

    Attributes:
        out: New file for the recipe, where the ServerApp runs.
        drop: Columns that do not become features.
        overwrite: A recipe that is there is replaced.
    """

    out: str
    drop: tuple[str, ...] = ()
    overwrite: bool = False


def make_recipe_app(task: RecipeTask) -> ServerApp:
    """Return a ServerApp whose run makes a recipe, which all clients then have."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config, out = make_config(dict(context.run_config)), Path(task.out)
        check_new_file(out, overwrite=task.overwrite, read=read_recipe, what="a recipe")
        policy = WaitPolicy.for_all(config)
        messenger = Messenger(grid, ledger=TrafficLedger(), policy=policy)
        masked = config.secure_aggregation == "masked"
        recipe = share_recipe(messenger, config.clients, task, masked=masked)
        try:
            write_whole(out, [recipe.to_toml().encode()], durable=True)
        except OSError as error:
            raise CheckpointError(f"{out}: could not be written ({error.strerror})") from error

    return app


def share_recipe(
    messenger: Messenger, clients: int, task: RecipeTask, *, masked: bool = False
) -> FeatureRecipe:
    """Ask clients for summaries, make a recipe, and have all of them store it.

    Args:
        messenger: The way to the clients.
        clients: How many there must be.
        task: What is chosen.
        masked: Ask for sums over all summaries alone.

    Raises:
        RemoteProtocolError: An answer is no summary, or not the recipe's digest; or no tables have
            the sums.
        ConfigurationError: The summaries are not of one kind of table.
        RoundIncomplete: Clients were missing when the time was over.
        RetexoError: A client's own named failure.
    """
    ticket = Ticket(job=f"recipe-{secrets.token_hex(6)}", attempt=1)
    ask = _masked_summary if masked else _summary
    with _what_owners_do(_BEGIN_AGAIN):
        summary = ask(messenger, ticket, clients, task.drop)
    recipe, told = fit_recipe(summary, task)
    for sentence in told:
        logger.warning(sentence)
    content = recipe.to_toml().encode()
    request = RecipeRequest(ticket=ticket, recipe=np.frombuffer(content, np.uint8))
    asking = Ask.of(range(clients), request, stage=-1, purpose="recipe")
    with _what_owners_do(_TAKE_THE_FILE):
        for client, answer in messenger.answers(asking):
            _check_stored(client, answer, recipe)
    return recipe


def _summary(
    messenger: Messenger, ticket: Ticket, clients: int, drop: tuple[str, ...]
) -> TableSummary:
    """Ask for each client's summary; return that of all tables.

    Clients are numbered by their Flower nodes here: there are no parts yet.
    """
    asked = messenger.ask_whoever_comes(
        SummaryRequest(ticket=ticket), count=clients, purpose="summary"
    )
    found = {node: records.read_answer(SummaryAnswer, reply) for node, reply in asked}
    messenger.introduce(dict(enumerate(sorted(found))), attempt=1)
    with _believed():
        summaries = [
            parse_summary(answer.summary.tobytes(), Path(f"summary of Flower node {node}"))
            for node, answer in sorted(found.items())
        ]
    return merge_summaries([summary.without(drop) for summary in summaries])


def _masked_summary(
    messenger: Messenger, ticket: Ticket, clients: int, drop: tuple[str, ...]
) -> TableSummary:
    """Ask what columns clients have, then for the sums over all of their tables; return these."""
    found = whoever_comes(messenger, ColumnsRequest(ticket=ticket), ColumnsAnswer, clients)
    answers = {client: answer for client, (_, answer) in sorted(found.items())}
    if [*answers] != [*range(clients)]:
        raise ConfigurationError(
            f"clients: {clients_named(tuple(answers))} answered; expected 0 to {clients - 1}, as "
            "their certificates name them"
        )
    messenger.introduce({client: node for client, (node, _) in found.items()}, attempt=1)
    with _believed():
        tables = [
            TableColumns.parse(answer.columns.tobytes(), Path(f"columns of client {client}"))
            for client, answer in answers.items()
        ]
    columns = merge_columns([table.without(drop) for table in tables])
    # Counts are in the long number.
    messenger.run(hand_out_keys(ticket, answers, agreed_by(answers)))
    content = np.frombuffer(columns.to_json().encode(), np.uint8)
    request = ColumnSumsRequest(ticket=ticket, columns=content)
    total = sum_of_nothing(columns)
    asking = Ask.of(answers, request, stage=-1, purpose="sums")
    for client, answer in messenger.answers(asking):
        with named(client):
            total.add(LongNumber.of(answer.numbers.tobytes(), total.size))
    return summary_of_sums(total, columns)


@contextmanager
def _what_owners_do(sentence: str) -> Iterator[None]:
    """Say what owners do where clients have not answered."""
    try:
        yield
    except RoundIncomplete as error:
        raise RoundIncomplete(f"{error}; {sentence}") from error


@contextmanager
def _believed() -> Iterator[None]:
    """Check as a file that somebody else wrote; name what a client has sent as its mistake."""
    try:
        yield
    except ConfigurationError as error:
        raise RemoteProtocolError(str(error)) from error


def _check_stored(client: int, answer: RecipeAnswer, recipe: FeatureRecipe) -> None:
    with named(client):
        if answer.digest != recipe.digest:
            raise RemoteProtocolError(
                f"stored recipe {answer.digest[:16]!r}; expected {recipe.digest[:16]}"
            )
