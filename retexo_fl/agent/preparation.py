"""From a configuration to the parts that its clients own."""

from __future__ import annotations

from pathlib import Path

from retexo_fl.config import RunConfig
from retexo_fl.errors import ConfigurationError, DatasetError, PartitionError
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
    data_dir = Path(config.data_dir) if config.data_dir else None
    try:
        graph = load_dataset(config.dataset, data_dir=data_dir)
    except OSError as error:
        raise DatasetError(
            f"dataset: {config.dataset[:40]!r} cannot be looked for in {config.data_dir[:200]} "
            f"({error.strerror})"
        ) from error
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
    for client, path in enumerate(found):
        if path.name != f"part-{client}":
            raise PartitionError(
                f"{folder}: part-{client} is missing, there is {path.name}; expected part-0, "
                "part-1, ... without gaps"
            )
    return found


def load_parts(config: RunConfig) -> list[GraphPartition]:
    """Return all parts of a configuration: from its folder of parts, or cut from its data set.

    Raises:
        PartitionError: A part is missing, damaged or of another partitioning, or no part has a
            train node.
        ConfigurationError: ``clients`` contradicts the folder.
    """
    if not config.partitions:
        return make_parts(config)
    folder = Path(config.partitions)
    parts = open_parts(folder)
    if len(parts) != config.clients:
        raise ConfigurationError(
            f"clients: got {config.clients}; expected {len(parts)}, the number of parts in {folder}"
        )
    if not any(part.train_mask.any() for part in parts):
        raise PartitionError(f"{folder}: no part has a train node; expected at least one")
    return parts


def open_parts(folder: Path) -> list[GraphPartition]:
    """Return all parts below a folder.

    Raises:
        PartitionError: A part is missing, damaged or of another partitioning.
    """
    paths = part_paths(folder)
    parts = [open_partition(path) for path in paths]
    for path, part in zip(paths, parts, strict=True):
        _check_place(path, part, parts)
    return parts


def _check_place(path: Path, part: GraphPartition, parts: list[GraphPartition]) -> None:
    """Check that a part stands in its owner's place and is of the same partitioning as the first.

    What two parts say of each other's nodes is left to `retexo partition check`; in a training the
    digests of the exchange prove it.
    """
    if part.partitioning != parts[0].partitioning:
        raise PartitionError(
            f"{path} is of partitioning {part.partitioning[:16]}, {path.with_name('part-0')} of "
            f"{parts[0].partitioning[:16]}; expected parts of one"
        )
    if path.name != f"part-{part.client}":
        raise PartitionError(f"{path} is the part of client {part.client}; expected its own name")
    if part.num_clients != len(parts):
        raise PartitionError(
            f"{path.parent}: holds {len(parts)} parts of {part.num_clients}; expected all of them"
        )
