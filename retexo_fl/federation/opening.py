"""How a training or a prediction opens: who is there, introductions, keys of masked sums."""

from __future__ import annotations

from collections.abc import Callable

from retexo_fl.client.api import Ticket
from retexo_fl.config import RunConfig
from retexo_fl.federation.asking import Messenger
from retexo_fl.federation.greeting import Federation, greet
from retexo_fl.federation.rounds.clients import Clients, Untold
from retexo_fl.federation.rounds.introduction import introduce
from retexo_fl.federation.rounds.mask_keys import begin_sums, check_sums_train, cohort_count
from retexo_fl.graph.labels import LINKS


def open_attempt(
    messenger: Messenger,
    ticket: Ticket,
    config: RunConfig,
    *,
    to_train: bool,
    hold_weights: bool = False,
    untold: Untold | None = None,
    check: Callable[[Federation], None] = lambda federation: None,
) -> tuple[Federation, Clients]:
    """Wait for the clients; return who takes part in what, and what rounds need of them.

    Args:
        messenger: The way to the clients.
        ticket: Names job and attempt.
        config: Of the run.
        to_train: There have to be nodes to train on; predicting needs none.
        hold_weights: As in :class:`.Clients`.
        untold: Likewise; empty if None.
        check: Raises where the clients do not fit, before they are told anything.

    Raises:
        PartitionError: The clients' parts do not belong together.
        ConfigurationError: Under masks too few clients of a cohort have train nodes.
        RoundIncomplete: Clients are missing.
        RetexoError: What ``check`` raises, or a client's own named failure.
    """
    in_rounds = to_train and config.traits.exchanges_in_rounds
    federation = greet(
        messenger,
        ticket,
        clients=config.clients,
        to_train=to_train,
        all_train=in_rounds,
        counts_links=to_train and config.task == LINKS,
        useful=cohort_count(config),
    )
    check(federation)
    if config.introductions:
        messenger.run(introduce(ticket, {a.client: a.member for a in federation.answers}))
    masking = None
    if config.secure_aggregation == "masked":
        masking = messenger.run(begin_sums(ticket, federation.hellos, config))
        if to_train:
            check_sums_train(masking, federation.answers)
        federation = federation.under(masking, all_train=in_rounds)
    clients = Clients(
        hellos=federation.hellos,
        policy=messenger.policy,
        ledger=messenger.ledger,
        masking=masking,
        hold_weights=hold_weights,
        exchange_in_rounds=in_rounds,
        untold={} if untold is None else untold,
    )
    return federation, clients
