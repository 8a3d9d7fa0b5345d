"""What `retexo plan` says about masked sums: their bytes, and what they do not hide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from retexo_fl.api.plan_cohorts import cohort_facts, fewest_train_nodes
from retexo_fl.client.answers import judged_types, sum_facts
from retexo_fl.client.api import NUM_CACHED, CollectRequest, EvaluateRequest, TrainRequest
from retexo_fl.client.moved import moved_length
from retexo_fl.config import RunConfig
from retexo_fl.graph.features import Features
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.methods.forecasts import forecast_of
from retexo_fl.training.candidates import further_rounds
from retexo_fl.training.cohorts import brought, simulated_agreement, terms_of
from retexo_fl.training.link_split import counts_by_use
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.training.volume import Beside, Forecast, MaskedSize, masked_volume

#: Values looked at in one go.
_CHUNK_VALUES: Final = 2**22


def masked_facts(
    config: RunConfig,
    shape: ModelShape,
    parts: Sequence[GraphPartition],
    *,
    tolerated: int = 0,
) -> dict[str, Any]:
    """Return what masked sums move (:class:`.MaskedVolume`), and cost, as JSON has it."""
    counts = _counts(config, parts)
    agreement = simulated_agreement(config, counts, tolerated=tolerated)
    roles = {client: brought(config, known) for client, known in counts.items()}
    size = masked_size(config, shape, parts, tolerated=tolerated)
    # Noise hides members of sums; of links a sum is of edges.
    shown = config.goal.splits_nodes and not config.update_dp
    return {
        **asdict(masked_volume(shape, size)),
        "cohorts": cohort_facts(agreement, roles),
        **({"fewest_train_nodes": fewest_train_nodes(agreement, counts)} if shown else {}),
    }


def masked_size(
    config: RunConfig,
    shape: ModelShape,
    parts: Sequence[GraphPartition],
    *,
    tolerated: int = 0,
) -> MaskedSize:
    """Return what the bytes of masked sums depend on.

    Raises:
        ConfigurationError: A metric does not say how many numbers it has.
    """
    counts = _counts(config, parts)
    agreement = simulated_agreement(config, counts, tolerated=tolerated)
    types = judged_types(config, shape.relations)
    lengths = sum_facts(config, shape.classes, types=types)
    forecast = forecast_of(config)
    parameters = forecast.parameters(shape)
    in_rounds = (TrainRequest, EvaluateRequest) if forecast.exchanges_in_rounds else ()
    refined = [(sum(parameters[-2:]), shape.refined_rounds(config))] if shape.refines else []
    return MaskedSize(
        cohorts=agreement.cohorts,
        terms=terms_of(agreement, config, counts),
        together=forecast.exchanges_in_rounds,
        stages=tuple(zip(parameters, config.stage_rounds, strict=False)),
        further=(*zip(parameters, further_rounds(config, shape), strict=False), *refined),
        counts_train=lengths.counts_train,
        update_bits=config.update_bits,
        has_noise=config.update_dp > 0,
        basis_bits=config.basis_bits,
        classes=lengths.classes,
        label_numbers=lengths.label_words or lengths.label_sums,
        metric=Beside.of(lengths.metric or 0, counts=lengths.metric_counts),
        report=Beside.of(lengths.report or 0, counts=lengths.report_counts),
        cached=NUM_CACHED if lengths.counts_cached else 0,
        later=len(shape.further_plans),
        moved=tuple(map(moved_length, [CollectRequest, *in_rounds])),
    )


def _counts(config: RunConfig, parts: Sequence[GraphPartition]) -> dict[int, dict[str, int]]:
    return {part.client: {**counts_by_use(config, part), "nodes": part.num_inner} for part in parts}


# ---- what a sum shows ---------------------------------------------------------------------------


def single_contributors(
    config: RunConfig, shape: ModelShape, parts: Sequence[GraphPartition]
) -> int:
    """Return how many features only one client adds to: their sum is that client's own.

    A client adds to features that are not zero at a node whose row its first layer reads on the way
    to a train node; for a basis of features, at one of its train nodes.

    Args:
        config: Of the run.
        shape: Of its model.
        parts: All clients' parts.
    """
    counts = np.zeros(parts[0].num_features, np.int64)
    begins = np.cumsum([0, *(part.num_inner for part in parts)])
    for numbers in _read_rows(config, shape, parts):
        has = np.zeros(len(counts), bool)
        cuts = np.searchsorted(numbers, begins)
        for owner in map(int, np.flatnonzero(np.diff(cuts))):
            rows = numbers[cuts[owner] : cuts[owner + 1]] - begins[owner]
            for some in _chunks(rows, len(counts)):
                has[_columns(parts[owner].features, some)] = True
        counts += has
    return int((counts == 1).sum())


def _read_rows(
    config: RunConfig, shape: ModelShape, parts: Sequence[GraphPartition]
) -> Iterator[np.ndarray]:
    """Yield for each client the rows that it reads: ascending numbers of all parts' nodes."""
    ends = np.cumsum([part.num_inner for part in parts])
    numbers = _numbers(parts, ends)
    total = int(ends[-1])
    reached = np.zeros(total, bool)
    for part, ids in zip(parts, numbers, strict=True):
        # Where edges are split any node may be an end of one that is trained on.
        trains = part.train_mask | (not config.goal.splits_nodes)
        reached[ids[: part.num_inner][trains]] = True
    own_rows_only = shape.coordinates_cross
    forecast = forecast_of(config)
    for _ in range(forecast.first_reach(shape)):
        found = reached.copy()
        for part, ids in zip(parts, numbers, strict=True):
            found[_neighbours(forecast, part, ids, reached)] = True
        reached = found
    for part, ids in zip(parts, numbers, strict=True):
        read = np.zeros(total, bool)
        own = ids[: part.num_inner]
        read[own] = reached[own]
        if not own_rows_only:
            read[_neighbours(forecast, part, ids, reached)] = True
        yield np.flatnonzero(read)


def _numbers(parts: Sequence[GraphPartition], ends: np.ndarray) -> list[np.ndarray]:
    """Return for each part the number that each of its inner, then boundary, nodes has of all."""
    begins = ends - [part.num_inner for part in parts]
    found = []
    for part in parts:
        ids = np.empty(part.num_inner + part.num_boundary, np.int64)
        ids[: part.num_inner] = begins[part.client] + np.arange(part.num_inner)
        for owner in part.peers:
            slots = np.flatnonzero(part.boundary_owners == owner)
            places = np.searchsorted(parts[owner].node_keys, part.boundary_keys[slots])
            ids[part.num_inner + slots] = begins[owner] + places
        found.append(ids)
    return found


def _neighbours(
    forecast: Forecast, part: GraphPartition, ids: np.ndarray, reached: np.ndarray
) -> np.ndarray:
    """Return the numbers of the neighbours of a part's own nodes that are reached."""
    inner = part.num_inner
    rows = np.repeat(reached[ids[:inner]], np.diff(part.indptr))
    if forecast.ignores_peers:
        rows &= part.indices < inner
    found: np.ndarray = ids[part.indices[rows]]
    return found


def _chunks(rows: np.ndarray, width: int) -> Iterator[np.ndarray]:
    size = max(1, _CHUNK_VALUES // width)
    for begin in range(0, len(rows), size):
        yield rows[begin : begin + size]


def _columns(features: Features, rows: np.ndarray) -> np.ndarray:
    """Return the columns in which any of some rows is not zero."""
    if isinstance(features, np.ndarray):
        return np.flatnonzero(features[rows].any(axis=0))
    # A matrix of these rows would take twice as long.
    begins, counts = features.indptr[rows], np.diff(features.indptr)[rows]
    ends = np.cumsum(counts)
    entries = np.repeat(begins - (ends - counts), counts) + np.arange(counts.sum())
    found: np.ndarray = features.indices[entries][features.data[entries] != 0]
    return found
