"""The facts of `retexo plan`: predicted bytes of every algorithm, boundary plan and codec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from retexo_fl.api.plan_exchanges import PlannedParts
from retexo_fl.api.plan_masked import masked_facts, single_contributors
from retexo_fl.api.plan_network import network_facts
from retexo_fl.api.plan_profiles import exchanged_at_most, profile_facts, training_size
from retexo_fl.api.plan_row_noise import row_noise_facts
from retexo_fl.client.noise import releases_of
from retexo_fl.client.run_memory import (
    GraphSize,
    budget_bytes,
    disk_bytes,
    memory_by_phase,
    rows_are_on_disk,
)
from retexo_fl.config import RunConfig
from retexo_fl.graph import GraphPartition
from retexo_fl.graph.plan.boundary import PLAN_KINDS, PeerPlans
from retexo_fl.layers.named import layer_class
from retexo_fl.methods.forecasts import FORECASTS, LAZY, forecast_of
from retexo_fl.training.effective_plan import effective_plan
from retexo_fl.training.leak_warnings import leak_warnings
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.training.volume import PredictedVolume, gamma


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstExchange:
    """Payload of the exchange of input features, over all pairs of clients.

    Attributes:
        dense: Bytes under the codec ``dense``: the raw ones.
        lossless: Bytes under the codec ``lossless``.
        fixed: Bytes under the codec ``fixed``.
    """

    dense: int
    lossless: int
    fixed: int


def plan_facts(config: RunConfig, planned: PlannedParts, *, tolerated: int = 0) -> dict[str, Any]:
    """Return everything that `retexo plan` shows of a training on parts, as JSON has it.

    Args:
        config: Of the training.
        planned: The parts.
        tolerated: Under masks, clients of a cohort that may work with the server.

    Raises:
        AgreementError: There are too few clients to tolerate so many.
    """
    takes_sums = layer_class(config.model).sums_messages and config.goal.sums_suffice
    kinds = PLAN_KINDS if takes_sums else PLAN_KINDS[:1]
    parts = [forecast_of(config).part_as_read(part) for part in planned.parts]
    chosen = effective_plan(config)
    size = GraphSize.of(parts)
    on_disk = rows_are_on_disk(config, size)
    phases = memory_by_phase(config, size, on_disk=on_disk)
    shape = ModelShape.of_part(config, parts[0])
    first = planned.plans(chosen, shape.read_into(0))
    is_masked = config.secure_aggregation == "masked"
    train_nodes = [int(np.count_nonzero(part.train_mask)) for part in parts]
    of_one_client = single_contributors(config, shape, parts)
    return {
        "algorithm": config.algorithm,
        "boundary_plan": chosen,
        "codec": config.codec,
        "boundary_rate": config.boundary_rate,
        "clients": [
            {
                "client": part.client,
                "nodes": part.num_inner,
                "train_nodes": train,
                "boundary_nodes": part.num_boundary,
                "peers": len(plan.peers),
                "vectors_out": plan.num_send,
            }
            for part, plan, train in zip(parts, first, train_nodes, strict=True)
        ],
        "better_of_rows_and_sums": _better(planned.plans("rows")) if len(kinds) > 1 else None,
        "memory": {
            "phases": {name: round(size) for name, size in phases.items()},
            "available": round(budget_bytes(config)),
            "disk": round(disk_bytes(config, size)) if on_disk else 0,
        },
        "features": {
            "all": parts[0].num_features,
            "of_one_client": of_one_client,
        },
        "warnings": list(
            leak_warnings(
                config,
                is_masked=is_masked,
                train_nodes=train_nodes,
                features=parts[0].num_features,
                of_one_client=of_one_client,
            )
            if forecast_of(config).trains
            else ()
        ),
        **(
            {"masked": masked_facts(config, shape, parts, tolerated=tolerated)} if is_masked else {}
        ),
        **_noise_facts(config, parts),
        **({"row_noise": row_noise_facts(config, shape, parts)} if config.row_dp else {}),
        "plans": {kind: _plan_facts(config, planned, kind) for kind in kinds},
        **({} if config.links == "ideal" else {"network": network_facts(config, planned)}),
    }


def _noise_facts(config: RunConfig, parts: Sequence[GraphPartition]) -> dict[str, Any]:
    if (noise := releases_of(config)) is None:
        return {}
    train = sum(int(np.count_nonzero(part.train_mask)) for part in parts)
    return {"noise": {**noise.facts, "expected": noise.expected(train)}}


def profile_facts_of(config: RunConfig, planned: PlannedParts) -> dict[str, Any]:
    """Return what a lazy training on parts moves at most, and how often it asks a client."""
    return profile_facts(config, ModelShape.of_part(config, planned.parts[0]), planned)


def exchanged_of(config: RunConfig, planned: PlannedParts) -> int:
    """Return the payload bytes that clients send each other at most, with parts planned."""
    return exchanged_at_most(config, ModelShape.of_part(config, planned.parts[0]), planned)


def _better(plans: Sequence[PeerPlans]) -> int:
    """Return the vectors where each ordered pair sends rows or sums, whichever are fewer.

    A sum is for a row that comes from the other client, given plans of rows.
    """
    return sum(min(peer.send.count, peer.receive.count) for plan in plans for peer in plan.peers)


def _plan_facts(config: RunConfig, planned: PlannedParts, kind: str) -> dict[str, Any]:
    shape = ModelShape.of_part(config, planned.parts[0])
    # What crosses in rounds, and back.
    plans = planned.plans(kind, shape.read_into(min(1, shape.layers - 1)))
    size = training_size(config, planned, kind)
    first = _first_exchange(config, shape, planned, kind)
    own = forecast_of(config)
    # Others train with rows that owners make.
    beside = replace(size, later=()) if shape.crosses_once else size
    volumes = {
        name: forecast.volume(shape, size if forecast is own else beside)
        for name, forecast in FORECASTS.items()
        if forecast.trains == own.trains and (forecast.predicts_links or not shape.link_head)
    }
    ordered = sorted(volumes, key=lambda name: FORECASTS[name] is not own)
    lazy = LAZY.volume(shape, size) if own.trains else None
    return {
        "vectors": size.vectors,
        **({"vectors_later": list(size.later)} if size.later else {}),
        **_added(config, plans),
        "sampled_vectors": size.sampled_vectors,
        "first_exchange": asdict(first),
        "algorithms": {
            name: None if volume is None else _record(volume, lazy, first)
            for name in ordered
            for volume in (volumes[name],)
        },
    }


def _added(config: RunConfig, plans: Sequence[PeerPlans]) -> dict[str, int]:
    """Return how many vectors, and gradients of vectors, datagrams may add up as they arrive."""
    # Where a peer may stay away, each has rows of its own; a round cannot do without any.
    is_needed = config.missing_peers == "wait"
    return {
        "vectors_added": sum(plan.num_added for plan in plans) if is_needed else 0,
        "gradients_added": sum(plan.num_added_back for plan in plans),
    }


def _first_exchange(
    config: RunConfig, shape: ModelShape, planned: PlannedParts, kind: str
) -> FirstExchange:
    if shape.coordinates_cross or shape.made_columns:
        # Coordinates, or columns: as wide as the model says, and none of them zero.
        row_bytes = shape.exchange_width(0) * np.dtype(config.dtype).itemsize
        plans = planned.plans(kind, shape.read_into(0))
        size = sum(plan.num_send for plan in plans) * row_bytes
        return FirstExchange(dense=size, lossless=size, fixed=size)
    codecs = (field.name for field in fields(FirstExchange))
    return FirstExchange(
        **{codec: sum(planned.features(config, kind, codec).values()) for codec in codecs}
    )


def _record(
    volume: PredictedVolume, lazy: PredictedVolume | None, first: FirstExchange
) -> dict[str, Any]:
    """Return the volume of an algorithm; gamma is None where nothing compares with it."""
    return {
        "boundary_training": volume.boundary_training,
        "boundary_evaluation": volume.boundary_evaluation,
        "boundary": volume.boundary,
        "updates_up": volume.updates_up,
        "weights_down": volume.weights_down,
        "total": volume.total,
        "gamma": None if lazy is None else gamma(volume, lazy),
        "payload": {
            codec: _payload(volume, lazy, first.dense - size)
            for codec, size in asdict(first).items()
        },
    }


def _payload(
    volume: PredictedVolume, lazy: PredictedVolume | None, saved: int
) -> Mapping[str, Any]:
    """Say what a codec leaves that saves so much of the first exchange.

    Of hidden states no more is known than that they take at most what dense ones do. Gamma is that
    of features as they are and hidden states at their most.
    """
    of_volume = saved if volume.boundary else 0
    own_gamma = None
    if lazy is not None:
        own_gamma = _paper_without(volume, saved) / _paper_without(lazy, saved)
    return {
        "boundary_at_most": volume.boundary - of_volume,
        "total_at_most": volume.total - of_volume,
        "gamma": own_gamma,
    }


def _paper_without(volume: PredictedVolume, saved: int) -> int:
    return volume.paper - (2 * saved if volume.boundary else 0)
