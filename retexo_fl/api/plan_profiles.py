"""What each profile would move of the graph at hand, at most, and how often clients are asked."""

from __future__ import annotations

from typing import Any, Final

from retexo_fl.api.plan_exchanges import PlannedParts, stage_payloads
from retexo_fl.config import RunConfig
from retexo_fl.methods.forecasts import forecast_of
from retexo_fl.training.candidates import further_rounds
from retexo_fl.training.effective_plan import effective_plan
from retexo_fl.training.messages import training_messages
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.training.volume import TrainingSize, sampled_vectors

#: What Flower's polling makes of one message in a deployment, from and to.
MESSAGE_S: Final = (4, 9)


def profile_facts(config: RunConfig, shape: ModelShape, planned: PlannedParts) -> dict[str, Any]:
    """Return what a training moves at most and asks of a client, as JSON has it.

    Args:
        config: Of the training.
        shape: Of its model.
        planned: All clients' parts.
    """
    parts = planned.parts
    asked = training_messages(config, shape, planned.counts(config), forecast=forecast_of(config))
    messages = max(sum(one.count for one in asked if part.client in one.clients) for part in parts)
    return {
        "rounds": sum(config.stage_rounds)
        + sum(further_rounds(config, shape))
        + shape.refined_rounds(config),
        "payload_at_most": exchanged_at_most(config, shape, planned)
        + sum(one.payload_bytes for one in asked),
        "messages": messages,
        "deployed_minutes": [messages * seconds / 60 for seconds in MESSAGE_S],
    }


def exchanged_at_most(config: RunConfig, shape: ModelShape, planned: PlannedParts) -> int:
    """Return the payload bytes that clients send each other at most."""
    return forecast_of(config).boundary_at_most(
        shape,
        training_size(config, planned, effective_plan(config)),
        lambda stage: sum(stage_payloads(config, shape, planned, stage).values()),
    )


def training_size(config: RunConfig, planned: PlannedParts, kind: str) -> TrainingSize:
    """Return what closed forms take of a training with a plan of one kind."""
    shape = ModelShape.of_part(config, planned.parts[0])
    vectors, *later = (
        [peer.send.count for plan in planned.plans(kind, read) for peer in plan.peers]
        for read in map(shape.read_into, (0, *shape.further_plans))
    )
    counts = planned.counts(config).values()
    # Clients of bns sample rows of boundary nodes; no sums.
    drawn_from = later[0] if later else vectors
    drawn = sampled_vectors(drawn_from, config.boundary_rate) if kind == "rows" else None
    return TrainingSize(
        clients=len(planned.parts),
        training_clients=sum(1 for c in counts if c["train"]),
        asked_clients=sum(1 for c in counts if c["train"] or c["validation"]),
        validation_clients=sum(1 for c in counts if c["validation"]),
        vectors=sum(vectors),
        later=tuple(map(sum, later)),
        rounds=config.stage_rounds,
        refined=shape.refined_rounds(config),
        sampled_vectors=drawn,
        corrected=config.local_correction == "scaffold",
    )
