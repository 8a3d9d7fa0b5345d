"""What each profile would move of the graph at hand, at most, and how often clients are asked."""

from __future__ import annotations

from typing import Any, Final

from retexo_fl.api.plan_exchanges import PlannedParts, stage_payloads
from retexo_fl.api.plan_messages import training_messages
from retexo_fl.config import RunConfig
from retexo_fl.training.stage_model import ModelShape

#: What Flower's polling makes of one message in a deployment, from and to.
MESSAGE_S: Final = (4, 9)


def profile_facts(config: RunConfig, shape: ModelShape, planned: PlannedParts) -> dict[str, Any]:
    """Return what a lazy training moves at most and asks of a client, as JSON has it.

    Args:
        config: Of the training.
        shape: Of its model.
        planned: All clients' parts.
    """
    parts = planned.parts
    asked = training_messages(config, shape, parts)
    messages = max(sum(one.count for one in asked if part.client in one.clients) for part in parts)
    exchanged = sum(
        sum(stage_payloads(config, shape, planned, stage).values()) for stage in range(shape.stages)
    )
    return {
        "rounds": sum(config.stage_rounds),
        "payload_at_most": exchanged + sum(one.payload_bytes for one in asked),
        "messages": messages,
        "deployed_minutes": [messages * seconds / 60 for seconds in MESSAGE_S],
    }
