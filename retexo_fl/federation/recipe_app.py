"""The ServerApp that makes one feature recipe of the summaries of all clients' tables."""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from retexo_fl.client.api import (
    RecipeAnswer,
    RecipeRequest,
    SummaryAnswer,
    SummaryRequest,
    Ticket,
)
from retexo_fl.config import make_config
from retexo_fl.errors import CheckpointError, ConfigurationError, RemoteProtocolError
from retexo_fl.federation import records
from retexo_fl.federation.asking import Ask, Messenger, WaitPolicy, named
from retexo_fl.files import write_whole
from retexo_fl.graph.recipes import (
    FeatureRecipe,
    FitOptions,
    TableSummary,
    fit_recipe,
    merge_summaries,
    parse_summary,
)
from retexo_fl.ledger import TrafficLedger

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeTask(FitOptions):
    """What is made, and where it goes.

    Attributes:
        out: New file for the recipe, where the ServerApp runs.
        drop: Columns that do not become features.
    """

    out: str
    drop: tuple[str, ...] = ()


def make_recipe_app(task: RecipeTask) -> ServerApp:
    """Return a ServerApp whose run makes a recipe, which all clients then have."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config, out = make_config(dict(context.run_config)), Path(task.out)
        if out.exists():
            raise ConfigurationError(f"out: {out} exists; expected a new file")
        policy = WaitPolicy.for_all(config)
        messenger = Messenger(grid, ledger=TrafficLedger(), policy=policy)
        recipe = share_recipe(messenger, config.clients, task)
        try:
            write_whole(out, [recipe.to_toml().encode()], durable=True)
        except OSError as error:
            raise CheckpointError(f"{out}: could not be written ({error.strerror})") from error

    return app


def share_recipe(messenger: Messenger, clients: int, task: RecipeTask) -> FeatureRecipe:
    """Ask clients for summaries, make a recipe, and have all of them store it.

    Clients are numbered by their Flower nodes here: there are no parts yet.

    Args:
        messenger: The way to the clients.
        clients: How many there must be.
        task: What is chosen.

    Raises:
        RemoteProtocolError: An answer is no summary, or not the recipe's digest.
        ConfigurationError: The summaries are not of one kind of table.
        RoundIncomplete: Clients were missing when the time was over.
        RetexoError: A client's own named failure.
    """
    ticket = Ticket(job=f"recipe-{secrets.token_hex(6)}", attempt=1)
    asked = messenger.ask_whoever_comes(
        SummaryRequest(ticket=ticket), count=clients, purpose="summary"
    )
    found = {node: records.read_answer(SummaryAnswer, reply) for node, reply in asked}
    summaries = [_summary(node, found[node]).without(task.drop) for node in sorted(found)]
    recipe, told = fit_recipe(merge_summaries(summaries), task)
    for sentence in told:
        logger.warning(sentence)
    content = recipe.to_toml().encode()
    messenger.introduce(dict(enumerate(sorted(found))), attempt=1)
    request = RecipeRequest(ticket=ticket, recipe=np.frombuffer(content, np.uint8))
    asking = Ask.of(range(clients), request, stage=-1, purpose="recipe")
    for client, answer in messenger.answers(asking):
        _check_stored(client, answer, recipe)
    return recipe


def _summary(node: int, answer: SummaryAnswer) -> TableSummary:
    """Return a client's summary, after the checks of a file that somebody else wrote."""
    try:
        return parse_summary(answer.summary.tobytes(), Path(f"summary of Flower node {node}"))
    except ConfigurationError as error:
        raise RemoteProtocolError(str(error)) from error


def _check_stored(client: int, answer: RecipeAnswer, recipe: FeatureRecipe) -> None:
    with named(client):
        if answer.digest != recipe.digest:
            raise RemoteProtocolError(
                f"stored recipe {answer.digest[:16]!r}; expected {recipe.digest[:16]}"
            )
