"""How a training or a prediction opens: who is there, introductions, keys of masked sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from flwr.serverapp import Grid

from retexo_fl.client.api import CountsAnswer, HelloAnswer, Ticket
from retexo_fl.client.noise import releases_of
from retexo_fl.client.weights import updates_of
from retexo_fl.config import RunConfig, config_values
from retexo_fl.config.profiles import Fitting, settled_keys
from retexo_fl.federation.aggregators import make_aggregator
from retexo_fl.federation.asking import UNWATCHED, Messenger, Rounds, Silence, WaitPolicy, Watch
from retexo_fl.federation.exchanges import Exchanges
from retexo_fl.federation.graph_counts import fitted
from retexo_fl.federation.greeting import Federation, greet
from retexo_fl.federation.job_state import JobState
from retexo_fl.federation.label_facts import LabelTotals, check_goal
from retexo_fl.federation.rounds.checked_answers import check_later
from retexo_fl.federation.rounds.clients import Clients, MaskedClients
from retexo_fl.federation.rounds.introduction import introduce
from retexo_fl.federation.rounds.mask_keys import (
    add_up_labels,
    begin_sums,
    check_sums_train,
    clients_of_whole_cohorts,
    name_rows,
)
from retexo_fl.federation.wrappers import wrappers_of
from retexo_fl.methods.forecasts import forecast_of
from retexo_fl.methods.pieces.columns.keys import check_structure
from retexo_fl.methods.pieces.floor.misfit import no_floor
from retexo_fl.training.effective_plan import note_effective_plan
from retexo_fl.training.fitting import is_left
from retexo_fl.training.leak_warnings import leak_warnings
from retexo_fl.training.row_classes import promise
from retexo_fl.training.schedule import Schedule
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.updates import UpdateCodec, most_held


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The clients of an attempt, and what follows from their hellos.

    Attributes:
        job: Its finished stages, and its bytes so far.
        messenger: The way to the clients by their indices.
        clients: What rounds need of them.
        federation: Who takes part in what.
        exchanges: Those before stages.
        rounds: Carries out what is asked between them.
        schedule: Which layers each stage trains.
        config: Of the run, with all keys settled.
        fit: What of it was fitted to the graph, in words.
        warnings: What its user should know of all clients' labels together.
    """

    config: RunConfig
    fit: str
    job: JobState
    messenger: Messenger
    clients: Clients
    federation: Federation
    exchanges: Exchanges
    rounds: Rounds
    schedule: Schedule
    warnings: tuple[str, ...] = ()


def open_attempt(  # noqa: PLR0913 - a training and a prediction open differently
    messenger: Messenger,
    config: RunConfig,
    job: JobState,
    shape_of: Callable[[Federation, RunConfig], ModelShape],
    *,
    to_train: bool,
    codec: UpdateCodec | None = None,
    fitting: Fitting | None = None,
    watch: Watch = UNWATCHED,
) -> Joined:
    """Wait for the clients, and learn the sizes of their parts.

    Args:
        messenger: The way to the clients.
        config: Of the run.
        job: What earlier attempts achieved, or the run whose model predicts.
        shape_of: Returns the model's sizes, or raises where the clients do not fit it, before they
            get anything.
        to_train: There have to be nodes to train on; predicting needs none.
        codec: Of updates and weights on their way; as configured if None.
        fitting: What of the run is left to be fitted to the clients' graph; None for nothing.
        watch: The clock, and what is called for exchanges that stay open.

    Raises:
        PartitionError: The clients' parts do not belong together.
        ConfigurationError: Under masks too few clients of a cohort have train nodes.
        RoundIncomplete: Clients are missing.
        RetexoError: What ``shape_of`` raises, or a client's own named failure.
    """
    ticket = Ticket(job=job.job, attempt=job.attempt)
    before = (fitting and fitting.known) or config_values(config)
    messenger.settle(settled_keys(before, config_values(config)))
    is_masked = config.secure_aggregation == "masked"
    in_rounds = to_train and forecast_of(config).exchanges_in_rounds
    sizes = fitting is not None and is_left(config, fitting)
    federation = greet(
        messenger,
        ticket,
        clients=config.clients,
        to_train=to_train,
        all_train=in_rounds,
        counts_links=to_train and not config.goal.at_most_nodes,
        sizes=sizes,
        useful=partial(clients_of_whole_cohorts, config=config) if is_masked else None,
    )
    shape = shape_of(federation, config)
    if config.introductions:
        messenger.run(introduce(ticket, {a.client: a.member for a in federation.answers}))
    told: Sequence[HelloAnswer | CountsAnswer] = federation.answers
    later = len(shape.further_plans)
    for answer in federation.answers:
        check_later(answer, 0 if is_masked else later)
    if is_masked:
        asking = begin_sums(ticket, federation.hellos, config, sizes=sizes, later=later)
        masking = messenger.run(asking)
        told = tuple(masking.counts.values())
    fit = ""
    if fitting is not None and sizes:
        was = config.boundary_plan
        config, fit = fitted(config, fitting, federation.answers[0], told)
        if config.boundary_plan != was:
            federation = federation.along(config.boundary_plan)
        messenger.settle(settled_keys(before, config_values(config)))
        shape = shape_of(federation, config)
    if fitting is not None and "floor" in fitting.chosen:
        fit = "; ".join(filter(None, (fit, no_floor(config, shape))))
    codec = codec or updates_of(config)
    facts: dict[str, Any] = {
        "policy": messenger.policy,
        "ledger": messenger.ledger,
        "most_held": most_held(config.patience) if codec.weights.sends_changes else 0,
        "exchange_in_rounds": in_rounds,
    }
    if is_masked:
        masking = name_rows(masking, federation.hellos, config)
        if to_train:
            check_sums_train(masking, federation.answers)
        federation = federation.under(masking, all_train=in_rounds)
        clients: Clients = MaskedClients(
            hellos=federation.hellos, masking=masking, untold=job.untold, **facts
        )
    else:
        clients = Clients(hellos=federation.hellos, **facts)
    job.rows = clients.rows
    exchanges = Exchanges(messenger, clients, config, job, codec=codec, watch=watch)
    return Joined(
        config=config,
        fit=fit,
        job=job,
        messenger=messenger,
        clients=clients,
        federation=federation,
        exchanges=exchanges,
        rounds=Rounds(
            messenger=messenger, wrappers=wrappers_of(clients, behind=lambda: exchanges.behind)
        ),
        schedule=Schedule(shape=shape),
    )


def open_training(
    grid: Grid,
    config: RunConfig,
    job: JobState,
    *,
    codec: UpdateCodec | None = None,
    fitting: Fitting | None = None,
    on_silence: Callable[[Silence], None] = lambda silence: None,
    watch: Watch = UNWATCHED,
) -> Joined:
    """Wait for the clients of a training, and learn what its labels are.

    Args:
        grid: The way to the clients' Flower nodes.
        config: Of the run.
        job: What earlier attempts achieved.
        codec: Of updates and weights on their way; as configured if None.
        fitting: As in :func:`open_attempt`.
        on_silence: Called while a question waits for clients on other machines.
        watch: Its clock, for all waits; goes with every exchange.

    Raises:
        PartitionError: The clients' parts do not belong together.
        ConfigurationError: The aggregator needs more clients with train nodes, or the metric other
            classes.
        RoundIncomplete: Clients are missing.
    """
    messenger = Messenger(
        grid,
        ledger=job.ledger,
        policy=WaitPolicy.of(config),
        on_silence=on_silence,
        on_superlink=watch.on_superlink,
        clock=watch.clock,
    )

    def shape_of(federation: Federation, config: RunConfig) -> ModelShape:
        job.check_partitioning(federation.answers[0].partitioning)
        if federation.is_structural:
            check_structure(config)
        training = federation.participants.training
        least = min(config.min_clients or len(training), len(training))
        make_aggregator(config.aggregator).check_clients(least)
        check_goal(config, federation.classes)
        return ModelShape.of(
            config,
            inputs=federation.features,
            classes=federation.classes,
            edge_features=federation.edge_features,
            relations=federation.relations,
            is_structural=federation.is_structural,
        )

    joined = open_attempt(
        messenger,
        config,
        job,
        shape_of,
        to_train=True,
        codec=codec,
        fitting=fitting,
        watch=watch,
    )
    config = joined.config
    note_effective_plan(config)
    clients, hello = joined.clients, Ticket(job=job.job, attempt=job.attempt)
    if is_masked := isinstance(clients, MaskedClients):
        labels = joined.rounds.carry_out(add_up_labels(clients, hello, config))
    else:
        labels = LabelTotals.of_hellos(config, joined.federation.answers)
    if not job.label_facts:
        job.label_facts = labels.facts(config)
    warnings = labels.warnings()
    if joined.federation.is_structural and not joined.schedule.shape.made_columns:
        warnings = (*warnings, "nodes have no features: their degrees stand for them")
    if (noise := releases_of(config)) is not None:
        warnings = (*warnings, noise.sentence)
    if joined.schedule.shape.tells_classes:
        warnings = (*warnings, promise(config.row_dp, clients.classes))
    if forecast_of(config).trains:
        profile = job.profile
        warnings += leak_warnings(
            config,
            is_masked=is_masked,
            train_nodes=[answer.train for answer in joined.federation.answers],
            features=joined.federation.features,
            of_one_client=None if profile is None else profile.of_one_client,
        )
    return replace(joined, warnings=warnings)
