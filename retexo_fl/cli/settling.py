"""From options and a configuration file to one checked configuration."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

from retexo_fl.algorithms import check_algorithm
from retexo_fl.cli.options import Values
from retexo_fl.config import RunConfig, config_values, make_config, read_config_file
from retexo_fl.errors import CheckpointError, ConfigurationError, RunDirectoryError

#: A resume takes everything from the run but these.
_MOVABLE = frozenset({"resume", "engine", "partitions", "data-dir", "nodes", "edges"})
#: What parts on disk were made with.
_OF_PARTS = frozenset({"dataset", "data-dir", "nodes", "edges", "partitioner", "split"})
#: What stands for the tables of a graph.
_OF_TABLES = frozenset({"dataset", "data-dir"})


def settled(values: Values, file: Path | None) -> RunConfig:
    """Join a configuration file and the options, which win; count clients that are not chosen.

    There are as many as parts on disk, or as values of the attribute that the graph is cut by.

    Raises:
        InputError: A key is unknown, a value not allowed, or two of them contradict each other.
    """
    from retexo_fl.agent.preparation import count_attribute_clients, part_paths

    merged: dict[str, object] = read_config_file(file) if file else {}
    if merged.get("resume"):
        raise ConfigurationError(f"{file}: resume: expected on the command line only")
    merged |= values
    if merged.get("partitions"):
        _refuse(_OF_PARTS & values.keys(), "partitions, which are cut already")
        if "clients" not in merged:
            merged["clients"] = len(part_paths(Path(str(merged["partitions"]))))
    elif merged.get("nodes"):
        _refuse(_OF_TABLES & values.keys(), "nodes and edges, which are the graph")
    config = make_config(merged)
    if "clients" not in merged and (counted := count_attribute_clients(config)) is not None:
        config = make_config({**merged, "clients": counted})
    check_algorithm(config_values(config))
    return config


def _refuse(contradicting: Set[str], others: str) -> None:
    if contradicting:
        raise ConfigurationError(
            f"{min(contradicting)}: cannot be given with {others}; expected one of the two"
        )


def resumed(values: Values, file: Path | None) -> RunConfig:
    """Return the configuration of the run that is gone on with, moved where the options say.

    Raises:
        InputError: There is no run to go on with, or an option would train something else.
    """
    from retexo_fl.federation.checkpoints import read_checkpoint
    from retexo_fl.federation.run_directory import check_resumable

    run_path = Path(str(values["resume"])).absolute()
    stored = check_resumable(run_path)
    fixed = ["config"] if file else sorted(values.keys() - _MOVABLE)
    if fixed:
        raise ConfigurationError(
            f"{fixed[0]}: cannot be given with --resume, which takes the run's own configuration"
        )
    try:
        read_checkpoint(run_path / "checkpoint.safetensors")
    except CheckpointError as error:
        raise RunDirectoryError(f"resume: {error}") from error
    config = make_config({**config_values(stored), **values})
    check_algorithm(config_values(config))
    return config
