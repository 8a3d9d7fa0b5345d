"""What a training on edges demands of other keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retexo_fl.config.goals import AUTO
from retexo_fl.config.value_forms import shown
from retexo_fl.dates import moments_of
from retexo_fl.errors import ConfigurationError


def check_links(values: Mapping[str, Any]) -> None:
    """Check what a training on edges cannot do.

    Raises:
        ConfigurationError: Two keys contradict each other; the message names both.
    """
    if values["task"] != "links":
        if values["relation"]:
            raise ConfigurationError(
                f"relation: {shown(values['relation'])} does not go with task {values['task']}, "
                "which learns labels; expected task links, or no value"
            )
        return
    for key, expected in {
        "algorithm": "lazy",
        "solver": "rounds",
        "basis": "none",
        "warm-start": False,
        # Of a sum that a peer would send, or add up, no node's own row is known.
        "boundary-plan": "auto" if values["boundary-plan"] == "auto" else "rows",
        "missing-peers": "wait",
    }.items():
        if values[key] != expected:
            # What the profile lean is about.
            why = ", which reads no labels to make it by" if key == "basis" else ""
            instead = ", as profile retexo has it" if key == "basis" else ""
            raise ConfigurationError(
                f"{key}: {shown(values[key])} does not go with task links{why}; expected "
                f"{str(expected).lower()}{instead}"
            )
    if len(moments_of(values["edges-before"])) > 1:
        raise ConfigurationError(
            f"edges-before: {values['edges-before']} does not go with task links, whose train, "
            "validation and test edges are drawn by a hash of their ends; expected one point in "
            "time, or labels of nodes"
        )
    if values["codec"] == "fixed":
        raise ConfigurationError(
            "codec: fixed does not go with task links, whose rows are not summed; expected lossless"
        )
    if values["split"].partition(":")[0] not in {AUTO, "random"}:
        raise ConfigurationError(
            f"split: {shown(values['split'])} does not go with task links, which splits edges by a "
            f"hash of their ends; expected {AUTO}, or random:TRAIN/VAL/TEST"
        )
