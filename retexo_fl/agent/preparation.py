"""From a configuration to the parts that its clients own."""

from __future__ import annotations

from pathlib import Path

from retexo_fl.config import RunConfig
from retexo_fl.errors import ConfigurationError, PartitionError
from retexo_fl.graph import (
    GraphPartition,
    assign_nodes,
    cut_graph,
    find_partitions,
    load_dataset,
    make_split,
    open_partition,
)


def make_parts(config: RunConfig) -> list[GraphPartition]:
    """Load the data set that a configuration names, split it, and cut it into parts.

    Raises:
        DatasetError: The data set is unknown or cannot be trained on.
        ConfigurationError: It cannot be split as asked.
    """
    graph = load_dataset(
        config.dataset, data_dir=Path(config.data_dir) if config.data_dir else None
    )
    assignment = assign_nodes(
        graph, partitioner=config.partitioner, clients=config.clients, seed=config.seed
    )
    split = make_split(graph, assignment, split=config.split, seed=config.seed)
    return cut_graph(graph, assignment, split)


def part_paths(folder: Path) -> list[Path]:
    """Return the parts below a folder, by client index.

    Raises:
        PartitionError: There is none, or one is missing in the sequence.
    """
    found = find_partitions(folder)
    expected = [f"part-{client}" for client in range(len(found))]
    if [path.name for path in found] != expected:
        names = ", ".join(path.name for path in found)
        raise PartitionError(f"{folder}: found {names}; expected part-0, part-1, ... without gaps")
    return found


def load_parts(config: RunConfig) -> list[GraphPartition]:
    """Return all parts of a configuration: from its folder of parts, or cut from its data set.

    Raises:
        PartitionError: A part is missing, damaged or of another partitioning.
        ConfigurationError: ``clients`` contradicts the folder.
    """
    if not config.partitions:
        return make_parts(config)
    parts = [open_partition(path) for path in part_paths(Path(config.partitions))]
    if len(parts) != config.clients:
        raise ConfigurationError(
            f"clients: {config.clients}, but {config.partitions} holds {len(parts)} parts"
        )
    return parts
