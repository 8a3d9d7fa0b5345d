"""What each profile would move of the graph at hand, at most, and how often clients are asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from retexo_fl.cli.plan_exchanges import stage_payloads
from retexo_fl.cli.plan_messages import training_messages
from retexo_fl.cli.tables import figures
from retexo_fl.config import RunConfig
from retexo_fl.graph import BoundaryPlan, GraphPartition
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.units import UNKNOWN, format_bytes, format_count

if TYPE_CHECKING:
    from rich.table import Table

#: What Flower's polling makes of one message in a deployment, from and to.
_MESSAGE_S: Final = (4, 9)

PROFILE_NOTE: Final = (
    "Payload and messages if no stage ends before its last round, with the options\n"
    f"given here. Deployed, a message takes {_MESSAGE_S[0]} to {_MESSAGE_S[1]} s of polling."
)


def profile_facts(
    config: RunConfig,
    shape: ModelShape,
    parts: Sequence[GraphPartition],
    plans: Sequence[BoundaryPlan],
) -> dict[str, Any]:
    """Return what a lazy training moves at most and asks of a client, as JSON has it.

    Args:
        config: Of the training.
        shape: Of its model.
        parts: All clients' parts.
        plans: Their plans, of the kind that the run follows.
    """
    asked = training_messages(config, shape, parts)
    messages = max(sum(one.count for one in asked if part.client in one.clients) for part in parts)
    exchanged = sum(
        sum(stage_payloads(config, shape, parts, plans, stage).values())
        for stage in range(shape.stages)
    )
    return {
        "rounds": sum(config.stage_rounds),
        "payload_at_most": exchanged + sum(one.payload_bytes for one in asked),
        "messages": messages,
        "deployed_minutes": [messages * seconds / 60 for seconds in _MESSAGE_S],
    }


def profile_table(facts: Mapping[str, Mapping[str, Any] | None]) -> Table:
    """Return the same of all profiles for a terminal; None does not go with the options."""
    table = figures("profile", "rounds", "payload, at most", "messages", "deployed, minutes")
    for name, one in facts.items():
        if one is None:
            table.add_row(name, *[UNKNOWN] * 4)
            continue
        least, most = one["deployed_minutes"]
        table.add_row(
            name,
            format_count(one["rounds"]),
            format_bytes(one["payload_at_most"]),
            format_count(one["messages"]),
            f"{least:.0f} to {most:.0f}",
        )
    return table
