"""What a run directory is checked for before it is used: what would be imported, what changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retexo_fl.config import RunConfig, Scalar, config_values, default_values, free_keys, shown
from retexo_fl.errors import ConfigurationError, PluginError, RunDirectoryError
from retexo_fl.federation.checkpoints import Checkpoint
from retexo_fl.units import counted


def check_no_plugins(named: Mapping[str, str], run: Path) -> None:
    """Refuse to import what a run directory names.

    Args:
        named: Plug-ins of its configuration that would be imported, by key.
        run: The directory.

    Raises:
        PluginError: There are some.
    """
    told = [f"{key} {name!r}" for key, name in named.items()]
    if told:
        raise PluginError(
            f"{run / 'config.toml'}: names plug-ins ({', '.join(told)}), which run code; "
            "expected none, or --allow-plugins if you trust them and the directory's author"
        )


def fixed_values(config: RunConfig) -> dict[str, Scalar]:
    """Return what no attempt may change: the keys that decide what is trained."""
    return {key: value for key, value in config_values(config).items() if key not in free_keys()}


def check_unchanged(path: Path, stored: RunConfig, checkpoint: Checkpoint) -> None:
    """Refuse a ``config.toml`` that was changed since its run began.

    Args:
        path: The run directory.
        stored: Its ``config.toml``.
        checkpoint: Its checkpoint.

    Raises:
        ConfigurationError: Names the key and both values.
    """
    began = {**default_values(), **checkpoint.facts.get("config", {})}
    for key, value in fixed_values(stored).items():
        if value != began[key]:
            raise ConfigurationError(
                f"{key}: got {shown(value)} in {path / 'config.toml'}; expected "
                f"{shown(began[key])}, as in the run's checkpoint"
            )


def check_longer(path: Path, last_rounds: int, checkpoint: Checkpoint) -> None:
    """Refuse to extend a run by nothing.

    Args:
        path: The run directory.
        last_rounds: Rounds that its last stage is to have.
        checkpoint: Its checkpoint, after the last round.

    Raises:
        RunDirectoryError: The stage has as many.
    """
    done = int(checkpoint.facts["round"])
    if last_rounds <= done:
        raise RunDirectoryError(
            f"last-rounds: {last_rounds}; expected more than the {counted(done, 'round')} of the "
            f"last stage in {path}"
        )


def told_rounds(facts: Mapping[str, Any]) -> dict[int, int]:
    """Return how many rounds of each stage a checkpoint's history records."""
    told = {int(outcome["stage"]): int(outcome["rounds"]) for outcome in facts["outcomes"]}
    # A round is recorded once its weights have been validated, with the next one.
    return {int(facts["stage"]): max(int(facts["round"]) - 1, 0), **told}
