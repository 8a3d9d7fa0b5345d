"""Whether a training may begin here, and how much it may ask, by the limits of the client's owner.

The server writes the configuration. It is compared before a plug-in is imported, a file is written,
or a row is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retexo_fl.addition import DEVICES
from retexo_fl.agent.limits import ROWS, Limits
from retexo_fl.answer_book import Limit
from retexo_fl.client.api import BASIS, CHOICE, EVALUATE, GRAM, STRUCTURE, TRAIN, WHITEN
from retexo_fl.client.memory_estimate import training_bytes
from retexo_fl.client.noise import releases_of
from retexo_fl.config import RunConfig, client_plugins, config_values, make_config
from retexo_fl.device_names import available_cores, parse_devices
from retexo_fl.errors import ConfigurationError
from retexo_fl.gaussian_privacy import epsilon_of, is_within
from retexo_fl.graph.labels import labels_for
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.methods.keys import check_algorithm
from retexo_fl.process_memory import WORKER_BYTES
from retexo_fl.training.cohorts import brought
from retexo_fl.training.link_split import counts_by_use
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.units import counted, format_bytes


def admit(
    asked: Mapping[str, Any], part: GraphPartition, limits: Limits, *, predicts: bool = False
) -> RunConfig:
    """Return a run's configuration, on the devices that it gets here.

    Args:
        asked: The configuration as it came, by kebab-case keys.
        part: The client's.
        limits: What its owner allows.
        predicts: The run predicts: keys that only a training reads may contradict each other. What
            is allowed stays the same; :func:`question_limits` keeps the server from training.

    Raises:
        ConfigurationError: It is none, or asks more than is allowed; the message names the client,
            the key, and what was expected.
    """
    try:
        config = make_config(asked)
        if not predicts:
            check_algorithm(config_values(config))
        labels_for(config.task).check_fit(part.labels, source="its part")
        _check_names(config, limits)
        _check_masks(config, limits)
        _check_rows(config, limits)
        _check_row_noise(config, limits)
        _check_noise(config, limits)
        _check_updates(config, counts_by_use(config, part)["train"], limits)
        config = make_config({**asked, "devices": _devices_of(config, limits)})
        if not predicts and (wanted := DEVICES.wanted_by(config_values(config))):
            DEVICES.require(wanted)
        if config.devices == "auto" and not _has_room_for_workers(config, part, limits):
            config = make_config({**asked, "devices": "cpu"})
        _check_memory(config, part, limits)
    except ConfigurationError as error:
        raise ConfigurationError(f"client {part.client}: {error}") from error
    return config


def _check_names(config: RunConfig, limits: Limits) -> None:
    for key, name in client_plugins(config).items():
        if name not in limits.allow_plugins:
            allowed = ", ".join(limits.allow_plugins) or "none"
            raise ConfigurationError(
                f"{key}: {name!r} may not be imported here; expected a built-in name, or one that "
                f"allow-plugins in this client's agent.toml lists ({allowed})"
            )
    if config.structure == "labels" and "propagation" not in limits.allow_algorithms:
        raise ConfigurationError(
            "structure: 'labels', by which peers learn labels of train nodes; expected columns or "
            "degrees, or propagation, which tells them likewise, in allow-algorithms of this "
            "client's agent.toml"
        )
    if (algorithm := config.algorithm) not in limits.allow_algorithms:
        raise ConfigurationError(
            f"algorithm: {algorithm!r}; expected one that allow-algorithms in this client's "
            f"agent.toml lists ({', '.join(limits.allow_algorithms) or 'none'})"
        )
    if (rounds := max(config.rounds, config.last_rounds)) > limits.most_rounds:
        raise ConfigurationError(
            f"rounds: {rounds}; expected at most {limits.most_rounds} (most-rounds in this "
            "client's agent.toml)"
        )
    # A stage may be trained as one thing more, of which the last weights are validated, too.
    if config.has_candidates and 2 * rounds >= limits.most_rounds:
        raise ConfigurationError(
            f"candidates: {config.candidates} may take a layer {2 * rounds} rounds; expected fewer "
            f"than {limits.most_rounds} (most-rounds in this client's agent.toml), or none"
        )


def _check_masks(config: RunConfig, limits: Limits) -> None:
    if config.secure_aggregation != "masked":
        if limits.require_secure_aggregation:
            raise ConfigurationError(
                "secure-aggregation: none; expected masked (require-secure-aggregation in this "
                "client's agent.toml)"
            )
    elif config.clients < limits.least_clients:
        raise ConfigurationError(
            f"clients: {config.clients}; expected {limits.least_clients} at least (least-clients "
            "in this client's agent.toml)"
        )


def _check_rows(config: RunConfig, limits: Limits) -> None:
    if ROWS.index(config.later_rows) <= (most := ROWS.index(limits.most_rows)):
        return
    raise ConfigurationError(
        f"second-rows: {config.second_rows}; expected {' or '.join(ROWS[: most + 1])}, or "
        "algorithm drop, which sends no rows (most-rows in this client's agent.toml)"
    )


def _check_row_noise(config: RunConfig, limits: Limits) -> None:
    if not limits.max_row_epsilon or is_within(config.row_epsilon, limits.max_row_epsilon):
        return
    raise ConfigurationError(
        f"row-dp: {config.row_dp:g}; expected first rows of noised classes with an epsilon of at "
        f"most {limits.max_row_epsilon:g} (max-row-epsilon in this client's agent.toml), or "
        "algorithm drop"
    )


def _check_noise(config: RunConfig, limits: Limits) -> None:
    if not limits.max_epsilon:
        return
    if (noise := releases_of(config)) is None:
        raise ConfigurationError(
            f"update-dp: 0; expected noise with an epsilon of at most {limits.max_epsilon:g} "
            "(max-epsilon in this client's agent.toml)"
        )
    epsilon = epsilon_of(noise.mu, limits.max_epsilon_delta)
    if not is_within(epsilon, limits.max_epsilon):
        raise ConfigurationError(
            f"update-dp: {noise.epsilon:g} with delta {noise.delta:g} is an epsilon of "
            f"{epsilon:.4g} with delta {limits.max_epsilon_delta:g}; expected at most "
            f"{limits.max_epsilon:g} (max-epsilon in this client's agent.toml)"
        )


def _check_updates(config: RunConfig, train: int, limits: Limits) -> None:
    if "train" not in brought(config, {"train": train}):
        return  # Updates are zeros, and carry nothing of peers' nodes.
    fewest = _fewest_summed(config, train)
    if fewest >= limits.least_train_nodes:
        return
    unit = f"train {config.goal.examples}"
    what = f"an update would sum over {counted(fewest, unit)}"
    if fewest < train:
        what = (
            f"batch-nodes: {config.batch_nodes} leaves a mini-batch of {fewest} out of "
            f"{counted(train, 'train node')}"
        )
    raise ConfigurationError(
        f"{what}; expected at least {limits.least_train_nodes} (least-train-nodes in this client's "
        "agent.toml)"
    )


def _devices_of(config: RunConfig, limits: Limits) -> str:
    """Return what is computed on: the owner's choice, or the run's within what is allowed."""
    if limits.devices:
        return limits.devices
    if config.devices == "auto":
        # What pays is found out within all that there is, or not at all.
        return "auto" if limits.allow_devices == "auto" else "cpu"
    asked, most = parse_devices(config.devices), parse_devices(limits.allow_devices)
    workers = available_cores() if most.is_auto else most.cpu_workers
    is_alone = asked.cpu_is_own_process and not asked.gpus
    has_gpus = most.is_auto or {*asked.gpus} <= {*most.gpus}
    if has_gpus and (is_alone or asked.cpu_workers <= workers):
        return config.devices
    cores = f", on {counted(workers, 'core')}" if most.is_auto else ""
    raise ConfigurationError(
        f"devices: {config.devices!r}; expected no more than {limits.allow_devices!r}{cores} "
        "(allow-devices in this client's agent.toml)"
    )


def _check_memory(config: RunConfig, part: GraphPartition, limits: Limits) -> None:
    cores = available_cores()
    if config.threads > cores:
        raise ConfigurationError(
            f"threads: {config.threads}; expected at most {cores}, one for each core of this client"
        )
    needed = training_bytes(config, part)
    most = limits.most_bytes
    if needed > most:
        raise ConfigurationError(
            f"hidden: {config.hidden} with model {config.model} and layers {config.layers} takes "
            f"about {format_bytes(needed)} of memory; expected at most {format_bytes(most)} "
            "(most-memory-mib in this client's agent.toml)"
        )


def _has_room_for_workers(config: RunConfig, part: GraphPartition, limits: Limits) -> bool:
    """Return whether a worker on each core would stay within the client's memory."""
    workers = available_cores() * WORKER_BYTES
    return training_bytes(config, part) + workers <= limits.most_bytes


def _fewest_summed(config: RunConfig, train: int) -> int:
    """Return how many train nodes the smallest gradient of a run is a sum over, of ``train``.

    A round without mini-batches sums over all of them, in every local step. Mini-batches have
    ``batch-nodes`` each, and the last of an epoch has what is left.
    """
    if config.sampler == "none" or train <= config.batch_nodes:
        return train
    return train % config.batch_nodes or config.batch_nodes


def question_limits(
    config: RunConfig, shape: ModelShape, *, stages: int, most_rounds: int, predicts: bool = False
) -> Mapping[str, Limit]:
    """Return how often a job may ask about a client's nodes, by names of questions.

    Args:
        config: Of the job.
        shape: Of its model.
        stages: How many it has.
        most_rounds: Of each.
        predicts: It predicts with a trained model, and trains nothing: what keys of a training
            demand of each other was not checked.
    """
    no_more = f"expected no more (most-rounds = {most_rounds} in its agent.toml)"
    # Sums along directions of the server's choice: with enough of them it knows the rows.
    blocks = 0 if config.basis == "none" else config.basis_blocks + 1
    # Of rows that a basis of the server's choice has made: another basis is another question.
    products = int(shape.passes_sums or shape.has_floor)
    comparisons = int(shape.chooses_basis or shape.tells_classes)
    made = int(shape.made_columns > 0)
    limits = {
        TRAIN.message_type: Limit(
            most=most_rounds,
            stages=stages,
            refusal=f"asked for more than {most_rounds} updates; {no_more}",
        ),
        # The last weights on validation nodes, and the best on test nodes.
        EVALUATE.message_type: Limit(
            most=most_rounds + 1,
            stages=stages,
            nodes=("validation", "test"),
            refusal=f"asked for more than {most_rounds + 1} evaluations; {no_more}",
        ),
        BASIS.message_type: Limit(
            most=blocks,
            refusal=f"asked for more than {blocks} sums of features; expected no more than "
            "basis-blocks and one for the mean",
        ),
        CHOICE.message_type: Limit(
            most=comparisons,
            refusal="asked to compare bases more often than "
            f"{counted(comparisons, 'time')}; expected once with basis-rows choose or row-dp",
        ),
        STRUCTURE.message_type: Limit(
            most=2 * made,
            refusal=f"asked for sums of columns more often than {counted(2 * made, 'time')}; "
            "expected once of degrees and once of products, where nodes have no features",
        ),
        WHITEN.message_type: Limit(
            most=made,
            refusal="asked to make features of columns a second time; expected one map",
        ),
        GRAM.message_type: Limit(
            most=products,
            refusal=f"asked for sums of products more often than {counted(products, 'time')}; "
            "expected once with solver ridge or a floor",
        ),
    }
    if predicts:
        refusal = "asked to train in a job that predicts; expected predictions alone"
        none = Limit(most=0, refusal=refusal)
        trains = (TRAIN, EVALUATE, BASIS, CHOICE, GRAM)
        limits |= {question.message_type: none for question in trains}
    return limits
